"""Coordinator processes share the shards of groups: who leads what after joins, stops, deaths, changes."""

from __future__ import annotations

import pytest

from tests.support.shard_world import ShardProcess, ShardWorld
from zkrebalancer.protocol import paths, shards
from zkrebalancer.protocol.calls import Create, Delete, Multi, SetContent, Sync
from zkrebalancer.protocol.shards import Shard, shard_of
from zkrebalancer.rebalance.all_shards import PATIENCE_US
from zkrebalancer.rebalance.effects import ShutDown
from zkrebalancer.rebalance.former_lives import FORGOTTEN_US
from zkrebalancer.rebalance.reconciling import RECONCILE_INTERVAL_US

NAMES = {f"g-{number}" for number in range(20)}
SETTLED_MS = 5_000


def running(shard_count: int, *capacities: int) -> ShardWorld:
    """Return processes that have started one after the other and share the shards."""
    world = ShardWorld()
    world.prepare(shard_count)
    for capacity in capacities:
        world.add(capacity)
        world.pass_time(SETTLED_MS)
    return world


def served(world: ShardWorld) -> list[str]:
    return sorted(name for process in world.processes if process.alive for name in process.groups())


def assert_all_served(world: ShardWorld) -> None:
    """Assert that each group is served by the leader of its shard, and by no other process."""
    assert served(world) == sorted(NAMES)
    for process in world.processes:
        for one in process.leading() if process.alive else ():
            assert set(one.groups) == {name for name in NAMES if one.shard.has(name)}


def leads(process: ShardProcess, name: str) -> bool:
    count = len(process.machine.machines)
    return shard_of(name, count) in process.led()


def test_one_shard_needs_no_nodes_of_its_own() -> None:
    """In `AllShards._become`, register with one shard, too."""
    world = running(1, 1, 1)
    world.assert_shared(1, 1, 0)
    assert_all_served(world)
    assert paths.COORDINATOR in world.zk.nodes
    assert not [path for path in world.zk.nodes if path.startswith(paths.SHARDS)]


def test_two_hosts_share_the_shards_and_each_group_has_one() -> None:
    """In `AllShards._of_group`, use another hash than `Shard.has`."""
    world = running(8, 1, 1)
    world.assert_shared(8, 4, 4)
    assert_all_served(world)


