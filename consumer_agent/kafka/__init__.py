"""The Kafka side: fetching, offsets, and what watches librdkafka."""
