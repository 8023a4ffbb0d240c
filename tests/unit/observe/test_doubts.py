"""Which events may have been before or after others, if clocks are known within bounds only."""

from __future__ import annotations

import random

import pytest

from zkrebalancer.observe.doubts import CLOCK, EARLIEST, KINDS, LATEST, Doubts, placed
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


@pytest.mark.parametrize(
    "kind",
    ["fetcher_started", "fetcher_stopped", "member_left", "ownership_ended", "repositioned", "topic_deleted"],
)
def test_each_kind_of_change_may_have_been_before_or_after_what_another_clock_saw(kind: str) -> None:
    """In `doubts.KINDS`, leave one out."""
    assert kind in KINDS
    whose = {"group": "g", "member": "a", "topic": "t", "partitions": [0]}
    events = [
        {"kind": "fetcher_started", CLOCK: "l", "mono_us": 0, EARLIEST: 0, LATEST: 0},
        {"kind": "fetcher_stopped", "reason": "closed", CLOCK: "l", "mono_us": 9, EARLIEST: 9, LATEST: 9},
        {"kind": kind, "reason": "expired", CLOCK: "k", "mono_us": 500, EARLIEST: 400, LATEST: 600},
    ]
    doubts = Doubts()
    for event in events:
        doubts.add({**whose, **event})
    doubts.finish()
    for at_us, is_in_doubt in ((399, False), (510, True), (601, False)):
        delivered = {**whose, "kind": "delivered", CLOCK: "l", "mono_us": at_us, EARLIEST: at_us, LATEST: at_us}
        assert doubts.concern(delivered, ("t", 0)) is is_in_doubt
