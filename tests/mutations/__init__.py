"""Deliberate bugs that the simulation has to find."""
