"""What the proposal for client-side assignment asks of a coordinator, one test for each of its cases."""

from __future__ import annotations

import pytest

from tests.support.classic_consumer import NEWCOMER
from tests.support.group_coordinator import DELAY_MS, RANGE, REBALANCE_MS, SESSION_MS, Coordinator
from tests.support.kip848_group import Client, coordinator_with
from zkrebalancer.group_protocol.consumer_protocol import write_assignment
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.requests import JoinGroupProtocol
from zkrebalancer.group_protocol.settings import GroupProtocolSettings

ROUND_ROBIN = JoinGroupProtocol("round-robin", b"metadata")


def test_subscriptions_may_differ_and_the_leader_sees_each() -> None:
    coordinator = Coordinator()
    tickets = {topic: coordinator.join(protocols=(JoinGroupProtocol("range", topic),)) for topic in (b"t", b"u")}
    coordinator.pass_time(3 * DELAY_MS)
    (leader,) = [answer for answer in map(coordinator.joined, tickets.values()) if answer.members]
    seen = {member.member_id: member.metadata for member in leader.members}
    assert seen == {coordinator.joined(ticket).member_id: topic for topic, ticket in tickets.items()}


def test_a_rolling_upgrade_changes_the_strategy_once_all_members_have_the_new_one() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    names = []
    for upgraded in (("a",), ("a", "b")):  # one process at a time: each leaves and comes back with both strategies
        coordinator.leave(ids[upgraded[-1]])
        joins = {upgraded[-1]: coordinator.join(protocols=(ROUND_ROBIN, *RANGE))}
        for name in ids.keys() - joins.keys():
            joins[name] = coordinator.join(ids[name], (ROUND_ROBIN, *RANGE) if name in upgraded else RANGE)
        names.append({coordinator.joined(ticket).protocol_name for ticket in joins.values()})
        ids = coordinator.settle(joins)
    assert names == [{"range"}, {"round-robin"}]
    joins = {name: coordinator.join(member_id, (ROUND_ROBIN,)) for name, member_id in ids.items()}
    assert {coordinator.joined(ticket).protocol_name for ticket in joins.values()} == {"round-robin"}
    assert coordinator.join_error(coordinator.join()) is E.INCONSISTENT_GROUP_PROTOCOL  # the old one alone


def test_when_topic_metadata_change_the_leader_joins_unchanged_and_all_get_new_assignments() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    assert coordinator.joined(coordinator.join(ids["b"])).generation_id == 1  # a follower changes nothing
    leader = coordinator.join(ids["a"])
    assert coordinator.heartbeat(ids["b"], 1) is E.REBALANCE_IN_PROGRESS
    joins = {"a": leader, "b": coordinator.join(ids["b"])}
    assert coordinator.settle(joins) == ids
    assert coordinator.generation() == 2


def test_a_member_that_changes_its_subscription_makes_all_join_again() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    changed = (JoinGroupProtocol("range", b"more topics"),)
    follower = coordinator.join(ids["b"], changed)
    assert coordinator.heartbeat(ids["a"], 1) is E.REBALANCE_IN_PROGRESS
    leader = coordinator.join(ids["a"])
    seen = {member.member_id: member.metadata for member in coordinator.joined(leader).members}
    assert seen == {ids["a"]: b"metadata", ids["b"]: b"more topics"}
    assert coordinator.joined(follower).generation_id == 2


