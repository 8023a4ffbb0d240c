"""Runs of real processes that are judged by their events: the demo, and what tests and benchmarks share with it."""
