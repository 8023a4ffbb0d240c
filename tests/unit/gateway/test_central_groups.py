"""Clients of a gateway and agents in one group: coordinator, group machine and the gateway's agents together."""

from __future__ import annotations

import random

import pytest

from tests.support.central_world import CentralWorld
from tests.support.classic_consumer import ClassicConsumer
from tests.support.group_coordinator import GROUP, REBALANCE_MS
from tests.support.kip848_group import Client
from zkrebalancer.group_protocol.effects import Fenced, Targeted
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.requests import JoinGroupRequest
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Delete, Multi
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL, GroupSettings

KINDS = ("kip-848", "cooperative", "eager")


@pytest.mark.parametrize("kind", KINDS)
def test_clients_come_and_go(kind: str) -> None:
    world = CentralWorld()
    a = world.add("a", kind)
    world.pass_time(1_500)
    world.assert_shared()
    b = world.add("b", kind)
    world.pass_time(2_000)
    world.assert_shared()
    world.leave(a)
    world.pass_time(2_000)
    world.assert_shared()
    assert len(world.read_by(b)) == 6


@pytest.mark.parametrize("mode", ["incremental", EAGER])
def test_all_kinds_and_an_agent(mode: str) -> None:
    world = CentralWorld(GroupSettings(mode=mode))
    world.world.add_agent("agent")
    for kind in KINDS:
        world.add(kind, kind)
        world.pass_time(3_000)
        world.assert_shared()
    assert len(world.shares()) == 4


def test_a_client_that_dies_gives_its_partitions_up_after_its_session() -> None:
    world = CentralWorld()
    world.world.add_agent("agent")
    a = world.add("a")
    world.pass_time(2_000)
    world.assert_shared()
    world.drop(a)
    world.pass_time(44_000)
    assert len(world.world.owned()) == 2
    world.pass_time(3_000)
    world.assert_shared()


@pytest.mark.parametrize("kind", KINDS)
def test_another_gateway_goes_on_with_what_clients_have(kind: str) -> None:
    world = CentralWorld()
    world.world.add_agent("agent")
    a, b = world.add("a", kind), world.add("b", kind)
    world.pass_time(4_000)
    world.assert_shared()
    before = [world.read_by(client) for client in (a, b)]
    world.restart_gateway(after_ms=3_000)
    assert [world.read_by(client) for client in (a, b)] == before
    world.pass_time(3_000)
    world.assert_shared()
    assert [world.read_by(client) for client in (a, b)] == before


@pytest.mark.parametrize("kind", ["cooperative", "eager"])
def test_only_clients_whose_partitions_change_join_again(kind: str) -> None:
    """At Kafka's brokers, all that stay join again: seven, seven and six of them here."""
    world = CentralWorld(partitions=12)
    first, second, *_ = (world.add(f"c{number}", kind) for number in range(7))
    world.pass_time(6_000)
    world.assert_shared()
    counts = []
    for happens in (lambda: world.add("newcomer", kind), lambda: world.leave(first), lambda: world.drop(second)):
        had = {client.member_id: world.read_by(client) for client in classic(world)}
        asked = set(world.groups.asked)
        happens()
        world.pass_time(15_000)
        world.assert_shared()
        requests = [world.groups.asked[ticket] for ticket in set(world.groups.asked) - asked]
        called = {one.member_id for one in requests if isinstance(one, JoinGroupRequest)} & set(had)
        has = {client.member_id: world.read_by(client) for client in classic(world)}
        assert called == {name for name in set(had) & set(has) if had[name] != has[name]}
        counts.append(len(called))
    assert counts == [1, 2, 2]


def classic(world: CentralWorld) -> list[ClassicConsumer]:
    return [client for client in world.clients if isinstance(client, ClassicConsumer)]


