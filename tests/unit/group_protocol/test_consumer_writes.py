"""A KIP-848 group stores its state before it answers, and another coordinator resumes from it."""

from __future__ import annotations

from tests.support.group_coordinator import GROUP, REBALANCE_MS, Coordinator
from tests.support.kip848_group import Client, coordinator_with, group_of, newcomer_beside, settle, topics
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.requests import ConsumerGroupDescribeRequest


def newcomer_whose_partitions_are_being_stored() -> tuple[Coordinator, Client]:
    """Return a coordinator, and a member that gets its first partitions at the epoch that it has already."""
    coordinator = coordinator_with({"t": 4})
    a, b = newcomer_beside(coordinator)
    for _ in range(2):
        a.beat()
    b.is_terse = True
    coordinator.stores_at_once = False
    b.send()
    return coordinator, b


def test_an_answer_waits_until_it_is_stored_and_a_successor_goes_on_from_it() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = group_of(coordinator, "a", "b")
    coordinator.stores_at_once = False
    c = Client(coordinator, "c")
    c.send()
    assert coordinator.is_waiting(c.ticket)
    coordinator.crash()
    coordinator.stores_at_once = True
    assert {a.beat(), b.beat()} == {E.NONE}
    assert c.beat() is E.NONE
    settle(coordinator, a, b, c)
    coordinator.crash()
    owned = [client.numbers() for client in (a, b, c)]
    epoch = a.epoch
    settle(coordinator, a, b, c)
    assert [client.numbers() for client in (a, b, c)] == owned
    assert {client.epoch for client in (a, b, c)} == {epoch}


def test_a_revocation_goes_on_at_the_successor_with_its_time_limit() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = newcomer_beside(coordinator)
    a.holds_on = True
    a.beat()
    coordinator.crash()
    for _ in range(REBALANCE_MS // 10_000):
        assert a.beat() is E.NONE
        b.beat()
        assert b.numbers() == []
        coordinator.pass_time(10_000)
    assert a.beat() is E.UNKNOWN_MEMBER_ID


def test_topics_that_changed_while_nobody_served_the_group_are_noticed() -> None:
    coordinator = coordinator_with({"t": 1})
    (a,) = group_of(coordinator, "a")
    coordinator.topics_read = topics({"t": 3})
    coordinator.crash()
    settle(coordinator, a)
    assert a.numbers() == [0, 1, 2]


def test_a_storm_of_joins_is_two_targets_and_two_writes() -> None:
    coordinator = coordinator_with({"t": 100})
    coordinator.stores_at_once = False
    clients = [Client(coordinator, f"m{number:02}") for number in range(50)]
    for client in clients:
        client.send()
    assert len(coordinator.writes) == 1
    coordinator.finish_writes()
    coordinator.send(ConsumerGroupDescribeRequest((GROUP,)))
    assert coordinator.writes == []  # a large group pauses between two writes
    coordinator.pass_time(5)
    assert len(coordinator.writes) == 1
    coordinator.finish_writes()
    assert {client.receive() for client in clients} == {E.NONE}
    assert {client.epoch for client in clients[1:]} == {50}


def test_a_write_that_fails_is_told_tried_again_and_the_members_hear_what_they_missed() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = group_of(coordinator, "a", "b")
    b.beat(-1)
    coordinator.stores_at_once = False
    a.send()
    coordinator.finish_writes(E.COORDINATOR_NOT_AVAILABLE)
    assert a.receive() is E.COORDINATOR_NOT_AVAILABLE
    coordinator.stores_at_once = True
    coordinator.pass_time(2_000)
    a.beat()
    assert a.numbers() == [0, 1, 2, 3]
    coordinator.crash()
    assert a.beat() is E.NONE


def test_partitions_that_came_with_a_write_that_failed_are_told_at_the_next_heartbeat() -> None:
    coordinator, b = newcomer_whose_partitions_are_being_stored()
    coordinator.finish_writes(E.COORDINATOR_NOT_AVAILABLE)
    b.receive()
    coordinator.stores_at_once = True
    coordinator.pass_time(2_000)
    b.beat()
    assert len(b.numbers()) == 2


def test_a_heartbeat_that_changes_nothing_is_answered_while_a_write_is_under_way() -> None:
    coordinator = coordinator_with({"t": 4})
    (a,) = group_of(coordinator, "a")
    b = Client(coordinator, "b", instance_id="pod")
    settle(coordinator, a, b)
    coordinator.stores_at_once = False
    b.send(-2)
    assert coordinator.is_waiting(b.ticket)
    assert a.beat() is E.NONE


def test_a_position_that_was_stored_but_not_told_is_told_by_the_successor() -> None:
    coordinator, b = newcomer_whose_partitions_are_being_stored()
    coordinator.crash(writes_arrived=True)
    coordinator.stores_at_once = True
    b.beat()
    assert len(b.numbers()) == 2


def test_what_could_not_be_stored_is_stored_a_second_later_without_anybody_asking() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = group_of(coordinator, "a", "b")
    epoch = a.epoch
    coordinator.stores_at_once = False
    b.send(-1)
    coordinator.finish_writes(E.COORDINATOR_NOT_AVAILABLE)
    assert coordinator.generation() == epoch
    coordinator.stores_at_once = True
    coordinator.pass_time(1_000)
    assert coordinator.generation() == epoch + 1


def test_a_heartbeat_that_waits_while_its_member_leaves_is_told_so() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = group_of(coordinator, "a", "b")
    coordinator.stores_at_once = False
    c = Client(coordinator, "c")
    c.send()
    waiting = a.send()
    b.send(-1)
    a.send(-1)
    coordinator.finish_writes()
    a.ticket = waiting
    assert a.receive() is E.UNKNOWN_MEMBER_ID


def test_what_a_member_gets_is_told_also_if_it_reports_nothing() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = newcomer_beside(coordinator)
    for _ in range(2):
        a.beat()
    b.is_terse = True
    b.beat()
    assert len(b.numbers()) == 2
