"""A group is read in slices, and what may not be read counts as the worst that it could say."""

from __future__ import annotations

import pytest

from tests.support.world import GROUP
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Children, Get, ListChildren, Refusal, Refused, Reply
from zkrebalancer.rebalance import loading
from zkrebalancer.rebalance.effects import Now, Request
from zkrebalancer.rebalance.reader import GroupReader
from zkrebalancer.rebalance.scheduler import Scheduler
from zkrebalancer.rebalance.view import GroupView


@pytest.mark.parametrize(("refusal", "is_kept"), [(Refusal.NO_AUTH, True), (Refusal.NO_NODE, False)])
def test_an_eviction_record_that_may_not_be_read_still_holds(refusal: Refusal, is_kept: bool) -> None:
    """In `GroupReader._eviction_read`, take it for one that is gone: its partitions would have two owners."""
    reader = GroupReader(GROUP, {})
    reader.view.evicted = {"dead": None}
    reader._eviction_read("dead", Refused(refusal))
    assert ("dead" in reader.view.evicted) is is_kept
    assert len(reader.problems) == is_kept


def test_a_stage_is_over_when_its_last_slice_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies come before the next slice is asked for. In `Loading._maybe_go_on`, do not wait for it."""
    monkeypatch.setattr(loading, "MAX_READS_PER_STEP", 1)
    scheduler, asked = Scheduler(), list[str]()
    reading = loading.Loading(scheduler.part(GROUP), GroupView(GROUP, {}), lambda _: None, lambda: None)
    reading.begin()
    reply: Reply = Children((*paths.GROUP_CHILDREN, "generation", "given"))
    for now_us in range(1, 20):
        for effect in scheduler.take_effects():
            assert isinstance(effect, Request)
            assert isinstance(effect.call, Get | ListChildren)
            asked.append(effect.call.path)
            scheduler.answer(effect.call_id, reply)
            reply = Refused(Refusal.NO_NODE)
        scheduler.now = Now(now_us, 0)
        scheduler.run_due()
    group = paths.group(GROUP)
    names = ["generation", "channel", "offsets", "static"]
    assert asked[:6] == [group, group, *(f"{group}/{name}" for name in names)]
