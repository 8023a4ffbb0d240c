"""Kafka's wire protocol: frames to dictionaries and back, for the messages that the gateway reads or writes."""
