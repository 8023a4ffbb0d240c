"""When a leader looks at the copies of a group's deleted offsets."""

from __future__ import annotations

from zkrebalancer.protocol.calls import Children
from zkrebalancer.rebalance.effects import Now, Request
from zkrebalancer.rebalance.offset_copies import FIRST_LOOK_US, LOOK_INTERVAL_US, OffsetCopies
from zkrebalancer.rebalance.scheduler import Scheduler


def test_readings_of_the_group_cause_no_looks_of_their_own() -> None:
    """In `OffsetCopies.adopt`, look some time after each reading."""
    scheduler = Scheduler()
    copies = OffsetCopies(scheduler.part("g"), "g")
    copies.adopt()
    at_us = scheduler.next_deadline_us() or 0
    assert FIRST_LOOK_US <= at_us < 2 * FIRST_LOOK_US
    scheduler.now = Now(at_us, 0)
    scheduler.run_next_due()
    (look,) = scheduler.take_effects()
    assert isinstance(look, Request)
    scheduler.answer(look.call_id, Children(("1-0000000001",)))
    for reading in range(1, 5):
        scheduler.now = Now(at_us + reading * 300_000_000, 0)
        scheduler.forget("g")
        copies.adopt()
        assert scheduler.next_deadline_us() == at_us + LOOK_INTERVAL_US