def test_a_leader_that_fails_is_replaced_after_its_session() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b", "c")
    for _ in range(2):
        coordinator.pass_time(SESSION_MS // 2)
        codes = {coordinator.heartbeat(ids[name], 1) for name in ("b", "c")}
    assert codes == {E.REBALANCE_IN_PROGRESS}
    joins = {name: coordinator.join(ids[name]) for name in ("b", "c")}
    assert {coordinator.joined(ticket).leader for ticket in joins.values()} == {ids["b"]}
    coordinator.settle(joins)


def test_a_leader_that_cannot_assign_leaves_and_those_who_wait_are_told() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    coordinator.join(ids["a"])
    coordinator.join(ids["b"])
    waiting = coordinator.sync(ids["b"], 2)
    coordinator.leave(ids["a"])
    assert coordinator.synced(waiting).error_code is E.REBALANCE_IN_PROGRESS
    assert coordinator.joined(coordinator.join(ids["b"])).leader == ids["b"]


def test_an_assignment_that_cannot_be_stored_is_told_to_those_who_wait() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    coordinator.join(ids["a"])
    coordinator.join(ids["b"])
    coordinator.stores_at_once = False
    waiting = [coordinator.sync(ids["b"], 2), coordinator.sync(ids["a"], 2, {ids["b"]: b"one"})]
    coordinator.finish_writes(E.UNKNOWN_SERVER_ERROR)
    assert [coordinator.synced(ticket).error_code for ticket in waiting] == [E.UNKNOWN_SERVER_ERROR] * 2
    assert coordinator.heartbeat(ids["b"], 2) is E.REBALANCE_IN_PROGRESS


def test_a_member_that_the_leader_left_out_gets_an_empty_assignment() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    coordinator.join(ids["a"])
    coordinator.join(ids["b"])
    waiting = coordinator.sync(ids["b"], 2)
    coordinator.sync(ids["a"], 2, {ids["a"]: b"all", "x": b"nobody"})
    assert (coordinator.synced(waiting).error_code, coordinator.synced(waiting).assignment) == (E.NONE, b"")


# ---- the four points at which a coordinator may fail


def test_failure_before_the_generation_is_stored_makes_members_send_their_joins_again() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    coordinator.stores_at_once = False
    waiting = [coordinator.join(ids["a"]), coordinator.join(ids["b"])]
    assert all(coordinator.is_waiting(ticket) for ticket in waiting)
    coordinator.crash()
    coordinator.stores_at_once = True
    assert coordinator.heartbeat(ids["b"], 1) is E.NONE  # those that had not joined yet go on
    coordinator.settle({name: coordinator.join(member_id) for name, member_id in ids.items()})
    assert coordinator.generation() == 2


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_failure_after_the_generation_is_stored_lets_members_that_join_again_have_it(answered: int) -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    coordinator.stores_at_once = False
    coordinator.join(ids["a"])
    coordinator.join(ids["b"])
    coordinator.crash(writes_arrived=True)
    coordinator.stores_at_once = True
    assert coordinator.state() == "CompletingRebalance"
    late = list(ids.values())[answered:]  # the others had their answer and may sync at once
    joins = [coordinator.joined(coordinator.join(member_id)) for member_id in late]
    assert {answer.generation_id for answer in joins} <= {2}
    waiting = coordinator.sync(ids["b"], 2)
    coordinator.sync(ids["a"], 2, {ids["b"]: b"one"})
    assert coordinator.synced(waiting).assignment == b"one"
    assert coordinator.generation() == 2


def test_failure_after_the_generation_is_stored_and_a_join_that_it_does_not_know_ends_the_synchronization() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    coordinator.join(ids["a"])
    coordinator.join(ids["b"])
    coordinator.crash()
    waiting = coordinator.sync(ids["b"], 2)
    newcomer = coordinator.join(client_id="new")
    assert coordinator.synced(waiting).error_code is E.REBALANCE_IN_PROGRESS
    assert coordinator.sync(ids["a"], 2, {ids["b"]: b"one"})
    coordinator.settle({"new": newcomer, **{name: coordinator.join(member_id) for name, member_id in ids.items()}})
    assert coordinator.generation() == 3


def test_failure_before_the_assignment_is_stored_lets_members_sync_again() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    coordinator.join(ids["a"])
    coordinator.join(ids["b"])
    coordinator.stores_at_once = False
    coordinator.sync(ids["b"], 2)
    coordinator.sync(ids["a"], 2, {ids["b"]: b"lost"})
    coordinator.crash()
    coordinator.stores_at_once = True
    waiting = coordinator.sync(ids["b"], 2)
    assert coordinator.is_waiting(waiting)
    coordinator.sync(ids["a"], 2, {ids["b"]: b"one"})
    assert coordinator.synced(waiting).assignment == b"one"


def test_failure_after_the_assignment_is_stored_gives_each_member_its_own_at_once() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    coordinator.crash()
    for member_id in ids.values():
        assert coordinator.heartbeat(member_id, 1) is E.NONE
        assert coordinator.commit(member_id, 1) is E.NONE
        assert coordinator.synced(coordinator.sync(member_id, 1)).assignment == f"for {member_id}".encode()
    assert coordinator.state() == "Stable"


def test_a_failed_coordinator_is_followed_by_one_that_misses_members_that_do_not_come_back() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    coordinator.crash()
    coordinator.heartbeat(ids["b"], 1)
    coordinator.pass_time(SESSION_MS - 1)
    coordinator.heartbeat(ids["b"], 1)
    coordinator.pass_time(1)
    assert coordinator.state() == "PreparingRebalance"
    coordinator.crash()
    coordinator.join(ids["a"])
    coordinator.join(ids["b"])
    coordinator.crash()
    for _ in range(REBALANCE_MS // 5_000):  # it restored a generation that has no assignment: nobody syncs
        assert {coordinator.heartbeat(member_id, 2) for member_id in ids.values()} == {E.NONE}
        coordinator.pass_time(5_000)
    assert coordinator.state() == "Empty"


STREAMS = (JoinGroupProtocol("stream", NEWCOMER[0].metadata),)


@pytest.mark.parametrize("is_central", [False, True])
def test_members_of_kafka_streams_assign_their_tasks_themselves(*, is_central: bool) -> None:
    """In `central.is_consumers_join`, look at the type only: without the leader's user data, Kafka Streams ends."""
    coordinator = coordinator_with({"t": 4}, GroupProtocolSettings(assigns_centrally=is_central))
    join = coordinator.join(protocols=STREAMS)
    coordinator.pass_time(DELAY_MS)
    answer = coordinator.joined(join)
    assert (answer.leader, answer.protocol_name, len(answer.members)) == (answer.member_id, "stream", 1)
    tasks = write_assignment(1, {"t": (0,)})[:-4] + b"\0\0\0\5tasks"
    sync = coordinator.sync(answer.member_id, answer.generation_id, {answer.member_id: tasks})
    assert coordinator.synced(sync).assignment == tasks


@pytest.mark.parametrize("is_central", [False, True])
def test_a_consumer_takes_no_group_from_kafka_streams(*, is_central: bool) -> None:
    """In `migration.upgraded`, look at the type only: the next assignments would have no tasks. Or report nothing.

    In `refused`, tell a classic client what one of KIP-848 is told: Java ends with an unexpected error.
    """
    coordinator = coordinator_with({"t": 4}, GroupProtocolSettings(assigns_centrally=is_central))
    join = coordinator.join(protocols=STREAMS)
    coordinator.pass_time(DELAY_MS)
    assert Client(coordinator, "k").beat() is E.GROUP_ID_NOT_FOUND
    assert coordinator.join_error(coordinator.join(protocols=NEWCOMER)) is E.INCONSISTENT_GROUP_PROTOCOL
    refused = [text for text in coordinator.reports if text.startswith("a consumer's join is refused: ")]
    assert len(refused) == 1 + is_central
    member_id = coordinator.joined(join).member_id
    assert coordinator.heartbeat(member_id, 1) is E.NONE


def test_kafka_streams_joins_no_group_that_a_gateway_assigns() -> None:
    """In `consumer_classic._subscription`, ask only whether other classic members support the protocol."""
    coordinator = coordinator_with({"t": 4})
    Client(coordinator, "k").beat()
    assert coordinator.join_error(coordinator.join(protocols=STREAMS)) is E.INCONSISTENT_GROUP_PROTOCOL
