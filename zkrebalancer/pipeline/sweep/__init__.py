"""Strategies and simulated protocols over a grid of groups: grid, model, the Spark job, the pictures."""
