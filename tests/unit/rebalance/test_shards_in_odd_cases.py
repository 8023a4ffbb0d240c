"""Shards of groups: invalid and missing nodes, missing rights, withheld watch events, and orders at bad moments."""

from __future__ import annotations

import pytest

from tests.support.shard_world import ShardWorld
from tests.support.zk_model import Right
from zkrebalancer.protocol import cluster_nodes, paths, shards
from zkrebalancer.protocol.calls import Connected, Create, Delete, Multi, SetContent
from zkrebalancer.protocol.shards import WHOLE, Number, Shard
from zkrebalancer.rebalance.all_shards import GATHER_US
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.effects import ShutDown, Tick
from zkrebalancer.rebalance.election import LOOK_INTERVAL_US

SETTLED_MS = 5_000
EVERYBODY = ""


def running(shard_count: int, *capacities: int) -> ShardWorld:
    """Return processes that have started one after the other and share the shards."""
    world = ShardWorld()
    world.prepare(shard_count, groups=4)
    for capacity in capacities:
        world.add(capacity)
        world.pass_time(SETTLED_MS)
    return world


def test_a_host_of_more_capacity_gets_more_when_it_joins() -> None:
    """In `AllShards._share_out`, take the capacity of all others as 1."""
    running(8, 1, 3).assert_shared(8, 2, 6)


def test_without_the_right_to_read_the_number_it_is_tried_again_soon() -> None:
    """In `AllShards._number_read`, do not retry."""
    world = running(2)
    lacking = (EVERYBODY, paths.SHARDS, Right.READ)
    world.zk.denied.add(lacking)
    world.add()
    world.pass_time(1_000)
    assert world.processes[0].led() == set()
    world.zk.denied.discard(lacking)
    world.pass_time(SETTLED_MS)
    world.assert_shared(2, 2)


def test_the_shards_of_a_dead_host_have_leaders_at_once() -> None:
    world = running(8, 1, 1)
    world.kill(world.processes[0])
    world.run()
    world.assert_shared(8, 0, 8)


def test_nobody_waits_any_longer_for_a_host_that_has_gone() -> None:
    """In `CoordinatorElector.be_patient`, look later."""
    world = running(4, 1)
    lazy = world.zk.open()  # it leads nothing
    content = shards.encode_host(shards.ShardHost(99, "lazy", 1))
    world.zk.perform(Multi((Create(f"{paths.SHARD_HOSTS}/99-1", content, ephemeral=True),)), lazy.session_id)
    world.pass_time(SETTLED_MS)
    assert len(world.processes[0].led()) == 3
    world.zk.end(lazy)
    world.run()
    world.assert_shared(4, 4)


def test_new_leaders_count_on_although_an_epoch_is_invalid() -> None:
    """In `Found.highest_epoch`, pass over it."""
    world = running(2)
    world.zk.perform(Multi((SetContent(Shard(1, 2).epoch, b"many"),)))
    changed_at = world.zk.nodes[Shard(1, 2).epoch].modified_zxid
    world.set_shards(3)
    assert cluster_nodes.decode_counter("epoch", world.zk.nodes[Shard(0, 3).epoch].content) >= changed_at > 0


def test_the_only_leader_stays_when_the_same_number_is_written_again() -> None:
    """In `AllShards._number_read`, leave out `is_same`."""
    world = running(2)
    world.set_shards(1)
    world.add()
    world.pass_time(SETTLED_MS)
    elected = list(world.led_at)
    world.zk.perform(Multi((SetContent(paths.SHARDS, shards.encode_number(Number(1, 7))),)))
    world.pass_time(SETTLED_MS)
    assert world.led_at == elected


@pytest.mark.parametrize("is_known", [False, True])
def test_a_host_stops_although_the_number_changes_meanwhile(is_known: bool) -> None:
    """In `AllShards._shut_down`, forget nothing; in `AllShards._read_number`, read while stopping."""
    world = running(4, 1)
    process = world.processes[0]
    if is_known:
        world.set_shards(2)
        while not process.session.sent:  # until it reads the number
            world.feed(process, process.session.take())
        world.feed(process, ShutDown())
    else:
        world.feed(process, ShutDown())
        world.set_shards(2)
    world.run()
    assert not process.alive


