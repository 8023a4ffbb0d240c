"""Central groups: targets come from outside, and what members hold is reported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.central_group import Outside
from tests.support.classic_consumer import NEWCOMER, ClassicConsumer, subscription
from tests.support.group_coordinator import GROUP, SESSION_MS, Coordinator
from tests.support.kip848_group import Client, coordinator_with, described, topics
from zkrebalancer.group_protocol.answers import JoinGroupAnswer
from zkrebalancer.group_protocol.central import MAX_REST_MS
from zkrebalancer.group_protocol.consumer_group import ConsumerGroup, Turn
from zkrebalancer.group_protocol.effects import Targeted
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.requests import JoinGroupProtocol, JoinGroupRequest
from zkrebalancer.group_protocol.settings import GroupProtocolSettings

CENTRAL = GroupProtocolSettings(assigns_centrally=True)
QUICK = GroupProtocolSettings(assigns_centrally=True, consumer_heartbeat_interval_ms=1_000)
EVERYTHING = [0, 1, 2, 3]
Member = ClassicConsumer | Client


def central_group(settings: GroupProtocolSettings = CENTRAL) -> tuple[Coordinator, Outside]:
    coordinator = coordinator_with({"t": 4}, settings)
    return coordinator, Outside(coordinator)


def run(outside: Outside, *members: Member, rounds: int = 40) -> None:
    """Let members act while the rebalancer shares the partitions out."""
    for _ in range(rounds):
        for member in members:
            member.act()
            outside.share(4)
        owned = all_owned(*members)
        assert len(owned) == len(set(owned)), "two owners"
        outside.coordinator.pass_time(100)


def all_owned(*members: Member) -> list[int]:
    return sorted(number for member in members for number in member.numbers())


def held(outside: Outside, name: str) -> list[int]:
    return sorted(number for _topic, number in outside.coordinator.standings[name].held)


def test_a_newcomer_gets_what_it_is_given_and_no_more() -> None:
    coordinator, outside = central_group()
    a = Client(coordinator, "a")
    assert a.beat() is E.NONE
    assert a.numbers() == []
    assert a.interval_ms == CENTRAL.consumer_urgent_heartbeat_interval_ms  # until it was given something
    outside.advance()
    outside.start("a", 1, 2)
    assert held(outside, "a") == []
    a.beat()
    assert a.numbers() == [1, 2] == held(outside, "a")
    coordinator.pass_time(CENTRAL.consumer_heartbeat_interval_ms)
    a.beat()
    assert a.interval_ms == CENTRAL.consumer_heartbeat_interval_ms


def test_what_was_given_up_reaches_its_next_owner_soon() -> None:
    """A newcomer gets its share piece by piece; it must not go back to long intervals after the first one."""
    coordinator, outside = central_group()
    a = Client(coordinator, "a")
    run(outside, a, rounds=80)
    b = Client(coordinator, "b")
    assert a.interval_ms == CENTRAL.consumer_heartbeat_interval_ms
    b.beat()
    outside.advance()
    outside.stop("a", 0)
    a.beat()
    assert (a.numbers(), a.interval_ms) == ([1, 2, 3], CENTRAL.consumer_urgent_heartbeat_interval_ms)
    a.beat()  # it reports that it let go
    outside.advance()
    outside.start("b", 0)
    b.beat()
    assert (b.numbers(), b.interval_ms) == ([0], CENTRAL.consumer_urgent_heartbeat_interval_ms)
    for client in (a, b):
        client.beat()
        assert client.interval_ms == CENTRAL.consumer_urgent_heartbeat_interval_ms
    coordinator.pass_time(CENTRAL.consumer_heartbeat_interval_ms)
    for client in (a, b):
        client.beat()
        assert client.interval_ms == CENTRAL.consumer_heartbeat_interval_ms


def test_a_client_gets_no_partition_that_does_not_exist() -> None:
    """In `target_of`, allow one more than there are."""
    coordinator, outside = central_group()
    a = Client(coordinator, "a")
    a.beat()
    outside.advance()
    outside.start("a", 3, 4)
    a.beat()
    assert a.numbers() == [3]


def test_what_a_client_has_of_a_topic_that_is_deleted_is_taken_from_it_also_after_a_restart() -> None:
    """In `target_of`, keep what was stored as it is."""
    coordinator, outside = central_group()
    a = Client(coordinator, "a")
    run(outside, a)
    coordinator.crash()
    coordinator.step(topics({"another": 1}, first_id=2))
    a.beat()
    assert a.numbers() == []


def test_a_stop_is_reported_when_the_client_has_let_go() -> None:
    coordinator, outside = central_group()
    a = Client(coordinator, "a")
    a.beat()
    outside.advance()
    outside.start("a", 0, 1)
    a.beat()
    a.holds_on = True
    outside.stop("a", 1)
    a.beat()
    a.beat()
    assert held(outside, "a") == [0, 1]
    a.holds_on, a.owned = False, a.wanted
    coordinator.stores_at_once = False
    a.send()
    assert held(outside, "a") == [0, 1]  # not yet stored
    coordinator.finish_writes()
    assert held(outside, "a") == [0]


def test_others_are_not_concerned() -> None:
    coordinator, outside = central_group()
    members: list[Member] = [Client(coordinator, "a"), *(ClassicConsumer(coordinator, name) for name in "bc")]
    run(outside, *members)
    assert all_owned(*members) == EVERYTHING
    assert described(coordinator).group_state == "Stable"
    a, b, c = members
    assert isinstance(a, Client)
    assert isinstance(b, ClassicConsumer)
    assert isinstance(c, ClassicConsumer)
    epochs = [a.epoch, b.generation]
    (number,) = c.owned
    outside.stop(c.member_id, number)
    assert [a.beat(), coordinator.heartbeat(b.member_id, b.generation)] == [E.NONE, E.NONE]
    assert coordinator.heartbeat(c.member_id, c.generation) is E.REBALANCE_IN_PROGRESS
    assert [a.epoch, b.generation] == epochs
    assert coordinator.commit(b.member_id, b.generation) is E.NONE


def test_a_classic_newcomer_joins_once() -> None:
    coordinator, outside = central_group()
    ticket = coordinator.join(protocols=NEWCOMER)
    assert coordinator.is_waiting(ticket)
    outside.share(4)
    answer = coordinator.joined(ticket)
    assert (answer.error_code, answer.leader) == (E.NONE, "")
    synced = coordinator.synced(coordinator.sync(answer.member_id, answer.generation_id))
    assert synced.error_code is E.NONE
    assert held(outside, answer.member_id) == EVERYTHING
    assert coordinator.heartbeat(answer.member_id, answer.generation_id) is E.NONE


class Counted(dict[str, Turn]):
    """Counts how often all joins that are held are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[str]:
        self.looks += 1
        return super().__iter__()


