"""Benchmarks: figures for `docs/benchmarks.md`, never assertions."""
