"""Shared by tests: a ZooKeeper in memory with a world of coordinators and agents, models of clients, processes."""
