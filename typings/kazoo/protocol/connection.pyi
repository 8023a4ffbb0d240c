_CONNECTION_DROP: object  # a request upon which a client closes its connection, and makes another one
