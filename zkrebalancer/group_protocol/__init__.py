"""Kafka's group protocols as pure state machines: no I/O, no clock, no randomness."""
