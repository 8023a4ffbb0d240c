"""Proof of exactly once: real servers, numbered records, kills at named steps; sinks have to equal the input."""
