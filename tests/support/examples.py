"""How many examples a test draws: few in `make test`, more in `make test-long` (`--hypothesis-profile long`).

A test that loops over seeds by `count` is marked `drawn`, so that `make test-long` finds it; Hypothesis marks its own.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

QUICK, LONG = 30, 200


def register() -> None:
    """Register both profiles and load the quick one; an option of pytest loads the other one later."""
    for name, examples in (("quick", QUICK), ("long", LONG)):
        settings.register_profile(name, max_examples=examples, deadline=None)  # a busy machine breaks deadlines
    settings.load_profile("quick")


def count(factor: int = 1) -> int:
    """Return how many seeds to try: `factor` times the profile's number of examples."""
    return factor * settings().max_examples


def times(factor: int, **others: Any) -> settings:
    """Return the settings of a property that needs `factor` times the profile's number of examples."""
    return settings(max_examples=count(factor), **others)
