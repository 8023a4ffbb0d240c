"""What runs a consumer: the threads, the state that they share, the buffer of records, telemetry."""
