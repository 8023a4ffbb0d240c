"""Assignment at scale: this project's strategies beside Kafka's own, on the same problems."""
