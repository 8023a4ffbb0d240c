"""A KIP-848 group: partitions move from member to member, and nobody has what another still reports."""

from __future__ import annotations

import pytest

from tests.support.group_coordinator import GROUP, REBALANCE_MS, Coordinator
from tests.support.kip848_group import (
    Client,
    T,
    coordinator_with,
    described,
    group_of,
    newcomer_beside,
    settle,
    topic_id,
    topics,
)
from zkrebalancer.group_protocol.answers import ConsumerGroupHeartbeatAnswer
from zkrebalancer.group_protocol.assignors import ASSIGNORS
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.machine import Machine
from zkrebalancer.group_protocol.settings import GroupProtocolSettings

SESSION_MS = GroupProtocolSettings().consumer_session_timeout_ms
INTERVAL_MS = GroupProtocolSettings().consumer_heartbeat_interval_ms


def test_the_first_member_gets_everything_at_once() -> None:
    coordinator = coordinator_with({"t": 4})
    client = Client(coordinator, "a")
    assert client.beat() is E.NONE
    assert (client.epoch, client.numbers(), client.interval_ms) == (1, [0, 1, 2, 3], INTERVAL_MS)


def test_a_newcomer_gets_partitions_once_they_are_no_longer_reported() -> None:
    coordinator = coordinator_with({"t": 4})
    (a,) = group_of(coordinator, "a")
    b = Client(coordinator, "b")
    a.holds_on = True
    b.beat()
    assert (b.epoch, b.numbers()) == (2, [])
    a.beat()
    assert (a.epoch, len(a.wanted), len(a.numbers())) == (1, 2, 4)  # told to give up two, at its old epoch
    b.beat()
    assert b.numbers() == []
    a.beat()
    assert a.epoch == 1
    a.holds_on = False
    a.owned = a.wanted
    a.beat()
    assert a.epoch == 2
    b.beat()
    assert sorted([*a.numbers(), *b.numbers()]) == [0, 1, 2, 3]
    assert described(coordinator).group_state == "Stable"


def test_heartbeats_are_asked_for_more_often_while_something_is_pending() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = newcomer_beside(coordinator)
    assert b.interval_ms == GroupProtocolSettings().consumer_urgent_heartbeat_interval_ms
    settle(coordinator, a, b)
    assert a.interval_ms == b.interval_ms == INTERVAL_MS


def test_members_whose_partitions_stay_only_get_a_new_epoch() -> None:
    coordinator = coordinator_with({"t": 3})
    a, b, c = group_of(coordinator, "a", "b", "c")
    before = (a.numbers(), b.numbers())
    d = Client(coordinator, "d")
    d.beat()
    a.send()
    assert coordinator.answer(a.ticket, ConsumerGroupHeartbeatAnswer).assignment is None
    a.receive()
    settle(coordinator, a, b, c, d)
    assert (a.numbers(), b.numbers()) == before