def test_marks_of_other_shards_groups_stay() -> None:
    """In `FormerLives`, list the marks of all groups: they would seem to be of groups that are gone."""
    world = running(2, 1)
    world.set_shards(3)  # new leaders find the marks
    world.pass_time((FORGOTTEN_US + 2 * RECONCILE_INTERVAL_US) // 1_000)
    assert set(world.zk.children(paths.SERVED)) == NAMES


def test_capacity_decides_how_many() -> None:
    running(8, 3, 1).assert_shared(8, 6, 2)


def test_a_host_that_joins_gets_its_shards_one_by_one() -> None:
    """Each waits for a leader of the last one. In `AllShards._give_away`, do not wait."""
    world = running(8, 1)
    begin = len(world.led_at)
    world.add()
    world.pass_time(SETTLED_MS)
    world.assert_shared(8, 4, 4)
    assert_all_served(world)
    kinds = [kind for _at_us, kind, _shard in world.led_at[begin:]]
    assert kinds == ["leader_resigned", "leader_elected"] * 4


def test_a_host_that_stops_gives_all_away_at_once() -> None:
    """In `AllShards._shut_down`, do not leave the list of hosts: then the others wait for their patience."""
    world = running(8, 1, 1, 1)
    stopping = world.processes[0]
    world.feed(stopping, ShutDown())
    ((_call_id, leaving),) = stopping.session.sent
    assert isinstance(leaving, Multi)
    assert leaving.operations[0].path.startswith(paths.SHARD_HOSTS), "it leaves the list of hosts first"
    world.run()
    assert not stopping.alive
    world.assert_shared(8, 0, 4, 4)
    world.pass_time(SETTLED_MS)
    assert_all_served(world)


def test_the_death_of_a_host_affects_its_shards_only() -> None:
    world = running(8, 1, 1)
    died, other = world.processes
    kept = other.led()
    begin = len(world.led_at)
    world.kill(died)
    world.pass_time(SETTLED_MS)
    world.assert_shared(8, 0, 8)
    assert_all_served(world)
    touched = {shard for _at_us, _kind, shard in world.led_at[begin:]}
    assert touched == set(range(8)) - kept


def test_another_host_stands_in_for_one_that_lives_and_does_not_lead() -> None:
    """And keeps the shard, as long as the hosts stay the same. In `CoordinatorElector._run_in_turn`, wait for ever."""
    world = running(4, 1)
    lazy = world.zk.open()  # a host that registers, and leads nothing
    content = shards.encode_host(shards.ShardHost(99, "lazy", 1))
    world.zk.perform(Multi((Create(f"{paths.SHARD_HOSTS}/99-1", content, ephemeral=True),)), lazy.session_id)
    world.pass_time(SETTLED_MS)
    assert len(world.processes[0].led()) == 3, "it waits for the lazy host, with one shard at a time"
    world.pass_time(2 * (PATIENCE_US // 1_000 + SETTLED_MS))
    world.assert_shared(4, 4)
    elected = len(world.led_at)
    world.pass_time(120_000)
    assert len(world.led_at) == elected, "it gave away again what it had to take back"


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (4, 8), (8, 3), (2, 200)])
def test_the_number_changes_on_a_live_fleet(before: int, after: int) -> None:
    """Epochs grow. In `change_shards._raised`, keep the epochs of former shards; in `Shard.guards`, check nothing."""
    world = running(before, 1, 1)
    epochs = [one.coordinator_elector.epoch for process in world.processes for one in process.leading()]
    assert world.set_shards(after) == before
    world.pass_time(2 * SETTLED_MS)
    assert sum(len(process.led()) for process in world.processes) == after
    assert_all_served(world)
    for process in world.processes:
        for one in process.leading():
            assert one.coordinator_elector.epoch > max(epochs)
    assert world.set_shards(after) == after


def test_a_host_that_missed_the_change_can_neither_write_nor_win() -> None:
    """Its watch events are withheld. In `change_shards`, leave the former leaders' nodes and epochs."""
    world = running(4, 1)
    stale = world.processes[0]
    world.set_shards(2)
    stale.session.inbox.clear()  # it does not know
    before = dict(world.zk.nodes)
    for one in stale.machine.machines:
        one.scheduler.part("/test").write([SetContent(paths.group("g-1"), b"x")], lambda _reply: None)
        one.coordinator_elector.elect()
        for effect in one.scheduler.take_effects():
            stale.machine._callers[effect.call_id] = one  # type: ignore[union-attr]
            world.zk.send(stale.session, effect.call_id, effect.call)  # type: ignore[union-attr]
    for _ in range(200):
        if stale.session.sent:
            world.zk.perform_next(stale.session)
        elif stale.session.inbox:
            world.feed(stale, stale.session.take())
    assert world.zk.nodes[paths.group("g-1")] == before[paths.group("g-1")]
    former = [Shard(number, 4) for number in range(4)]
    assert not [one.coordinator for one in former if one.coordinator in world.zk.nodes]


def test_a_coordinator_of_a_former_release_cannot_lead_beside_shards() -> None:
    """It knows one shard only. In `change_shards._with_shards`, create no barrier."""
    world = running(2, 1)
    removal = world.zk.perform(Multi((Delete(paths.COORDINATOR),)))
    assert "NOT_EMPTY" in str(removal)


def test_an_invalid_number_changes_nothing() -> None:
    world = running(2, 1)
    world.zk.perform(Multi((SetContent(paths.SHARDS, b"{"),)))
    world.pass_time(SETTLED_MS)
    world.assert_shared(2, 2)
    assert any("is damaged" in text for text in world.warnings)


def test_ids_of_two_shards_differ() -> None:
    """They have the same session and epoch. In `Shard.seed`, leave out the number."""
    world = running(2, 1)
    seeds = [one.scheduler.id_seed for one in world.processes[0].machine.machines]
    assert len(set(seeds)) == 2


def test_the_number_is_read_after_a_sync() -> None:
    """A server that lags may have the former number. In `AllShards._read_number`, read at once."""
    world = ShardWorld()
    process = world.add()
    world.feed(process, process.session.take())
    ((_call_id, first),) = process.session.sent
    assert isinstance(first, Sync)
