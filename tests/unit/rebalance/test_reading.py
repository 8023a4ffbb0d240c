"""A group is read in slices, and what may not be read counts as the worst that it could say."""

from __future__ import annotations

import pytest

from tests.support.world import GROUP, World
from zkrebalancer.protocol.calls import Refusal, Refused
from zkrebalancer.rebalance import loading
from zkrebalancer.rebalance.reader import GroupReader


@pytest.mark.parametrize(("refusal", "is_kept"), [(Refusal.NO_AUTH, True), (Refusal.NO_NODE, False)])
def test_an_eviction_record_that_may_not_be_read_still_holds(refusal: Refusal, is_kept: bool) -> None:
    """In `GroupReader._eviction_read`, take it for one that is gone: its partitions would have two owners."""
    reader = GroupReader(GROUP, {})
    reader.view.evicted = {"dead": None}
    reader._eviction_read("dead", Refused(refusal))
    assert ("dead" in reader.view.evicted) is is_kept
    assert len(reader.problems) == is_kept


def test_a_group_is_read_as_a_whole_however_small_the_slices_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies come before the next slice. In `Loading._maybe_go_on`, do not wait for it."""
    world = World()
    world.set_topic("t", 5)
    world.create_group()
    world.add_coordinator()
    for client in "abcde":
        world.add_agent(client)
    world.pass_time(5_000)
    before, group = world.owned(), world.leader().machine.groups[GROUP]
    monkeypatch.setattr(loading, "MAX_READS_PER_STEP", 1)
    group.load("reconciliation")
    world.pass_time(5_000)
    assert [sorted(member.owners.partitions) for member in group.view.members.values() if member.owners] == [
        sorted(held) for _name, held in sorted(before.items())
    ]
    assert world.owned() == before