def test_a_member_that_leaves_frees_its_partitions_at_once() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = group_of(coordinator, "a", "b")
    assert b.beat(-1) is E.NONE
    a.beat()
    assert a.numbers() == [0, 1, 2, 3]
    assert b.beat(b.epoch) is E.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_fenced_after_its_session_and_a_heartbeat_renews_it() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = group_of(coordinator, "a", "b")
    coordinator.pass_time(SESSION_MS - 1)
    a.beat()
    coordinator.pass_time(1)
    a.beat()
    assert a.numbers() == [0, 1, 2, 3]
    assert b.beat() is E.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_give_up_in_time_is_fenced() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = newcomer_beside(coordinator)
    a.holds_on = True
    a.beat()
    for _ in range(REBALANCE_MS // 10_000):
        assert (a.beat(), b.beat()) == (E.NONE, E.NONE)
        coordinator.pass_time(10_000)
    assert a.beat() is E.UNKNOWN_MEMBER_ID
    b.beat()
    assert b.numbers() == [0, 1, 2, 3]


def test_a_member_that_gave_up_in_time_is_not_fenced_later() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = newcomer_beside(coordinator)
    settle(coordinator, a, b)
    for _ in range(2 * REBALANCE_MS // 10_000):
        assert (a.beat(), b.beat()) == (E.NONE, E.NONE)
        coordinator.pass_time(10_000)


# ---- epochs, and answers that are lost


def test_other_epochs_are_fenced_but_not_the_last_one_of_a_member_that_missed_its_answer() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = group_of(coordinator, "a", "b")
    assert a.beat(a.epoch + 1) is E.FENCED_MEMBER_EPOCH
    a.beat()  # joins again
    settle(coordinator, a, b)
    c = Client(coordinator, "c")
    c.beat()
    before = b.epoch
    lost = b.send()
    assert coordinator.answer(lost, ConsumerGroupHeartbeatAnswer).error_code is E.NONE
    assert b.beat(before) is E.NONE
    assert b.beat(before - 1) is E.FENCED_MEMBER_EPOCH


def test_a_member_that_missed_its_answer_is_told_its_assignment_again() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = group_of(coordinator, "a", "b")
    b.beat(-1)
    a.send()  # gets all, but does not hear of it
    a.beat()
    assert a.numbers() == [0, 1, 2, 3]


def test_a_member_with_its_last_epoch_that_reports_what_it_does_not_have_is_fenced() -> None:
    coordinator = coordinator_with({"t": 4, "u": 1})
    a, _b = group_of(coordinator, "a", "b")
    c = Client(coordinator, "c")
    c.beat()
    a.beat()
    before = a.epoch
    a.send()
    a.owned |= {(topic_id(2), 0)}
    assert a.beat(before - 1) is E.FENCED_MEMBER_EPOCH


def test_a_fenced_member_joins_again_with_its_id_and_gets_its_partitions() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = group_of(coordinator, "a", "b")
    before = a.numbers()
    assert a.beat(99) is E.FENCED_MEMBER_EPOCH
    assert a.numbers() == []
    assert a.beat() is E.NONE
    assert a.numbers() == before
    settle(coordinator, a, b)


# ---- static members


def test_a_static_member_that_left_for_a_while_comes_back_under_another_id_to_what_it_had() -> None:
    coordinator = coordinator_with({"t": 4})
    (a,) = group_of(coordinator, "a")
    b = Client(coordinator, "b", instance_id="pod")
    settle(coordinator, a, b)
    had, epoch = b.numbers(), described(coordinator).group_epoch
    assert b.beat(-2) is E.NONE
    assert described(coordinator).group_state == "Stable"
    a.beat()
    assert len(a.numbers()) == 2
    back = Client(coordinator, "b2", instance_id="pod")
    assert back.beat() is E.NONE
    assert (back.numbers(), described(coordinator).group_epoch) == (had, epoch)
    assert b.beat(epoch) is E.FENCED_INSTANCE_ID
    same = Client(coordinator, "b2", instance_id="pod")
    back.beat(-2)
    assert same.beat() is E.NONE
    assert same.numbers() == had


def test_a_static_member_that_repeats_that_it_goes_for_a_while_gets_the_same_answer() -> None:
    """In `Heartbeat._leave`, move a member that is away: the whole group fails, again with each repeat."""
    coordinator = coordinator_with({"t": 4})
    (a,) = group_of(coordinator, "a")
    b = Client(coordinator, "b", instance_id="pod")
    settle(coordinator, a, b)
    epoch, held = b.epoch, b.owned
    coordinator.stores_at_once = False
    first, again = b.send(-2), b.send(-2)  # before the first one is stored
    coordinator.finish_writes()
    coordinator.stores_at_once = True
    b.send(-2)
    answers = [coordinator.answer(ticket, ConsumerGroupHeartbeatAnswer) for ticket in (first, again, b.ticket)]
    assert {(answer.error_code, answer.member_epoch) for answer in answers} == {(E.NONE, -2)}
    assert b.beat(epoch) is E.FENCED_MEMBER_EPOCH
    assert a.beat() is E.NONE
    back = Client(coordinator, "b2", instance_id="pod")
    assert back.beat() is E.NONE
    assert back.owned == held


def test_a_member_that_is_away_and_returns_without_its_instance_id_leaves_nothing_behind() -> None:
    """In `Heartbeat._joining`, make a new member of the same id: what the former one held is never free again."""
    coordinator = coordinator_with({"t": 4})
    (a,) = group_of(coordinator, "a")
    b = Client(coordinator, "b", instance_id="pod")
    settle(coordinator, a, b)
    b.beat(-2)
    back = Client(coordinator, "b", ("another",))
    settle(coordinator, a, back)
    assert (a.numbers(), back.numbers()) == ([0, 1, 2, 3], [])


def test_a_static_member_that_does_not_come_back_is_out_after_its_session() -> None:
    coordinator = coordinator_with({"t": 4})
    (a,) = group_of(coordinator, "a")
    b = Client(coordinator, "b", instance_id="pod")
    settle(coordinator, a, b)
    b.beat(-2)
    coordinator.pass_time(SESSION_MS - 1)
    a.beat()
    coordinator.pass_time(1)
    a.beat()
    assert a.numbers() == [0, 1, 2, 3]


def test_an_instance_id_that_is_in_use_is_refused() -> None:
    coordinator = coordinator_with({"t": 4})
    a = Client(coordinator, "a", instance_id="pod")
    a.beat()
    assert Client(coordinator, "b", instance_id="pod").beat() is E.UNRELEASED_INSTANCE_ID
    assert Client(coordinator, "a", instance_id="other").beat() is E.FENCED_INSTANCE_ID
    unknown = Client(coordinator, "a", instance_id="x")
    assert unknown.beat(1) is E.UNKNOWN_MEMBER_ID
    assert unknown.beat(-1) is E.UNKNOWN_MEMBER_ID
    assert a.beat() is E.NONE


# ---- subscriptions


def test_a_regular_expression_is_matched_with_whole_names_and_again_when_topics_come_and_go() -> None:
    coordinator = coordinator_with({"t": 1, "t2": 1, "other": 1, "__t": 1})
    client = Client(coordinator, "a", (), regex="t|t2.*")
    client.beat()
    assert {found for found, _number in client.owned} == {topic_id(1), topic_id(2)}
    coordinator.step(topics({"t": 1, "t2": 1, "other": 1, "__t": 1, "t20": 1}))
    settle(coordinator, client)
    assert {found for found, _number in client.owned} == {topic_id(1), topic_id(2), topic_id(5)}
    coordinator.step(topics({"t": 1}))
    settle(coordinator, client)
    assert client.owned == {(T, 0)}


def test_a_regular_expression_matches_internal_topics_as_at_the_broker() -> None:
    coordinator = coordinator_with({"t": 1, "__consumer_offsets": 1})
    client = Client(coordinator, "a", (), regex="__consumer_offsets")
    client.beat()
    assert {found for found, _number in client.owned} == {topic_id(2)}


def test_an_empty_expression_is_none_and_a_wrong_one_is_refused() -> None:
    coordinator = coordinator_with({"t": 1})
    client = Client(coordinator, "a", regex="")
    assert client.beat() is E.NONE
    for wrong in ("(", "a)(b", "[", r"(?=x)"):
        assert Client(coordinator, "b", (), regex=wrong).beat() is E.INVALID_REGULAR_EXPRESSION


def test_new_partitions_are_assigned_and_a_topic_created_again_is_another_one() -> None:
    coordinator = coordinator_with({"t": 1})
    (a,) = group_of(coordinator, "a")
    coordinator.step(topics({"t": 2, "unrelated": 1}))
    settle(coordinator, a)
    assert a.numbers() == [0, 1]
    epoch = a.epoch
    coordinator.step(topics({"t": 2, "unrelated": 9}))
    settle(coordinator, a)
    assert a.epoch == epoch
    coordinator.step(topics({"t": 2}, first_id=7))
    settle(coordinator, a)
    assert {found for found, _number in a.owned} == {topic_id(7)}


def test_a_topic_that_is_not_there_yet_can_be_subscribed_to() -> None:
    coordinator = coordinator_with({})
    client = Client(coordinator, "a")
    assert (client.beat(), client.owned) == (E.NONE, frozenset())
    coordinator.step(topics({"t": 1}))
    settle(coordinator, client)
    assert client.numbers() == [0]


def test_before_the_topics_are_read_members_wait_and_nobody_loses_anything() -> None:
    coordinator = Coordinator()
    client = Client(coordinator, "a")
    assert client.beat() is E.COORDINATOR_LOAD_IN_PROGRESS
    coordinator.topics_read = topics({"t": 4})
    coordinator.step(coordinator.topics_read)
    a, b = client, Client(coordinator, "b")
    settle(coordinator, a, b)
    coordinator.topics_read = None
    coordinator.crash()
    coordinator.pass_time(SESSION_MS)
    coordinator.step(topics({"t": 4}))
    assert described(coordinator).members == ()


# ---- assignors


def test_the_assignor_that_most_ask_for_decides() -> None:
    coordinator = coordinator_with({"t": 4})
    clients = [Client(coordinator, name, assignor="range" if name > "a" else "uniform") for name in "abc"]
    settle(coordinator, *clients)
    assert described(coordinator).assignor_name == "range"
    assert [client.numbers() for client in clients] == [[0, 1], [2], [3]]
    assert Client(coordinator, "d", assignor="mine").beat() is E.UNSUPPORTED_ASSIGNOR


def test_what_an_assignor_may_not_give_is_left_out() -> None:
    coordinator = coordinator_with({"t": 2, "u": 2})
    greedy = frozenset({("t", 0), ("t", 5), ("u", 0), ("nothing", 1)})
    assignors = {**ASSIGNORS, "uniform": lambda members, _topics: dict.fromkeys([*members, "ghost"], greedy)}
    coordinator.machine = Machine(coordinator.settings, assignors)
    coordinator._load()
    coordinator.step(topics({"t": 2, "u": 2}))
    a, b = Client(coordinator, "a"), Client(coordinator, "b")
    settle(coordinator, a, b)
    assert (a.numbers(), b.numbers(), len(a.owned | b.owned)) == ([0], [], 1)
    assert "may not give" in coordinator.reports[-1]


# ---- size, and groups without members


@pytest.mark.parametrize("size", [1, 2])
def test_a_full_group_refuses_newcomers(size: int) -> None:
    coordinator = coordinator_with({"t": 4})
    coordinator.machine = Machine(GroupProtocolSettings(consumer_group_max_size=size))
    coordinator._load()
    codes = [Client(coordinator, name).beat() for name in "abc"[: size + 1]]
    assert codes == [E.NONE] * size + [E.GROUP_MAX_SIZE_REACHED]


def test_a_group_without_members_is_kept_for_a_while_and_any_protocol_may_have_it() -> None:
    coordinator = coordinator_with({"t": 4})
    (a,) = group_of(coordinator, "a")
    a.beat(-1)
    assert described(coordinator).group_state == "Empty"
    ticket = coordinator.join()
    coordinator.pass_time(5_000)
    classic = coordinator.joined(ticket)
    assert classic.generation_id > 2
    coordinator.leave(classic.member_id)
    assert a.beat(0) is E.NONE
    assert a.epoch > classic.generation_id
    a.beat(-1)
    coordinator.pass_time(coordinator.settings.empty_group_retention_ms)
    assert GROUP not in coordinator.kept
    assert coordinator.machine.group_names() == frozenset()


def test_a_group_that_was_empty_for_a_while_is_kept_once_it_has_members() -> None:
    """In `ConsumerGroup._keep_while_empty`, let the time run on: the group ends under its members a week later."""
    settings = GroupProtocolSettings(empty_group_retention_ms=2 * SESSION_MS)
    coordinator = coordinator_with({"t": 4}, settings)
    (a,) = group_of(coordinator, "a")
    a.beat(-1)
    coordinator.pass_time(SESSION_MS)
    (b,) = group_of(coordinator, "b")
    for _ in range(6):
        coordinator.pass_time(SESSION_MS // 2)
        assert b.beat() is E.NONE
    assert described(coordinator).group_state == "Stable"
    b.beat(-1)
    coordinator.pass_time(2 * SESSION_MS)
    assert described(coordinator).error_code is E.GROUP_ID_NOT_FOUND


def test_topics_that_brokers_do_not_list_stay_in_groups_that_are_read() -> None:
    """In `Machine._restore`, do not remember them: a gateway that is restarted takes them from all members."""
    coordinator = coordinator_with({"t": 4, "u": 2})
    client = Client(coordinator, "a")
    settle(coordinator, client)
    coordinator.topics_read = topics({"u": 2}, first_id=2)  # before the groups were read
    coordinator.crash()
    settle(coordinator, client)
    assert client.numbers() == [0, 1, 2, 3]
    coordinator.step(topics({"u": 2}, first_id=2))  # it has found out that they do not exist
    settle(coordinator, client)
    assert client.numbers() == []
