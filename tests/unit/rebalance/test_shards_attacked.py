"""Shards of groups when connections break at bad moments, rights are missing, and people change nodes by hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

import pytest

from tests.support.shard_world import Client, ShardProcess, ShardWorld
from tests.support.zk_model import Right
from zkrebalancer.operations import change_shards
from zkrebalancer.protocol import cluster_nodes, paths, shards
from zkrebalancer.protocol.calls import (
    Call,
    Create,
    Delete,
    Done,
    Get,
    Multi,
    Refusal,
    Refused,
    Reply,
    SetContent,
    Sync,
)
from zkrebalancer.protocol.shards import Shard, ShardHost
from zkrebalancer.rebalance import all_shards
from zkrebalancer.rebalance.effects import Tick
from zkrebalancer.rebalance.election import Identity
from zkrebalancer.rebalance.table import table
from zkrebalancer.runtime.zk import BlockingZk

SETTLED_MS = 5_000
EVERYBODY = ""


def resigns(process: ShardProcess) -> bool:
    """Whether the next call of a process gives a shard away."""
    for _call_id, call in list(process.session.sent)[:1]:
        if isinstance(call, Multi) and isinstance(call.operations[-1], Delete):
            return True
    return False


def two_hosts(world: ShardWorld, count: int = 8) -> ShardProcess:
    """Start one host after the other; return the first at the moment at which it gives a shard away."""
    world.prepare(count)
    first = world.add()
    world.pass_time(SETTLED_MS)
    world.add()
    for _ in range(100_000):
        if resigns(first):
            return first
        if not [moved for process in world.processes if (moved := world._move(process))]:
            at_us = world._deadline_us()
            assert at_us is not None
            world.now_us = max(world.now_us, at_us)
            for process in world.processes:
                world.feed(process, Tick())
    raise AssertionError("it gives nothing away")


def test_a_connection_that_breaks_while_a_shard_is_given_away_stops_no_sharing() -> None:
    """In `CoordinatorElector._coordinator_read`, leave `_is_handing_over` as it is."""
    world = ShardWorld()
    first = two_hosts(world)
    world.zk.disconnect(first.session)
    world.zk.reconnect(first.session)
    world.pass_time(SETTLED_MS)
    world.assert_shared(8, 4, 4)


def test_a_resignation_that_is_refused_is_tried_again() -> None:
    world = ShardWorld()
    first = two_hosts(world, 2)
    path = next(iter(first.session.sent))[1].operations[-1].path  # type: ignore[union-attr]
    lacking = (EVERYBODY, path.rpartition("/")[0], Right.DELETE)
    world.zk.denied.add(lacking)
    world.pass_time(SETTLED_MS)
    world.assert_shared(2, 2, 0)
    world.zk.denied.discard(lacking)
    world.pass_time(2 * 60_000)
    world.assert_shared(2, 1, 1)


def test_a_host_that_may_not_create_the_list_of_hosts_waits() -> None:
    """In `AllShards._container_created`, register again at once: `ShardWorld.run` never ends."""
    world = ShardWorld()
    world.prepare(2)
    world.zk.perform(Multi((Delete(paths.SHARD_HOSTS),)))
    lacking = (EVERYBODY, paths.SHARDS, Right.CREATE)
    world.zk.denied.add(lacking)
    world.add()
    world.pass_time(SETTLED_MS)
    assert any("CREATE" in text for text in world.warnings), world.warnings
    world.zk.denied.discard(lacking)
    world.pass_time(60_000)
    world.assert_shared(2, 2)


def test_a_broken_connection_is_one_line_whatever_the_number_of_shards() -> None:
    world = ShardWorld()
    world.prepare(8)
    process = world.add()
    world.pass_time(SETTLED_MS)
    world.zk.disconnect(process.session)
    world.run()
    assert len([text for text in world.warnings if "connection to ZooKeeper is lost" in text]) == 1


def elect(world: ShardWorld, shard: Shard, epoch: int) -> bool:
    """Write what a winner of an election writes; return whether it is the leader."""
    session = world.zk.open()
    leader = Create(shard.coordinator, b"{}", ephemeral=True)
    counter = cluster_nodes.encode_counter(epoch)
    node = world.zk.nodes.get(shard.epoch)
    raised = Create(shard.epoch, counter) if node is None else SetContent(shard.epoch, counter, node.version)
    return isinstance(world.zk.perform(Multi((leader, raised, *shard.guards)), session.session_id), Done)


def test_setting_the_number_mends_what_keeps_former_releases_out() -> None:
    """Somebody has removed it, or the nodes of the shards. In `Found.is_whole`, compare only the number."""
    world = ShardWorld()
    world.prepare(2)
    world.zk.perform(Multi((Delete(shards.BARRIER), Delete(paths.COORDINATOR))))
    assert world.set_shards(2) == 2
    assert shards.BARRIER in world.zk.nodes
    for path in sorted((path for path in world.zk.nodes if path.startswith(paths.SHARDS)), reverse=True):
        world.zk.perform(Multi((Delete(path),)))
    world.add()
    world.pass_time(SETTLED_MS)
    assert world.processes[0].led() == set(), "the node of no leader is in the way"
    assert world.set_shards(1) is None
    world.pass_time(60_000)
    world.assert_shared(1, 1)


def test_epochs_grow_although_the_number_was_emptied() -> None:
    """In `Found.highest_epoch`, look only at the present shards: there is one, whose epoch is lower."""
    world = ShardWorld()
    world.prepare(2)
    assert elect(world, shard_now(world, 1), 41)
    world.zk.perform(Multi((SetContent(paths.SHARDS, b""),)))
    world.set_shards(4)
    assert {cluster_nodes.decode_counter("epoch", world.zk.nodes[one.epoch].content) for one in all_now(world)} == {41}


def all_now(world: ShardWorld) -> tuple[Shard, ...]:
    node = world.zk.nodes[paths.SHARDS]
    return shards.decode_number(node.content).all(node.version)


def shard_now(world: ShardWorld, number: int) -> Shard:
    return all_now(world)[number]


def test_a_leader_elected_while_the_number_changes_makes_the_change_fail() -> None:
    """Its epoch was missing when it was read. In `change_shards._raised`, create only the epochs of new shards."""
    world = ShardWorld()
    world.prepare(4)
    shard = shard_now(world, 3)
    world.zk.perform(Multi((Delete(shard.epoch),)))
    client = cast("BlockingZk", Client(world.zk))
    found = change_shards._read(client, 2)
    assert elect(world, shard, 9)
    reply = world.zk.perform(Multi(tuple(change_shards.operations(found, 2))))
    assert isinstance(reply, Refused)
    assert reply.refusal is Refusal.NODE_EXISTS
    assert world.set_shards(2) == 4
    assert shard.coordinator not in world.zk.nodes


def test_the_number_is_set_after_a_sync() -> None:
    """A server that lags may still have the number before, and nothing would be changed. In `_read`, read at once."""
    asked: list[Call] = []

    class Recording(Client):
        def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
            asked.append(call)
            return super().perform(call, expected)

    world = ShardWorld()
    world.prepare(1)
    change_shards.change(cast("BlockingZk", Recording(world.zk)), 2)
    reads = [call for call in asked if isinstance(call, Sync) or call == Get(paths.SHARDS)]
    assert reads == [Sync(paths.CONSUMERS), Get(paths.SHARDS)]


def test_without_the_nodes_of_a_former_shard_the_number_changes() -> None:
    world = ShardWorld()
    world.prepare(4)
    shard = shard_now(world, 3)
    world.zk.perform(Multi((Delete(shard.epoch), Delete(paths.shard(3)))))
    assert world.set_shards(2) == 4
    assert len(all_now(world)) == 2


def test_two_hosts_with_one_broker_id_serve_each_group_once() -> None:
    """Each believes that the shards of this id are its own, whatever its capacity."""
    world = ShardWorld()
    world.prepare(8)
    for capacity in (1, 3, 1):
        process = world.add(capacity)
        process.machine.identity = Identity(min(len(world.processes), 2), "host")
        world.pass_time(SETTLED_MS)
    elected = len(world.led_at)
    world.pass_time(60_000)
    assert len(world.led_at) == elected, "they take shards from each other"
    assert sorted(number for process in world.processes for number in process.led()) == list(range(8))


def forge(world: ShardWorld, count: int, *, is_ephemeral: bool) -> None:
    """Write nodes of hosts that do not run."""
    session = world.zk.open()
    for number in range(count):
        content = shards.encode_host(ShardHost(1_000 + number, "forged", 1))
        node = Create(f"{paths.SHARD_HOSTS}/{1_000 + number}-0", content, ephemeral=is_ephemeral)
        assert isinstance(world.zk.perform(Multi((node,)), session.session_id if is_ephemeral else 0), Done)


def test_nodes_of_no_session_are_no_hosts() -> None:
    """From a copied tree. In `AllShards._decoded`, count them: each delays an election by ten seconds."""
    world = ShardWorld()
    world.prepare(4)
    forge(world, 30, is_ephemeral=False)
    world.add()
    world.pass_time(SETTLED_MS)
    world.assert_shared(4, 4)
    assert any("belongs to no session; it gets no shards" in text for text in world.warnings)


def test_hosts_that_only_seem_to_run_delay_elections_for_a_minute_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `AllShards._share_out`, wait for every host in turn; in `_hosts_listed`, count all: 0.8 s for 5,000."""
    considered: list[int] = []

    def counting(count: int, capacities: Mapping[str, int]) -> dict[int, list[str]]:
        considered.append(len(capacities))
        return table(count, capacities)

    monkeypatch.setattr(all_shards, "table", counting)
    world = ShardWorld()
    world.prepare(4)
    forge(world, 3 * all_shards.MAX_HOSTS, is_ephemeral=True)
    world.add()
    world.pass_time(all_shards.MAX_TURNS * all_shards.PATIENCE_US // 1_000 + SETTLED_MS)
    world.assert_shared(4, 4)
    assert max(considered) <= all_shards.MAX_HOSTS + 1