def test_a_number_whose_watch_event_is_withheld_is_found_later() -> None:
    """In `AllShards._number_read`, do not look again."""
    world = running(4, 1)
    world.pass_time(LOOK_INTERVAL_US // 1_000)  # it has looked before
    world.set_shards(2)
    world.processes[0].session.inbox.clear()
    world.pass_time(LOOK_INTERVAL_US // 1_000 + SETTLED_MS)
    world.assert_shared(2, 2)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"version": 2}', b'{"version":1,"brokerid":9,"host":"h","capacity":0}']
)
def test_an_invalid_host_gets_no_shards(content: bytes) -> None:
    """In `AllShards._decoded`, raise."""
    world = running(4, 1)
    world.zk.perform(Multi((Create(f"{paths.SHARD_HOSTS}/9-9", content),)))
    world.pass_time(SETTLED_MS)
    world.assert_shared(4, 4)
    assert any("it gets no shards" in text for text in world.warnings)


def test_timers_do_nothing_while_the_connection_is_broken() -> None:
    """In `AllShards._end_session`, keep the timer of the next try to register."""
    world = running(2)
    lacking = (EVERYBODY, paths.SHARD_HOSTS, Right.CREATE)
    world.zk.denied.add(lacking)
    process = world.add()
    world.pass_time(1_000)
    world.zk.disconnect(process.session)
    world.pass_time(SETTLED_MS)
    world.zk.denied.discard(lacking)
    world.zk.reconnect(process.session)
    world.pass_time(SETTLED_MS)
    world.assert_shared(2, 2)


def test_the_missing_nodes_of_a_shard_are_created_and_epochs_grow() -> None:
    """In `CoordinatorElector._create`, leave out the shard's node, or begin with epoch 0."""
    world = running(1)
    world.zk.perform(Multi((Create(WHOLE.epoch, cluster_nodes.encode_counter(30)),)))
    world.set_shards(2)
    shard = Shard(1, 2)
    world.zk.perform(Multi((Delete(shard.epoch), Delete(paths.shard(1)))))
    world.add()
    world.pass_time(SETTLED_MS)
    world.assert_shared(2, 2)
    assert [one.coordinator_elector.epoch for one in world.processes[0].leading()] == [31, 31]


def test_after_a_change_of_the_number_each_shard_has_one_election() -> None:
    """All hosts have registered before one stands for election. In `AllShards._become`, list the hosts at once."""
    world = running(1, 1, 1, 1)
    begin = len(world.led_at)
    world.set_shards(8)
    slow = world.processes[2]
    inbox, slow.session.inbox = slow.session.inbox, type(slow.session.inbox)()
    world.pass_time(GATHER_US // 2_000)  # the others know of the change earlier
    slow.session.inbox.extend(inbox)
    world.pass_time(SETTLED_MS)
    assert [kind for _at_us, kind, _shard in world.led_at[begin:]].count("leader_elected") == 8


def test_a_host_that_joins_does_not_make_the_others_read_everything_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `AllShards._share_out`, tell the machines of the session each time."""
    world = running(4, 1)
    told: list[Coordinator] = []
    connected = Coordinator._connected

    def count(self: Coordinator, event: Connected) -> None:
        told.append(self)
        connected(self, event)

    monkeypatch.setattr(Coordinator, "_connected", count)
    world.add()
    world.pass_time(SETTLED_MS)
    world.assert_shared(4, 2, 2)
    assert not set(told) & set(world.processes[0].machine.machines)


@pytest.mark.parametrize("first", [0, 1])
def test_the_timer_that_was_due_first_runs_first(first: int) -> None:
    """Otherwise the timers of one shard could wait for ever. In `AllShards._run_due`, take them by shard."""
    world = running(2, 1)
    process = world.processes[0]
    ran: list[int] = []
    for shard, machine in enumerate(process.machine.machines):
        at_us = world.now_us + (1 if shard == first else 2)
        machine.scheduler.part("/test").wake("test", at_us, ran.append, shard)
    process.machine._feed(Tick(), process.machine.machines)  # only a step sets timers
    world.now_us += 3
    world.feed(process, Tick())
    assert ran == [first]
