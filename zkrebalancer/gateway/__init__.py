"""The gateway: relays Kafka's protocol between clients and brokers, but answers the requests of groups itself."""