def test_heartbeats_that_change_nothing_do_not_look_at_all_held_joins() -> None:
    """In `due_joins`, look each time: a thousand members that wait for a thousand others would be quadratic."""
    coordinator, outside = central_group()
    a = Client(coordinator, "a")
    run(outside, a)
    ticket = coordinator.join(protocols=NEWCOMER)
    a.holds_on = True
    outside.stop("a", 0)
    a.beat()
    group = coordinator.machine._groups[GROUP]
    assert isinstance(group, ConsumerGroup)
    assert group.central is not None
    group.central._joins = joins = Counted(group.central._joins)
    for _ in range(20):
        a.beat()
    assert (joins.looks, coordinator.is_waiting(ticket)) == (0, True)
    a.holds_on, a.owned = False, a.wanted
    outside.share(4)
    a.beat()
    assert joins.looks > 0


def test_a_classic_client_that_needs_an_id_first_begins_a_group() -> None:
    coordinator, outside = central_group()
    a = ClassicConsumer(coordinator, "a")
    run(outside, a)
    assert sorted(a.owned) == EVERYTHING


def test_a_fenced_member_that_does_not_know_it_is_told() -> None:
    coordinator, _outside = central_group()
    protocols = (JoinGroupProtocol("range", subscription(frozenset({1}))),)
    assert coordinator.join_error(coordinator.join("was-here", protocols)) is E.UNKNOWN_MEMBER_ID


def test_a_classic_newcomer_waits_until_what_it_gets_is_free() -> None:
    coordinator, outside = central_group()
    a = Client(coordinator, "a")
    run(outside, a)
    assert a.numbers() == EVERYTHING
    ticket = coordinator.join(protocols=NEWCOMER)
    for _ in range(10):
        assert coordinator.is_waiting(ticket)
        if sum(map(len, outside.stopping.values())):
            break
        outside.share(4)
    for _ in range(3):
        a.beat()
        outside.share(4)
    answer = coordinator.joined(ticket)
    assert len(held(outside, answer.member_id)) == 2


