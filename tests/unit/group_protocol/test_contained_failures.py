"""A bug that one group meets ends this group for a while, and no other one; nobody waits for ever."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support.group_coordinator import GROUP, Coordinator
from tests.support.kip848_group import Client, coordinator_with, topics
from zkrebalancer.group_protocol import stored
from zkrebalancer.group_protocol.answers import DeleteGroupsAnswer, ListGroupsAnswer
from zkrebalancer.group_protocol.assignors import ASSIGNORS, NamedPartition, Subscriber
from zkrebalancer.group_protocol.classic_group import ClassicGroup
from zkrebalancer.group_protocol.effects import BucketLost, GroupLoaded, Stored
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.machine import Machine
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.requests import DeleteGroupsRequest, ListGroupsRequest
from zkrebalancer.group_protocol.settings import GroupProtocolSettings

OTHER = "other"


def fails(*_arguments: object, **_options: object) -> None:
    raise ZeroDivisionError("a planted bug")


def two_groups() -> tuple[Coordinator, dict[str, str]]:
    coordinator = Coordinator()
    members = coordinator.stable("a", "b")
    coordinator.failures = []
    return coordinator, members


def read_again(coordinator: Coordinator) -> None:
    kept = coordinator.kept.get(GROUP)
    coordinator.step(GroupLoaded(GROUP, None if kept is None else stored.from_bytes(kept)))


def test_a_request_that_raises_is_refused_and_the_group_goes_on_once_it_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator, members = two_groups()
    with monkeypatch.context() as patch:
        patch.setattr(ClassicGroup, "prepare_rebalance", fails)
        assert coordinator.join_error(coordinator.join(client_id="c")) is E.COORDINATOR_NOT_AVAILABLE
        other = coordinator.join(client_id="d", group=OTHER)
        assert coordinator.join_error(other) is E.COORDINATOR_NOT_AVAILABLE
    assert coordinator.failures is not None
    assert [one.group_id for one in coordinator.failures] == [GROUP, OTHER]
    text = coordinator.failures[0].text
    assert all(part in text for part in ("ZeroDivisionError: a planted bug", "JoinGroupRequest", members["a"]))
    assert coordinator.heartbeat(members["a"], 1) is E.COORDINATOR_NOT_AVAILABLE
    read_again(coordinator)
    assert coordinator.heartbeat(members["a"], 1) is E.NONE
    assert coordinator.commit(members["b"], 1) is E.NONE
    assert len(coordinator.failures) == 2


def test_those_who_wait_are_told_when_a_timer_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator, _members = two_groups()
    waiting = coordinator.join(client_id="c")
    other = coordinator.join(client_id="d", group=OTHER)
    with monkeypatch.context() as patch:
        patch.setattr(
            ClassicGroup, "complete_join", lambda group: fails() if group.group_id == GROUP else group._become_empty()
        )
        patch.setattr(ClassicGroup, "remove", lambda group, _member: fails() if group.group_id == GROUP else None)
        coordinator.pass_time(11_000)  # the sessions of the others end
    assert coordinator.join_error(waiting) is E.COORDINATOR_NOT_AVAILABLE
    assert coordinator.failures is not None
    assert {one.group_id for one in coordinator.failures} == {GROUP}
    assert coordinator.is_waiting(other)


def test_a_result_that_comes_after_the_failure_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator, members = two_groups()
    coordinator.stores_at_once = False
    coordinator.leave(members["a"])
    rejoined = coordinator.join(members["b"])
    assert coordinator.writes
    with monkeypatch.context() as patch:
        patch.setattr(ClassicGroup, "answer_join", fails)
        patch.setattr("zkrebalancer.group_protocol.classic_requests.heartbeat", fails)
        assert coordinator.heartbeat(members["b"], 2) is E.COORDINATOR_NOT_AVAILABLE
    assert coordinator.join_error(rejoined) is E.COORDINATOR_NOT_AVAILABLE
    coordinator.finish_writes()
    coordinator.stores_at_once = True
    read_again(coordinator)
    assert coordinator.joined(coordinator.join(members["b"])).generation_id == 2


def test_a_stored_group_that_cannot_be_restored_does_not_keep_its_bucket_from_being_served() -> None:
    coordinator = coordinator_with({"t": 2})
    coordinator.failures = []
    neighbour = next(name for name in map(str, range(10_000)) if bucket_of(name) == bucket_of(GROUP))
    broken = stored.StoredConsumerGroup(3, 3, (stored.StoredTopic("t", b"no uuid", 2),), ())
    coordinator.keep(GROUP, broken)
    coordinator.keep(neighbour, stored.StoredGroup(3, "consumer", None, None, is_assigned=True, members=()))
    coordinator.crash()
    assert [one.group_id for one in coordinator.failures] == [GROUP]
    assert coordinator.machine.group_names() == {neighbour}
    listed = coordinator.ask(ListGroupsRequest(), ListGroupsAnswer)
    assert [one.group_id for one in listed.groups] == [neighbour]
    read_again(coordinator)  # and it fails again
    assert len(coordinator.failures) == 2
    coordinator.step(BucketLost(bucket_of(GROUP)))
    assert coordinator.join_error(coordinator.join()) is E.NOT_COORDINATOR
    read_again(coordinator)  # too late: another gateway serves it
    assert len(coordinator.failures) == 2


def test_a_group_that_cannot_be_shown_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator, _members = two_groups()
    coordinator.join(client_id="d", group=OTHER)
    listed = "zkrebalancer.group_protocol.classic_requests.listed"
    with monkeypatch.context() as patch:
        patch.setattr(listed, fails)
        assert coordinator.ask(ListGroupsRequest(), ListGroupsAnswer).groups == ()
    assert coordinator.failures is not None
    assert {one.group_id for one in coordinator.failures} == {GROUP, OTHER}


def test_a_deletion_that_fails_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator, members = two_groups()
    coordinator.leave(*members.values())
    with monkeypatch.context() as patch:
        patch.setattr(ClassicGroup, "close", fails)
        answer = coordinator.ask(DeleteGroupsRequest((GROUP,)), DeleteGroupsAnswer)
    assert [one.error_code for one in answer.results] == [E.COORDINATOR_NOT_AVAILABLE]


def test_all_deletions_of_a_group_that_fails_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Machine._delete`, remember the last one only: the first one comes from before the bucket was read again."""
    coordinator, members = two_groups()
    coordinator.leave(*members.values())
    coordinator.stores_at_once = False
    first = coordinator.send(DeleteGroupsRequest((GROUP,)))
    coordinator.lose_buckets()
    coordinator._load()
    second = coordinator.send(DeleteGroupsRequest((GROUP,)))
    assert coordinator.is_waiting(first)
    assert coordinator.is_waiting(second)
    monkeypatch.setattr("zkrebalancer.group_protocol.classic_requests.heartbeat", fails)
    assert coordinator.heartbeat("m", 1) is E.COORDINATOR_NOT_AVAILABLE
    answers = [coordinator.answers.get(ticket) for ticket in (first, second)]
    codes = [one.results[0].error_code for one in answers if isinstance(one, DeleteGroupsAnswer)]
    assert codes == [E.COORDINATOR_NOT_AVAILABLE] * 2
    coordinator.finish_writes()  # their results concern nobody any more


