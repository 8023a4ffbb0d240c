"""A group moves from the classic protocol to KIP-848 and back, member by member, while the others go on."""

from __future__ import annotations

import random

import pytest

from tests.support import examples
from tests.support.classic_consumer import NEWCOMER, ClassicConsumer, subscription
from tests.support.group_coordinator import GROUP, RANGE, REBALANCE_MS, SESSION_MS, Coordinator
from tests.support.kip848_group import Client, coordinator_with, described
from zkrebalancer.group_protocol.answers import HeartbeatAnswer, LeaveGroupAnswer, OffsetCheckAnswer
from zkrebalancer.group_protocol.consumer_protocol import write_assignment
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.requests import (
    HeartbeatRequest,
    JoinGroupProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetCommitRequest,
    SyncGroupRequest,
)

EVERYTHING = [0, 1, 2, 3]


def run(coordinator: Coordinator, *members: ClassicConsumer | Client, rounds: int = 40) -> None:
    for _ in range(rounds):
        for member in members:
            member.act()
        assert_one_owner(members)
        coordinator.pass_time(500)


def assert_one_owner(members: tuple[ClassicConsumer | Client, ...]) -> None:
    owned = [number for member in members for number in member.numbers()]
    assert len(owned) == len(set(owned)), "two owners"


def all_owned(*members: ClassicConsumer | Client) -> list[int]:
    return sorted(number for member in members for number in member.numbers())


def classic_group(coordinator: Coordinator, *, is_eager: bool) -> tuple[ClassicConsumer, ClassicConsumer]:
    a, b = (ClassicConsumer(coordinator, name, is_eager=is_eager) for name in "ab")
    run(coordinator, a, b)
    assert all_owned(a, b) == EVERYTHING
    assert coordinator.state() == "Stable"
    return a, b


@pytest.mark.parametrize("is_eager", [False, True])
def test_there_and_back_one_member_at_a_time(*, is_eager: bool) -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = classic_group(coordinator, is_eager=is_eager)
    generation = a.generation
    new_a, new_b = Client(coordinator, "new-a"), Client(coordinator, "new-b")
    run(coordinator, a, b, new_a)
    assert all_owned(a, b, new_a) == EVERYTHING
    group = described(coordinator)
    assert [member.member_type for member in group.members] == [0, 0, 1]
    assert group.group_epoch > generation
    coordinator.leave(a.member_id)
    run(coordinator, b, new_a)
    assert all_owned(b, new_a) == EVERYTHING
    coordinator.leave(b.member_id)
    run(coordinator, new_a, new_b)
    assert all_owned(new_a, new_b) == EVERYTHING
    assert {member.member_type for member in described(coordinator).members} == {1}
    epoch = new_a.epoch
    a, b = ClassicConsumer(coordinator, "a", is_eager=is_eager), ClassicConsumer(coordinator, "b", is_eager=is_eager)
    run(coordinator, a, new_a, new_b)
    assert new_a.beat(-1) is E.NONE
    run(coordinator, a, b, new_b)
    assert all_owned(a, b, new_b) == EVERYTHING
    assert new_b.beat(-1) is E.NONE
    new_b.owned = frozenset()
    assert coordinator.state() in {"PreparingRebalance", "CompletingRebalance"}
    run(coordinator, a, b)
    assert all_owned(a, b) == EVERYTHING
    assert coordinator.state() == "Stable"
    assert a.generation > epoch


def test_a_member_that_was_fenced_joins_anew_though_its_group_is_a_classic_one_by_now() -> None:
    """In `Machine._handle_classic`, answer as Kafka does that this is no consumer group: Java's client would end."""
    coordinator = coordinator_with({"t": 4})
    a = ClassicConsumer(coordinator, "a")
    c = Client(coordinator, "c")
    run(coordinator, a, c)
    for _ in range(6):  # c hangs
        coordinator.pass_time(SESSION_MS - 1_000)
        run(coordinator, a)
    assert described(coordinator).error_code is E.GROUP_ID_NOT_FOUND
    assert c.epoch > 0
    assert c.beat() is E.UNKNOWN_MEMBER_ID
    run(coordinator, a, c)
    assert all_owned(a, c) == EVERYTHING
    assert c.numbers()