def test_a_client_that_does_not_let_go_is_fenced() -> None:
    world = CentralWorld()
    a = world.add("a")
    world.pass_time(1_500)
    assert isinstance(a, Client)
    a.holds_on = True
    b = world.add("b")
    world.pass_time(REBALANCE_MS - 5_000)
    assert world.read_by(b) == set()
    world.pass_time(10_000)
    world.assert_shared()


def test_an_evicted_client_gives_everything_up_and_joins_anew() -> None:
    world = CentralWorld()
    a = world.add("a")
    world.pass_time(1_500)
    assert len(world.read_by(a)) == 6
    (name,) = world.world.owned()
    world.world.zk.perform(Multi((Delete(paths.ids(GROUP, name)), Delete(paths.owners(GROUP, name)))))
    world.pass_time(60_000)  # it is noticed when the lease is renewed, and what it had waits for its instance
    assert list(world.world.owned()) != [name]
    world.assert_shared()


def test_an_evicted_client_that_does_not_let_go_is_fenced() -> None:
    """In `_fence_if_evicted`, do nothing: an agent starts when the lease is over, and the client reads on."""
    world, a = with_one_that_holds_on()
    (name,) = world.world.owned()
    world.world.add_agent("agent")
    world.world.zk.perform(Multi((Delete(paths.ids(GROUP, name)),)))
    world.pass_time(60_000)
    assert world.is_member(a)
    world.assert_shared()


def test_a_client_that_does_not_let_go_is_fenced_with_its_eviction_if_its_group_is_read_again_before() -> None:
    """Each time, its own time begins anew, and the coordinator's goes on. As above."""
    world, a = with_one_that_holds_on()
    world.world.add_agent("agent")
    for _ in range(4):
        world.pass_time(REBALANCE_MS - 20_000)
        world.break_connection()
        world.groups.crash()
        a.ticket = 0
    world.assert_shared()


def test_a_client_whose_eviction_is_noticed_before_its_group_is_read_is_fenced_then() -> None:
    """In `stand`, do not call `_fence_if_evicted`: the group was not there when it was fenced."""
    world, a = with_one_that_holds_on()
    (name,) = world.world.owned()
    world.world.add_agent("agent")
    world.world.zk.disconnect(world.session.model)
    world.run()
    world.groups.lose_buckets()
    world.world.zk.perform(Multi((Delete(paths.ids(GROUP, name)),)))
    world.world.pass_time(1_000)
    world.world.zk.reconnect(world.session.model)
    world.run()
    world.groups.crash()
    a.ticket = 0
    world.pass_time(60_000)
    world.assert_shared()


def with_one_that_holds_on() -> tuple[CentralWorld, Client]:
    """Return a world with one client, which reads all partitions and will give none up."""
    world = CentralWorld()
    a = world.add("a")
    assert isinstance(a, Client)
    world.pass_time(1_500)
    assert len(world.read_by(a)) == 6
    a.holds_on = True
    return world, a


def test_a_frozen_group_moves_nothing() -> None:
    world = CentralWorld()
    a = world.add("a")
    world.pass_time(1_500)
    world.world.configure(settings.encode(GroupSettings(frozen=True)))
    world.add("b")
    world.pass_time(2_000)
    assert len(world.read_by(a)) == 6
    world.world.configure(settings.encode(GroupSettings()))
    world.pass_time(2_000)
    world.assert_shared()


def test_a_stop_is_over_only_once_the_group_has_heard_of_it() -> None:
    """In `MemberAgent._has_let_go`, look only at what the client has: it may be about to get what is stopped."""
    world, unheard = CentralWorld(), list[Targeted | Fenced]()
    world.add("a")
    world.agents.give = unheard.append
    world.pass_time(1_500)
    assert [len(one.partitions) for one in unheard if isinstance(one, Targeted)] == [6]
    world.world.add_agent("agent")
    world.pass_time(1_500)
    assert sorted(len(share) for share in world.shares()) == [0, 0]
    world.agents.give = world.groups.step
    for targeted in unheard:
        world.groups.step(targeted)
        world.run()
    world.pass_time(2_000)
    world.assert_shared()


