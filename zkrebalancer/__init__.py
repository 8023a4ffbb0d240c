"""A ZooKeeper-backed central rebalancer for Kafka consumer groups."""