def half_given() -> tuple[Coordinator, Outside, Client, int, str]:
    """Return a classic newcomer's held join; it was given what one of two members gave up, the other has yet to."""
    coordinator, outside = central_group(QUICK)
    a, b = (Client(coordinator, name) for name in "ab")
    return coordinator, outside, b, *join_between(coordinator, outside, a, b)


def join_between(coordinator: Coordinator, outside: Outside, a: Client, b: Member) -> tuple[int, str]:
    run(outside, a, b)
    ticket = coordinator.join(protocols=NEWCOMER)
    before = set(outside.owners)
    outside.advance()
    (member_id,) = set(outside.owners) - before
    given_up = a.numbers()[0]
    outside.stop("a", given_up)
    outside.stop(b.name if isinstance(b, Client) else b.member_id, all_owned(b)[0])
    a.beat()
    a.beat()
    outside.advance()
    assert coordinator.is_waiting(ticket)
    outside.start(member_id, given_up)
    assert coordinator.is_waiting(ticket)
    return ticket, member_id


def test_a_classic_newcomer_joins_with_all_that_others_give_up_for_it() -> None:
    """The rest would cost it one more join, of which it would learn only with a heartbeat.

    In `CentralTargets.due_joins`, go on expecting its first share: all would send short heartbeats meanwhile.
    """
    coordinator, outside, b, ticket, member_id = half_given()
    b.beat()
    b.beat()
    outside.advance()
    assert coordinator.is_waiting(ticket), "what was just given up is on its way"
    outside.start(member_id, 1)
    coordinator.joined(ticket)
    assert held(outside, member_id) == [0, 1]
    (group,) = coordinator.machine._groups.values()
    assert isinstance(group, ConsumerGroup)
    assert group.central is not None
    assert not group.central._newcomers


@pytest.mark.parametrize(("is_told", "within_ms"), [(True, QUICK.consumer_heartbeat_interval_ms), (False, MAX_REST_MS)])
def test_a_classic_newcomer_does_not_wait_for_a_slow_member(within_ms: int, *, is_told: bool) -> None:
    coordinator, outside, b, ticket, member_id = half_given()
    b.holds_on = True
    if is_told:
        b.beat()
    coordinator.pass_time(within_ms - 1)
    assert coordinator.is_waiting(ticket)
    coordinator.pass_time(1)
    coordinator.joined(ticket)
    assert held(outside, member_id) == [0]


@pytest.mark.parametrize("kind", [Client, ClassicConsumer])
def test_a_classic_newcomer_waits_for_a_member_that_was_late_until_it_knows(kind: type[Member]) -> None:
    """In `_stored`, or in `_call_to_join`, do not look at held joins again: it would wait for MAX_REST_MS."""
    coordinator, outside = central_group(QUICK)
    a, b = Client(coordinator, "a"), kind(coordinator, "b")
    ticket, member_id = join_between(coordinator, outside, a, b)
    coordinator.pass_time(QUICK.consumer_heartbeat_interval_ms + 1)
    assert coordinator.is_waiting(ticket)
    if isinstance(b, Client):
        b.holds_on = True
    b.act()
    assert coordinator.joined(ticket).error_code is E.NONE
    assert len(held(outside, member_id)) == 1


def test_a_classic_newcomer_does_not_wait_for_what_nobody_here_gets() -> None:
    """An agent may get it, for example."""
    coordinator, _outside, b, ticket, _member_id = half_given()
    b.beat()
    b.beat()
    coordinator.pass_time(QUICK.consumer_heartbeat_interval_ms - 1)
    assert coordinator.is_waiting(ticket)
    coordinator.pass_time(1)
    coordinator.joined(ticket)


