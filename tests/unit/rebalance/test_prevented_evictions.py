"""Nodes that no eviction can delete, as another program has made nodes below them: tried again with growing pauses."""

from __future__ import annotations

import pytest

from tests.support.groups import events, world_with
from tests.support.world import GROUP, World
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Call, Create, Delete, Done, Multi, Reply
from zkrebalancer.protocol.ownership import EvictionRecord, OwnersRecord
from zkrebalancer.protocol.settings import GroupSettings

MAX_CALLS = 1_500
LEASE_MS = 4_000
RECORD = ownership.encode_owners(OwnersRecord(1, None, {("t", 0): 0}))


def limit_calls(world: World) -> None:
    """Fail the test where it would run for ever."""
    perform, left = world.zk.perform, MAX_CALLS

    def counting(call: Call, session_id: int = 0) -> Reply:
        nonlocal left
        left -= 1
        assert left, "calls are repeated without a pause"
        return perform(call, session_id)

    world.zk.perform = counting  # type: ignore[method-assign]


def make(world: World, path: str, content: bytes = b"") -> None:
    assert isinstance(world.zk.perform(Multi((Create(path, content),))), Done)


@pytest.mark.parametrize("kinds", [("owners",), ("ids",), ("ids", "owners")], ids=str)
def test_a_member_of_no_session_that_cannot_be_deleted_is_tried_at_growing_intervals(kinds: tuple[str, ...]) -> None:
    """In `Departures.evict_broken`, do not look for the timer; in `_give_way`, count nothing."""
    world = world_with(GroupSettings(), "a")
    world.rogues.add("x")
    for kind in kinds:
        make(world, f"{paths.group(GROUP)}/{kind}/x", RECORD)
        make(world, f"{paths.group(GROUP)}/{kind}/x/foreign")
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    limit_calls(world)
    world.pass_time(600_000)
    assert len(world.owned()["a-1"]) == 4
    assert sum("evicting x" in text for text in world.warnings) <= 10
    assert [text for text in world.warnings if f"/{kinds[0]}/x is in the way of an eviction" in text]

    world.add_agent("b")
    world.pass_time(10_000)
    assert {name: len(had) for name, had in world.owned().items() if name != "x"} == {"a-1": 2, "b-1": 2}
    for kind in kinds:
        world.zk.perform(Multi((Delete(f"{paths.group(GROUP)}/{kind}/x/foreign"),)))
    world.pass_time(120_000)
    assert not [path for path in world.zk.nodes if path.endswith("/x")]
    world.assert_settled()


def test_an_eviction_record_that_cannot_be_removed_holds_nothing_after_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `Departures._record_removed`, return if it is refused; in `_lease_over`, do not look who is staying."""
    world = world_with(GroupSettings(), "a")
    path = paths.evicted(GROUP, "x")
    make(world, path, ownership.encode_eviction(EvictionRecord(1, {("t", 4): 0, ("t", 5): 0}, 5, LEASE_MS)))
    make(world, f"{path}/foreign")
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.set_topic("t", 6)
    limit_calls(world)
    world.pass_time(LEASE_MS)
    assert len(world.owned()["a-1"]) == 4
    monkeypatch.setattr(World, "check", lambda _world: None)  # it would count the record
    world.pass_time(LEASE_MS)
    assert len(world.owned()["a-1"]) == 6
    world.pass_time(1_000_000)
    assert len(events(world, "ownership_ended")) == 1
    assert [text for text in world.warnings if "the eviction record of x stays: not empty" in text]
    world.zk.perform(Multi((Delete(f"{path}/foreign"),)))
    world.pass_time(600_000)
    assert path not in world.zk.nodes
