"""The gateway: relays Kafka's protocol between clients and brokers, but answers requests about groups itself."""
