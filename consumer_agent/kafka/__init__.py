"""The Kafka side: fetching, offsets, and the watchdog over librdkafka."""