def test_classic_members_that_stay_are_called_and_commit_before_they_join() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = classic_group(coordinator, is_eager=True)
    c = Client(coordinator, "c")
    run(coordinator, a, b, c)
    former = {member.member_id: member.generation for member in (a, b)}
    assert c.beat(-1) is E.NONE
    assert described(coordinator).error_code is E.GROUP_ID_NOT_FOUND  # it is a classic group
    for member_id, generation in former.items():
        assert coordinator.heartbeat(member_id, generation) is E.REBALANCE_IN_PROGRESS
        assert coordinator.commit(member_id, generation) is E.NONE
        assert coordinator.commit(member_id, generation - 1) is E.ILLEGAL_GENERATION
    run(coordinator, a, b)
    for member_id, generation in former.items():
        assert coordinator.commit(member_id, generation) is E.ILLEGAL_GENERATION


def test_only_members_whose_partitions_change_are_called_and_the_others_read_on() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = classic_group(coordinator, is_eager=False)
    before = (a.owned, b.owned)
    c = Client(coordinator, "c")
    c.beat()
    for _ in range(3):
        a.act()
    assert a.owned < before[0] or a.owned == before[0]
    assert b.owned == before[1]
    run(coordinator, a, b, c)
    assert all_owned(a, b, c) == EVERYTHING
    assert a.owned <= before[0]
    assert b.owned <= before[1]


def test_a_move_survives_the_coordinator() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = classic_group(coordinator, is_eager=False)
    c = Client(coordinator, "c")
    c.beat()
    coordinator.crash()
    run(coordinator, a, b, c)
    assert all_owned(a, b, c) == EVERYTHING
    c.beat(-1)
    c.owned = frozenset()
    coordinator.crash()
    run(coordinator, a, b)
    assert all_owned(a, b) == EVERYTHING
    assert coordinator.state() == "Stable"


def test_clients_that_wait_in_the_classic_group_are_told_to_join_again() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = classic_group(coordinator, is_eager=True)
    joining = coordinator.join(a.member_id, NEWCOMER)
    assert coordinator.is_waiting(joining)
    Client(coordinator, "c").beat()
    assert coordinator.join_error(joining) is E.REBALANCE_IN_PROGRESS
    assert coordinator.heartbeat(b.member_id, b.generation) is E.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("connect", RANGE), ("consumer", (JoinGroupProtocol("range", b"no subscription"),))],
)
def test_a_group_that_is_not_one_of_consumers_does_not_move(
    protocol_type: str, protocols: tuple[JoinGroupProtocol, ...]
) -> None:
    coordinator = coordinator_with({"t": 4})
    ticket = coordinator.join(protocols=protocols, protocol_type=protocol_type)
    assert Client(coordinator, "c").beat() is E.GROUP_ID_NOT_FOUND
    coordinator.pass_time(5_000)
    assert coordinator.join_error(ticket) is E.NONE


def test_a_leave_that_ends_the_move_is_answered_once_it_is_stored() -> None:
    coordinator = coordinator_with({"t": 4})
    a, _b = classic_group(coordinator, is_eager=False)
    c = Client(coordinator, "c")
    run(coordinator, a, _b, c)
    coordinator.stores_at_once = False
    c.send(-1)
    assert coordinator.is_waiting(c.ticket)
    coordinator.finish_writes()
    assert c.receive() is E.NONE


