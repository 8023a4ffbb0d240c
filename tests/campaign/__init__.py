"""The fault campaign: `python -m tests.campaign` breaks real servers and processes at random, and judges the result."""
