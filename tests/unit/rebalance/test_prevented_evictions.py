"""Nodes that no eviction can delete, as another program has made nodes below them: tried again with growing pauses."""

from __future__ import annotations

import pytest

from tests.support.groups import events, world_with
from tests.support.world import GROUP, World
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Call, Create, Delete, Done, Multi, Reply
from zkrebalancer.protocol.ownership import EvictionRecord, OwnersRecord
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.leases import UNKNOWN_LEASE_MS

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


def delete_given(world: World) -> None:
    folder = paths.given(GROUP)
    world.zk.perform(Multi((*(Delete(f"{folder}/{name}") for name in world.zk.children(folder)), Delete(folder))))


def make(world: World, path: str, content: bytes = b"") -> None:
    assert isinstance(world.zk.perform(Multi((Create(path, content),))), Done)


def test_a_folder_of_evictions_that_was_deleted_is_made_anew() -> None:
    """In `Departures._evicted`, take that for a race: a member that hangs would keep its partitions for ever."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000), "a")
    world.agents["a"].silent = True
    world.add_agent("b")
    world.pass_time(100)
    assert isinstance(world.zk.perform(Multi((Delete(paths.evicted(GROUP)),))), Done)
    world.pass_time(30_000)
    assert len(world.owned()["b-1"]) == 4
    assert not world.zk.children(paths.evicted(GROUP))


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


@pytest.mark.parametrize("kinds", [("owners",), ("ids",), ("ids", "owners")], ids=str)
@pytest.mark.parametrize("with_channel", [False, True], ids=["without a channel", "with a channel"])
def test_nodes_that_stay_hold_nothing_after_the_lease_although_it_is_lost_what_was_given(
    monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...], with_channel: bool
) -> None:
    """In `Departures._left_behind`, leave nothing: they may own anything, and block all partitions for ever."""
    monkeypatch.setattr(World, "check", lambda _world: None)  # it would miss the records
    world = world_with(GroupSettings(), "a")
    world.kill_coordinator(world.leader())
    for kind in kinds:
        make(world, f"{paths.group(GROUP)}/{kind}/x")
        make(world, f"{paths.group(GROUP)}/{kind}/x/foreign")
    if with_channel:
        make(world, paths.channel(GROUP, "x"))
    delete_given(world)
    world.set_topic("t", 6)
    world.add_coordinator()
    limit_calls(world)
    world.pass_time(UNKNOWN_LEASE_MS - 1_000)
    assert len(world.owned()["a-1"]) == 4
    world.pass_time(5_000)
    assert len(world.owned()["a-1"]) == 6
    assert world.zk.nodes[paths.given(GROUP)].content  # the next leader need not believe what members claim
    for kind in kinds:
        world.zk.perform(Multi((Delete(f"{paths.group(GROUP)}/{kind}/x/foreign"),)))
    world.pass_time(400_000)
    assert not [path for path in world.zk.nodes if path.endswith("/x")]
    world.assert_settled()


@pytest.mark.parametrize("kinds", [("owners",), ("ids",), ("ids", "owners")], ids=str)
def test_a_consumer_whose_nodes_were_replaced_by_some_that_stay_gives_its_partitions_up(
    monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...]
) -> None:
    """In `Departures._left_behind`, leave nothing: its partitions have no owner for ever."""
    monkeypatch.setattr(World, "check", lambda _world: None)  # its record stays
    world = world_with(GroupSettings(), "a", "b")
    owned = world.owned()["a-1"]
    world.agents["a"].silent = True
    for kind in kinds:
        path = f"{paths.group(GROUP)}/{kind}/a-1"
        content = world.zk.nodes[path].content
        world.zk.perform(Multi((Delete(path), Create(path, content), Create(f"{path}/foreign"))))
    limit_calls(world)
    world.pass_time(2_000)
    evicted = ownership.decode_eviction(world.zk.nodes[paths.evicted(GROUP, "a-1")].content)
    assert evicted.partitions == owned
    assert paths.channel(GROUP, "a-1") not in world.zk.nodes  # which tells the consumer
    assert len(world.owned()["b-1"]) == 2
    world.pass_time(2 * LEASE_MS)
    assert len(world.owned()["b-1"]) == 4


def keep_for_ever(world: World, name: str, kinds: tuple[str, ...]) -> None:
    """Replace both nodes of a member by ones of no session; what is below those of these kinds keeps them."""
    for kind in ("ids", "owners"):
        path = f"{paths.group(GROUP)}/{kind}/{name}"
        below = (Create(f"{path}/foreign"),) if kind in kinds else ()
        world.zk.perform(Multi((Delete(path), Create(path, world.zk.nodes[path].content), *below)))


def test_a_consumer_that_holds_nothing_registers_anew_although_its_registration_stays() -> None:
    """In `Departures._left_behind`, do not ask for the channel: it gets nothing for as long as the node stays."""
    world = world_with(GroupSettings(), "a", "b", partitions=1)
    idle = next(name for name, owned in world.owned().items() if not owned)
    keep_for_ever(world, idle, ("ids",))
    limit_calls(world)
    world.pass_time(2 * LEASE_MS)
    assert paths.channel(GROUP, idle) not in world.zk.nodes
    world.set_topic("t", 2)
    world.pass_time(2_000)
    assert sorted(len(owned) for owned in world.owned().values()) == [1, 1]
    world.assert_settled()


@pytest.mark.parametrize("kinds", [("owners",), ("ids",), ("ids", "owners")], ids=str)
def test_the_channel_of_a_dead_consumer_that_holds_nothing_goes_although_other_nodes_stay(
    kinds: tuple[str, ...],
) -> None:
    """In `Departures._left_behind`, do not ask for the channel: it stays as well."""
    world = world_with(GroupSettings(), "a", "b", partitions=1)
    idle = next(name for name, owned in world.owned().items() if not owned)
    keep_for_ever(world, idle, kinds)
    world.kill_agent(world.agents[idle.partition("-")[0]])
    limit_calls(world)
    world.pass_time(2 * LEASE_MS)
    assert paths.channel(GROUP, idle) not in world.zk.nodes
    for kind in kinds:
        world.zk.perform(Multi((Delete(f"{paths.group(GROUP)}/{kind}/{idle}/foreign"),)))
    world.pass_time(400_000)
    assert not [path for path in world.zk.nodes if path.endswith(f"/{idle}")]
    world.assert_settled()


def test_a_record_that_stays_beside_a_command_that_stays_frees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Departures._channel_listed`, evict it all the same: its consumer may live, and would not learn of it."""
    world = world_with(GroupSettings(), "a", "b")
    owned = world.owned()["a-1"]
    path, channel = paths.owners(GROUP, "a-1"), paths.channel(GROUP, "a-1")
    world.agents["a"].silent = True
    content = world.zk.nodes[path].content
    below = Create(f"{path}/foreign"), Create(f"{channel}/foreign"), Create(f"{channel}/foreign/below")
    world.zk.perform(Multi((Delete(path), Create(path, content), *below)))
    limit_calls(world)
    world.pass_time(300_000)
    assert world.owned()["a-1"] == owned
    assert paths.evicted(GROUP, "a-1") not in world.zk.nodes
    world.zk.perform(Multi((Delete(f"{channel}/foreign/below"),)))
    monkeypatch.setattr(World, "check", lambda _world: None)  # its record stays
    world.pass_time(60_000)
    assert len(world.owned()["b-1"]) == 4


def test_an_eviction_record_that_cannot_be_removed_holds_nothing_after_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `Leases._record_removed`, return if it is refused; in `_lease_over`, do not look who is staying."""
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
