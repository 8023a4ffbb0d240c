"""What touches the machine: the one kazoo wrapper, the clocks, configuration and logging."""
