"""What can be seen: telemetry events, and the checker that judges a run by them."""