def test_a_static_member_changes_its_protocol_without_another_noticing() -> None:
    coordinator = coordinator_with({"t": 4})
    a = ClassicConsumer(coordinator, "a")
    b = ClassicConsumer(coordinator, "b", instance="pod")
    run(coordinator, a, b)
    c = Client(coordinator, "c")
    run(coordinator, a, b, c)
    before = b.numbers()
    back = Client(coordinator, "b2", instance_id="pod")
    assert back.beat() is E.NONE
    assert back.numbers() == before
    run(coordinator, a, back, c)
    again = ClassicConsumer(coordinator, "b3", instance="pod")
    run(coordinator, a, again, c)
    assert again.numbers() == before
    assert back.beat() is E.FENCED_INSTANCE_ID


def is_classic_member(coordinator: Coordinator, member_id: str, generation: int) -> bool:
    return coordinator.ask(OffsetCommitRequest(GROUP, generation, member_id), OffsetCheckAnswer, 9).is_classic_member


def test_classic_members_of_a_new_group_are_fenced_as_in_the_old_one() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = classic_group(coordinator, is_eager=False)
    c = Client(coordinator, "c")
    run(coordinator, a, b, c)
    member_id, generation = a.member_id, a.generation
    assert coordinator.heartbeat(member_id, generation + 1) is E.ILLEGAL_GENERATION
    assert coordinator.heartbeat("x", generation) is E.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat("c", c.epoch) is E.UNKNOWN_MEMBER_ID
    assert coordinator.commit(member_id, generation) is E.NONE
    assert [is_classic_member(coordinator, *one) for one in ((member_id, generation), ("c", c.epoch))] == [True, False]
    assert coordinator.commit(member_id, generation, version=5) is E.NONE
    assert coordinator.commit(member_id, generation - 1) is E.ILLEGAL_GENERATION
    for wrong in (
        SyncGroupRequest(GROUP, generation, member_id, protocol_type="connect"),
        SyncGroupRequest(GROUP, generation, member_id, protocol_name="other"),
    ):
        assert coordinator.synced(coordinator.send(wrong, 5)).error_code is E.INCONSISTENT_GROUP_PROTOCOL
    assert coordinator.synced(coordinator.sync(member_id, generation + 1)).error_code is E.ILLEGAL_GENERATION
    other = (JoinGroupProtocol("other", subscription(frozenset())),)
    assert coordinator.join_error(coordinator.join(protocols=other)) is E.INCONSISTENT_GROUP_PROTOCOL
    garbage = (JoinGroupProtocol("range", b"\0"),)
    assert coordinator.join_error(coordinator.join(protocols=garbage)) is E.INCONSISTENT_GROUP_PROTOCOL
    assert coordinator.heartbeat(member_id, generation, "pod") is E.UNKNOWN_MEMBER_ID
    members = (MemberIdentity("x"), MemberIdentity(member_id))
    answer = coordinator.ask(LeaveGroupRequest(GROUP, members), LeaveGroupAnswer, 5)
    assert [member.error_code for member in answer.members] == [E.UNKNOWN_MEMBER_ID, E.NONE]


def test_an_administrator_removes_members_of_either_protocol() -> None:
    """In `consumer_classic._let_go`, refuse KIP-848 members, as Kafka did before 4.1."""
    coordinator = coordinator_with({"t": 4})
    a = ClassicConsumer(coordinator, "a")
    c, d = Client(coordinator, "c"), Client(coordinator, "d", instance_id="pod")
    run(coordinator, a, c, d)
    members = (MemberIdentity("c"), MemberIdentity("", "pod"), MemberIdentity("c"))
    answer = coordinator.ask(LeaveGroupRequest(GROUP, members), LeaveGroupAnswer, 5)
    assert [member.error_code for member in answer.members] == [E.NONE, E.NONE, E.UNKNOWN_MEMBER_ID]
    assert [one.beat() for one in (c, d)] == [E.UNKNOWN_MEMBER_ID] * 2
    assert described(coordinator).error_code is E.GROUP_ID_NOT_FOUND  # it is a classic group
    run(coordinator, a)
    assert all_owned(a) == EVERYTHING


