"""A consumer's life in its group: a pure state machine that decides every ZooKeeper call. No I/O, no clock."""