def test_a_classic_newcomer_that_is_given_nothing_is_answered_within_its_session() -> None:
    coordinator, _outside = central_group()
    ticket = coordinator.join(protocols=NEWCOMER)
    coordinator.pass_time(SESSION_MS * 3 // 4 - 1)
    assert coordinator.is_waiting(ticket)
    coordinator.pass_time(1)
    answer = coordinator.joined(ticket)
    assert coordinator.synced(coordinator.sync(answer.member_id, answer.generation_id)).error_code is E.NONE
    assert coordinator.heartbeat(answer.member_id, answer.generation_id) is E.NONE


@pytest.mark.parametrize("how", ["again", "session", "elsewhere"])
def test_a_join_that_waits_is_answered_once(how: str) -> None:
    coordinator, outside = central_group()
    first = coordinator.join(protocols=NEWCOMER)
    outside.advance()
    (member_id,) = outside.owners
    if how == "again":
        second = coordinator.join(member_id, NEWCOMER)
        assert coordinator.join_error(first) is E.REBALANCE_IN_PROGRESS
        assert coordinator.is_waiting(second)
    elif how == "session":
        coordinator.leave(member_id)
        assert coordinator.join_error(first) is E.UNKNOWN_MEMBER_ID
    else:
        coordinator.lose_buckets()
        assert coordinator.join_error(first) is E.NOT_COORDINATOR


def test_what_cannot_be_is_not_given() -> None:
    coordinator, outside = central_group()
    a = Client(coordinator, "a")
    a.beat()
    coordinator.step(Targeted(GROUP, "a", 1, frozenset({("t", 0), ("t", 9), ("other", 0)})))
    a.beat()
    assert a.numbers() == [0]
    assert held(outside, "a") == [0]
    coordinator.topics_read = topics({"t": 10})
    coordinator.step(coordinator.topics_read)
    a.beat()
    assert a.numbers() == [0, 9]
    coordinator.step(Targeted(GROUP, "nobody", 1, frozenset()))
    coordinator.step(Targeted("none", "nobody", 1, frozenset()))


def test_a_successor_leaves_members_what_they_have_until_it_hears_more() -> None:
    coordinator, outside = central_group()
    a = Client(coordinator, "a")
    run(outside, a)
    coordinator.standings = {}
    coordinator.crash()
    assert held(outside, "a") == EVERYTHING
    a.beat()
    assert a.numbers() == EVERYTHING
    coordinator.step(Targeted(GROUP, "a", 1, frozenset({("t", 3)})))
    a.beat()
    a.beat()
    assert held(outside, "a") == [3]


def test_a_classic_group_becomes_central_with_its_next_join() -> None:
    coordinator = coordinator_with({"t": 4})
    a = ClassicConsumer(coordinator, "a")
    for _ in range(10):
        a.act()
        coordinator.pass_time(1_000)
    assert sorted(a.owned) == EVERYTHING
    coordinator.settings = CENTRAL
    coordinator.crash()
    a.act()
    assert coordinator.state() == "Stable"
    b = Client(coordinator, "b")
    b.beat()
    outside = Outside(coordinator)
    outside.advance()
    assert held(outside, a.member_id) == EVERYTHING
    for name in outside.owners:
        outside.target(name)
    run(outside, a, b)
    assert all_owned(a, b) == EVERYTHING


def test_a_classic_group_without_members_becomes_central() -> None:
    coordinator = coordinator_with({"t": 4})
    ids = coordinator.stable("a")
    coordinator.leave(ids["a"])
    generation = coordinator.generation()
    coordinator.settings = CENTRAL
    coordinator.crash()
    a = ClassicConsumer(coordinator, "a")
    run(Outside(coordinator), a)
    assert sorted(a.owned) == EVERYTHING
    assert a.generation > generation


def test_the_last_client_of_kip_848_goes_and_the_group_stays_central() -> None:
    coordinator, outside = central_group()
    a, b = Client(coordinator, "a"), ClassicConsumer(coordinator, "b")
    run(outside, a, b)
    a.send(-1)
    run(outside, b)
    assert sorted(b.owned) == EVERYTHING
    assert described(coordinator).group_state == "Stable"


def test_other_protocol_types_have_a_leader() -> None:
    coordinator, _outside = central_group()
    ticket = coordinator.join(protocol_type="connect")
    coordinator.pass_time(3_000)
    assert coordinator.joined(ticket).leader == coordinator.joined(ticket).member_id


def test_a_name_that_no_consumer_group_can_have_is_refused() -> None:
    coordinator, _outside = central_group()
    assert coordinator.join_error(coordinator.join(protocols=NEWCOMER, group="a/b")) is E.INVALID_GROUP_ID


def test_nobody_joins_before_the_topics_are_known() -> None:
    coordinator = Coordinator(CENTRAL)
    request = JoinGroupRequest(GROUP, "", SESSION_MS, "consumer", NEWCOMER)
    assert coordinator.ask(request, JoinGroupAnswer, 3).error_code is E.COORDINATOR_LOAD_IN_PROGRESS


def test_a_static_member_that_comes_back_has_what_it_had() -> None:
    coordinator, outside = central_group()
    a, b = Client(coordinator, "a", instance_id="pod"), Client(coordinator, "b")
    run(outside, a, b)
    before = a.numbers()
    a.send(-2)
    again = Client(coordinator, "a2", instance_id="pod")
    assert again.beat() is E.NONE
    assert again.numbers() == before
    assert coordinator.standings["a2"].instance_id == "pod"