@pytest.mark.parametrize("kind", ["kip-848", "classic", "agent"])
def test_a_client_that_takes_an_instance_id_for_its_member_id_is_another_member(kind: str) -> None:
    """In `_instance_id`, leave out the prefix of dynamic members: both evict each other for ever."""
    world = CentralWorld()
    if kind == "agent":
        world.world.add_agent("x", instance_id="x")
    elif kind == "kip-848":
        world.clients.append(Client(world.groups, "some", instance_id="x"))
    else:
        world.clients.append(ClassicConsumer(world.groups, "some", instance="x"))
    world.pass_time(4_000)
    world.add("x")
    world.pass_time(5_000)
    world.assert_shared()
    settled = len(world.world.zk.transactions)
    world.pass_time(10_000)
    assert len(world.world.zk.transactions) - settled < 50


@pytest.mark.parametrize("kind", ["kip-848", "classic"])
def test_a_client_whose_instance_id_an_agent_takes_is_fenced(kind: str) -> None:
    """In `MemberAgent._perform`, tell the group nothing: the client would be registered again, and end the agent."""
    world = CentralWorld()
    if kind == "kip-848":
        client: Client | ClassicConsumer = Client(world.groups, "some", instance_id="x")
    else:
        client = ClassicConsumer(world.groups, "some", instance="x")
    world.clients.append(client)
    world.pass_time(4_000)
    assert len(world.read_by(client)) == 6
    agent = world.world.add_agent("x", instance_id="x")
    for _ in range(50):
        world.pass_time(100 if world.is_member(client) else 0)
    world.drop(client)
    for group_instance_id, error in (("x", ErrorCode.FENCED_INSTANCE_ID), (None, ErrorCode.UNKNOWN_MEMBER_ID)):
        name, epoch = ("some", client.epoch) if isinstance(client, Client) else (client.member_id, client.generation)
        assert world.groups.commit(name, epoch, group_instance_id) is error
        if isinstance(client, ClassicConsumer):
            assert world.groups.heartbeat(name, epoch, group_instance_id) is error
    if isinstance(client, Client):
        assert client.beat() is ErrorCode.FENCED_INSTANCE_ID
    world.pass_time(5_000)
    assert agent.alive
    world.assert_shared()


class Lives:
    """Members that come and go, gateways that die, sessions that break; `CentralWorld.run` checks after each step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        mode = self.random.choice((INCREMENTAL, EAGER))
        strategy = self.random.choice(("sticky", "range", "balanced"))
        self.world = CentralWorld(GroupSettings(mode=mode, strategy=strategy))
        self.born = 0

    def step(self) -> None:
        roll, world = self.random.random(), self.world
        client = self.random.choice(world.clients) if world.clients else None
        if roll < 0.3 and len(world.clients) < 4:
            self.born += 1
            world.add(f"c{self.born}", self.random.choice(KINDS))
        elif roll < 0.4 and client is not None:
            world.drop(client)
        elif roll < 0.5 and client is not None and world.is_member(client):
            world.leave(client)
        elif roll < 0.6:
            world.restart_gateway(self.random.choice((0, 1_000, 7_000)))  # before clients' sessions end
        elif roll < 0.67 and len(world.world.agents) < 2:
            self.born += 1
            world.world.add_agent(f"a{self.born}")
        elif roll < 0.72 and world.world.agents:
            name = self.random.choice(sorted(world.world.agents))
            world.world.kill_agent(world.world.agents.pop(name))
        elif roll < 0.78:
            world.break_connection()
        world.pass_time(self.random.choice((100, 300, 1_000)))


@pytest.mark.parametrize("seed", range(6))
def test_random_lives(seed: int) -> None:
    lives = Lives(seed)
    for _ in range(30):
        lives.step()
    lives.world.pass_time(70_000)  # a client that died is waited for
    if lives.world.shares():
        lives.world.assert_shared()
