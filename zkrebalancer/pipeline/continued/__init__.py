"""Keeps the tables of a run up to date at the cost of what is new, by a checker that remembers where it was."""
