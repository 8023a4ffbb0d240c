"""Which events may have been before or after others, if clocks are known within bounds only."""

from __future__ import annotations

import random

import pytest

from zkrebalancer.observe.doubts import CLOCK, EARLIEST, LATEST, Doubts, placed
from zkrebalancer.observe.reading import Event

MOMENTS = 1_000


def drawn(chance: random.Random, widest_us: int, unbounded: float) -> Event:
    """Return an event of a partition, at a time that is known within bounds, or on one side."""
    at_us = chance.randrange(MOMENTS)
    bounds = [at_us - chance.randrange(widest_us), at_us + chance.randrange(widest_us)]
    earliest, latest = (None if chance.random() < unbounded else bound for bound in bounds)
    whose = {"group": "g", "member": chance.choice("abc"), "topic": "t", "partitions": [0]}
    times = {"mono_us": at_us, EARLIEST: earliest, LATEST: latest, CLOCK: chance.choice("kl")}
    return {"kind": "fetcher_started", **whose, **times}


@pytest.mark.parametrize("unbounded", [0.0, 0.1])
@pytest.mark.parametrize("widest_us", [3, 10, 100])
def test_what_may_be_the_other_way_round_is_found_however_many_changes_there_are(
    widest_us: int, unbounded: float
) -> None:
    """In `Doubts.concern`, look less far than both errors together reach."""
    found = 0
    for seed in range(200):
        chance = random.Random(f"{seed} {widest_us} {unbounded}")
        doubts = Doubts()
        changes = [drawn(chance, widest_us, unbounded) for _ in range(chance.randrange(1, 12))]
        for change in changes:
            doubts.add(change)
        doubts.finish()
        for event in (drawn(chance, widest_us, unbounded) for _ in range(5)):
            wanted = any(
                change[CLOCK] != event[CLOCK]
                and not placed(change).is_before(placed(event))
                and not placed(event).is_before(placed(change))
                for change in changes
            )
            assert doubts.concern(event, ("t", 0)) is wanted
            found += wanted
    assert found
