"""Telemetry events, a checker that judges a run by them, and inspection of groups."""
