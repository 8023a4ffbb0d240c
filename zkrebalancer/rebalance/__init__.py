"""The pure core: events in, effects out. Decides which ZooKeeper calls are made and in what order; no I/O, no clock."""
