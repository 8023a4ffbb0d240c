"""Shared by pure tests: a ZooKeeper in memory, and a world of coordinators and scripted agents around it."""