def test_a_protocol_that_a_classic_member_lists_twice_keeps_no_other_one_out() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = classic_group(coordinator, is_eager=False)
    c = Client(coordinator, "c")
    run(coordinator, a, b, c)
    known = JoinGroupProtocol("range", subscription(frozenset()))
    assert coordinator.join_error(coordinator.join(protocols=(known, known))) is E.NONE
    assert coordinator.join_error(coordinator.join(protocols=(known,))) is E.NONE


@pytest.mark.parametrize("silence", ["all", "heartbeats only", "after the join"])
def test_a_classic_member_that_does_not_follow_is_fenced(silence: str) -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = classic_group(coordinator, is_eager=False)
    c = Client(coordinator, "c")
    c.beat()
    if silence == "after the join":
        protocols = (JoinGroupProtocol("range", subscription(a.owned)),)
        a.generation = coordinator.joined(coordinator.join(a.member_id, protocols)).generation_id
    limit_ms = SESSION_MS if silence == "all" else REBALANCE_MS
    for _ in range(limit_ms // 1_000):
        if silence != "all":
            request = HeartbeatRequest(GROUP, a.generation, a.member_id)
            assert coordinator.ask(request, HeartbeatAnswer).error_code is not E.UNKNOWN_MEMBER_ID
        b.act()
        c.beat()
        coordinator.pass_time(1_000)
    assert coordinator.heartbeat(a.member_id, a.generation) is E.UNKNOWN_MEMBER_ID
    run(coordinator, b, c)
    assert all_owned(b, c) == EVERYTHING


class World:
    """Members of both kinds that come and go."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.coordinator = coordinator_with({"t": 4})
        self.members: list[ClassicConsumer | Client] = []
        self.born = 0

    def step(self) -> None:
        roll = self.random.random()
        if roll < 0.08 and len(self.members) < 4:
            self.born += 1
            self.members.append(self.newcomer(f"m{self.born}"))
        elif roll < 0.14 and self.members:
            self.end(self.members.pop(self.random.randrange(len(self.members))))
        elif roll < 0.16:
            self.coordinator.crash(writes_arrived=self.random.random() < 0.5)
            for member in self.members:
                member.ticket = 0
        elif self.members:
            run(self.coordinator, self.random.choice(self.members), rounds=1)
        assert_one_owner(tuple(self.members))

    def newcomer(self, name: str) -> ClassicConsumer | Client:
        if self.random.random() < 0.5:
            return Client(self.coordinator, name)
        return ClassicConsumer(self.coordinator, name, is_eager=self.random.random() < 0.5)

    def end(self, member: ClassicConsumer | Client) -> None:
        """Let it leave, or die."""
        if self.random.random() < 0.5:
            if isinstance(member, ClassicConsumer):
                self.coordinator.leave(member.member_id)
            elif member.epoch > 0:
                member.send(-1)

    def settle(self) -> None:
        end_ms = self.coordinator.now_ms + 3 * REBALANCE_MS
        while self.members and self.coordinator.now_ms < end_ms:
            run(self.coordinator, *self.members, rounds=1)
        assert all_owned(*self.members) == (EVERYTHING if self.members else [])
        self.coordinator.pass_time(REBALANCE_MS)
        assert [ticket for ticket in self.coordinator.asked if self.coordinator.is_waiting(ticket)] == []


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(examples.count() // 2))
def test_random_moves(seed: int) -> None:
    """In the end everybody has its share, and nobody waits."""
    world = World(seed)
    for _ in range(200):
        world.step()
    world.settle()


def test_a_member_that_leaves_before_the_topics_were_read_costs_nobody_anything() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = classic_group(coordinator, is_eager=False)
    c = Client(coordinator, "c")
    run(coordinator, a, b, c)
    known, coordinator.topics_read = coordinator.topics_read, None
    coordinator.crash()
    coordinator.leave(b.member_id)
    assert known is not None
    assert described(coordinator).assignment_epoch < described(coordinator).group_epoch
    coordinator.step(known)
    run(coordinator, a, c)
    assert all_owned(a, c) == EVERYTHING


def test_members_keep_their_generation_when_their_group_moves() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = classic_group(coordinator, is_eager=True)
    d = ClassicConsumer(coordinator, "d", is_eager=True)
    run(coordinator, a, b, d)
    assert a.generation > 1
    Client(coordinator, "c").beat()
    assert coordinator.commit(a.member_id, a.generation) is E.NONE


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("does_crash", [False, True])
def test_what_cooperative_members_read_while_partitions_are_assigned_stays_theirs(
    *, is_refused: bool, does_crash: bool
) -> None:
    """In `migration.upgraded`, look only at assignments. There are none yet, so the newcomer would get partitions."""
    coordinator = coordinator_with({"t": 4})
    a = ClassicConsumer(coordinator, "a")
    run(coordinator, a)
    b, late = ClassicConsumer(coordinator, "b"), ClassicConsumer(coordinator, "late")
    for member in (b, b, a, a):
        member.act()
    assert coordinator.state() == "CompletingRebalance"
    if is_refused:
        late.act()
        late.act()
        assert coordinator.state() == "PreparingRebalance"
    if does_crash:
        coordinator.crash()
        for member in (a, b, late):
            member.ticket = 0
    c = Client(coordinator, "c")
    assert c.beat() is E.NONE
    assert sorted(a.owned) == EVERYTHING
    assert_one_owner((a, b, c))
    run(coordinator, a, b, late, c)
    assert all_owned(a, b, late, c) == EVERYTHING


def test_a_cooperative_member_keeps_what_it_was_told_to_give_up_until_it_joins_without_it() -> None:
    """In `migration.upgraded`, look at the assignment alone, or at what was owned only if there is none."""
    coordinator = coordinator_with({"t": 4})
    a = ClassicConsumer(coordinator, "a")
    run(coordinator, a)
    protocols = (JoinGroupProtocol("range", subscription(a.owned)),)
    answer = coordinator.joined(coordinator.join(a.member_id, protocols))
    coordinator.sync(a.member_id, answer.generation_id, {a.member_id: write_assignment(1, {"t": (0,)})})
    assert coordinator.state() == "Stable"
    c = Client(coordinator, "c")
    c.beat()
    assert c.numbers() == []
    coordinator.join(a.member_id, (JoinGroupProtocol("range", subscription(frozenset({0}))),))
    run(coordinator, c, rounds=4)
    assert c.numbers()


def test_a_partition_that_a_leader_gave_to_two_members_has_one_owner_after_the_move() -> None:
    coordinator = coordinator_with({"t": 4})
    a, b = classic_group(coordinator, is_eager=False)
    joins = [coordinator.join(m.member_id, (JoinGroupProtocol("range", subscription(m.owned)),)) for m in (a, b)]
    answers = [coordinator.joined(ticket) for ticket in joins]
    both = write_assignment(1, {"t": (0, 1)})
    for answer in answers:
        given = {member.member_id: both for member in answer.members}
        coordinator.sync(answer.member_id, answer.generation_id, given)
    assert Client(coordinator, "c").beat() is E.NONE
    owned = [member.assignment.topic_partitions for member in described(coordinator).members]
    numbers = [number for topics in owned for topic in topics for number in topic.partitions]
    assert len(numbers) == len(set(numbers))


def test_an_empty_group_is_kept_no_longer_because_a_classic_client_did_not_come_back() -> None:
    """In `ClassicGroup.continue_from`, expect no end: such a group, and its node, would stay for ever."""
    coordinator = coordinator_with({"t": 4})
    c = Client(coordinator, "c")
    run(coordinator, c)
    c.beat(-1)
    assert coordinator.join_error(coordinator.join(version=5)) is E.MEMBER_ID_REQUIRED
    assert set(coordinator.kept) == {GROUP}
    coordinator.pass_time(coordinator.settings.empty_group_retention_ms + SESSION_MS)
    assert set(coordinator.kept) == set()
    assert set(coordinator.machine.group_names()) == set()