def test_an_assignor_that_raises_ends_the_groups_that_use_it() -> None:
    def broken(
        _members: Mapping[str, Subscriber], _counts: Mapping[str, int]
    ) -> Mapping[str, frozenset[NamedPartition]]:
        raise ZeroDivisionError("a planted bug")

    coordinator = coordinator_with({"t": 2})
    coordinator.failures = []
    coordinator.machine = Machine(GroupProtocolSettings(), {**ASSIGNORS, "uniform": broken})
    coordinator._load()
    coordinator.step(topics({"t": 3}))
    assert Client(coordinator, "a").beat() is E.COORDINATOR_NOT_AVAILABLE
    assert [one.group_id for one in coordinator.failures] == [GROUP]


# ---- a group that is too large to be stored


def refuse_writes_above(coordinator: Coordinator, members: int) -> None:
    """Finish writes; those of more members are too large."""
    while coordinator.writes:
        write = coordinator.writes.pop(0)
        if write.content is not None and len(write.content.members) > members:
            coordinator.step(Stored(write.write_id, E.GROUP_MAX_SIZE_REACHED))
        else:
            coordinator.keep(write.group_id, write.content)
            coordinator.step(Stored(write.write_id))


def test_newcomers_that_make_a_group_too_large_are_refused_and_the_others_go_on() -> None:
    coordinator, members = two_groups()
    coordinator.stores_at_once = False
    newcomer = coordinator.join(client_id="c")
    joins = [coordinator.join(member_id) for member_id in members.values()]
    refuse_writes_above(coordinator, 2)
    assert coordinator.join_error(newcomer) is E.GROUP_MAX_SIZE_REACHED
    assert [coordinator.joined(join).generation_id for join in joins] == [3, 3]
    syncs = [coordinator.sync(member_id, 3, {}) for member_id in members.values()]
    refuse_writes_above(coordinator, 2)
    assert [coordinator.synced(sync).error_code for sync in syncs] == [E.NONE, E.NONE]
    again = coordinator.join(client_id="c")
    assert coordinator.join_error(again) is E.GROUP_MAX_SIZE_REACHED  # at once: nobody has to join again
    assert coordinator.heartbeat(members["a"], 3) is E.NONE
    for _ in range(10):
        coordinator.pass_time(6_500)
        assert {coordinator.heartbeat(member_id, 3) for member_id in members.values()} == {E.NONE}
    assert coordinator.is_waiting(coordinator.join(client_id="c"))  # it may fit by now
    assert coordinator.heartbeat(members["a"], 3) is E.REBALANCE_IN_PROGRESS


def test_a_group_that_is_too_large_again_admits_nobody_for_twice_as_long() -> None:
    """In `ClassicGroup._refuse_newcomers`, wait as long each time: all would have to join again every minute."""
    coordinator = Coordinator()
    coordinator.stores_at_once = False
    admitted_after_s = []
    for _ in range(3):
        joins = [coordinator.join(client_id=name) for name in "abcd"]
        coordinator.pass_time(20_000)
        refuse_writes_above(coordinator, 2)
        assert {coordinator.join_error(join) for join in joins} == {E.GROUP_MAX_SIZE_REACHED}
        refuse_writes_above(coordinator, 2)
        (group,) = coordinator.machine._groups.values()
        assert isinstance(group, ClassicGroup)
        waited_s = 0
        while group.max_size == 2:
            coordinator.pass_time(10_000)
            waited_s += 10
        admitted_after_s.append(waited_s)
    assert admitted_after_s == [60, 120, 240]


def test_a_first_generation_that_is_too_large_is_refused_as_a_whole() -> None:
    coordinator = Coordinator()
    coordinator.stores_at_once = False
    joins = [coordinator.join(client_id=name) for name in "abcd"]
    coordinator.pass_time(20_000)
    refuse_writes_above(coordinator, 2)
    assert {coordinator.join_error(join) for join in joins} == {E.GROUP_MAX_SIZE_REACHED}
    coordinator.pass_time(60_000)
    refuse_writes_above(coordinator, 2)
    assert not coordinator.writes
