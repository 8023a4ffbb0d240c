"""Access to the outside world: ZooKeeper through kazoo, Kafka's client settings, the clocks."""
