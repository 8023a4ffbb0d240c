"""A group coordinator for tests: the machine, a store in memory, virtual time, and requests in short form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import TypeVar

from zkrebalancer.group_protocol import stored
from zkrebalancer.group_protocol.answers import (
    Answer,
    DescribedGroup,
    DescribeGroupsAnswer,
    HeartbeatAnswer,
    JoinGroupAnswer,
    LeaveGroupAnswer,
    OffsetCheckAnswer,
    SyncGroupAnswer,
)
from zkrebalancer.group_protocol.effects import (
    BucketLoaded,
    BucketLost,
    Event,
    Failed,
    Received,
    Reply,
    Report,
    Reported,
    Standing,
    Store,
    Stored,
    Tick,
    TopicsRead,
)
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.machine import Machine
from zkrebalancer.group_protocol.placement import BUCKETS, bucket_of
from zkrebalancer.group_protocol.requests import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetCommitRequest,
    Request,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from zkrebalancer.group_protocol.settings import GroupProtocolSettings

GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000
RANGE = (JoinGroupProtocol("range", b"metadata"),)
A = TypeVar("A")


@contextmanager
def wakes_bounded(machine: Machine, now_ms: int) -> Iterator[None]:
    """Require that a step wakes no more timers than were due: one that sets itself for now would keep it for ever."""
    scheduler = machine._scheduler
    contain, left = scheduler._contain, 1  # for the result of a write
    if (scheduler.next_deadline_ms() or now_ms) <= now_ms:
        left += sum(timer.deadline_ms <= now_ms for timer in scheduler._timers.values())

    def count(group_id: str, action: Callable[[], None]) -> None:
        nonlocal left
        left -= 1
        assert left >= 0, f"group {group_id}: a timer is due in the step that sets it"
        contain(group_id, action)

    scheduler._contain = count
    try:
        yield
    finally:
        scheduler._contain = contain


class Coordinator:
    """A machine that serves all buckets; without `stores_at_once`, the test decides when and if writes succeed."""

    def __init__(self, settings: GroupProtocolSettings | None = None) -> None:
        self.settings = settings or GroupProtocolSettings()
        self.machine = Machine(self.settings)
        self.now_ms = 1_000
        self.stores_at_once = True
        self.topics_read: TopicsRead | None = None  # for the next machine, after a crash
        self.kept: dict[str, bytes] = {}
        self.writes: list[Store] = []  # in progress
        self.answers: dict[int, Answer] = {}
        self.reports: list[str] = []
        self.unheard: list[Reported] = []
        self.standings: dict[str, Standing] = {}  # of a central group's members, as last reported
        self.failures: list[Failed] | None = None  # None: a failed group fails the test
        self.asked: dict[int, Request] = {}
        self._numbers = count(1)
        self._load()

    def _load(self) -> None:
        if self.topics_read is not None:
            self.step(self.topics_read)
        for bucket in range(BUCKETS):
            mine = {name: stored.from_bytes(kept) for name, kept in self.kept.items() if bucket_of(name) == bucket}
            self.step(BucketLoaded(bucket, mine))

    def step(self, event: Event) -> None:
        with wakes_bounded(self.machine, self.now_ms):
            effects = self.machine.step(event, self.now_ms)
        for effect in effects:
            match effect:
                case Reply():
                    assert effect.ticket in self.asked, "an answer to nobody"
                    assert effect.ticket not in self.answers, "a second answer"
                    self.answers[effect.ticket] = effect.answer
                case Store():
                    self.writes.append(effect)
                case Reported():
                    self.unheard.append(effect)
                    self.standings = {member.member_id: member for member in effect.members}
                case Report():
                    self.reports.append(effect.text)
                case Failed():
                    assert self.failures is not None, effect.text
                    self.failures.append(effect)
        if self.stores_at_once:
            self.finish_writes()

    def finish_writes(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Answer the current writes: with success, or with an error and nothing written."""
        while self.writes:
            write = self.writes.pop(0)
            if not error:
                self.keep(write.group_id, write.content)
            self.step(Stored(write.write_id, error))

    def keep(self, group_id: str, content: stored.StoredContent | None) -> None:
        if content is None:
            self.kept.pop(group_id, None)
        else:
            self.kept[group_id] = stored.to_bytes(content)

    def crash(self, *, writes_arrived: bool = False) -> None:
        """Kill the coordinator and start another on the same store; waiting requests get no answer."""
        if writes_arrived:
            for write in self.writes:
                self.keep(write.group_id, write.content)
        self.writes = []
        for ticket in [ticket for ticket in self.asked if ticket not in self.answers]:
            del self.asked[ticket]
        self.machine = Machine(self.settings)
        self._load()

    def lose_buckets(self) -> None:
        """Let another coordinator serve all groups."""
        for bucket in range(BUCKETS):
            self.step(BucketLost(bucket))

    def pass_time(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while (deadline_ms := self.machine.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.step(Tick())
        self.now_ms = end_ms
        self.step(Tick())

    # ---- what clients send

    def send(self, request: Request, version: int = 9, client_id: str = "c", client_host: str = "/127.0.0.1") -> int:
        """Send a request and return its ticket."""
        ticket = next(self._numbers)
        self.asked[ticket] = request
        self.step(Received(ticket, request, version, client_id, client_host, str(ticket)))
        return ticket

    def is_waiting(self, ticket: int) -> bool:
        return ticket not in self.answers

    def answer(self, ticket: int, kind: type[A]) -> A:
        found = self.answers[ticket]
        assert isinstance(found, kind), found
        return found

    def ask(self, request: Request, kind: type[A], version: int = 9) -> A:
        """Send a request that is answered at once."""
        return self.answer(self.send(request, version), kind)

    def join(
        self,
        member_id: str = "",
        protocols: tuple[JoinGroupProtocol, ...] = RANGE,
        *,
        version: int = 3,
        client_id: str = "c",
        instance: str | None = None,
        protocol_type: str = "consumer",
        group: str = GROUP,
        rebalance_ms: int = REBALANCE_MS,
        session_ms: int = SESSION_MS,
    ) -> int:
        """Send a JoinGroup; up to version 3, a new member need not ask for its id first."""
        request = JoinGroupRequest(
            group, member_id, session_ms, protocol_type, protocols, rebalance_ms, group_instance_id=instance
        )
        return self.send(request, version, client_id)

    def joined(self, ticket: int) -> JoinGroupAnswer:
        return self.answer(ticket, JoinGroupAnswer)

    def join_error(self, ticket: int) -> ErrorCode:
        return self.joined(ticket).error_code

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        instance: str | None = None,
        group: str = GROUP,
    ) -> int:
        given = tuple(SyncGroupAssignment(name, content) for name, content in (assignments or {}).items())
        return self.send(SyncGroupRequest(group, generation, member_id, instance, assignments=given), 5)

    def synced(self, ticket: int) -> SyncGroupAnswer:
        return self.answer(ticket, SyncGroupAnswer)

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        return self.ask(HeartbeatRequest(GROUP, generation, member_id, instance), HeartbeatAnswer).error_code

    def commit(self, member_id: str, generation: int, instance: str | None = None, version: int = 9) -> ErrorCode:
        request = OffsetCommitRequest(GROUP, generation, member_id, instance)
        return self.ask(request, OffsetCheckAnswer, version).error_code

    def leave(self, *member_ids: str) -> LeaveGroupAnswer:
        members = tuple(MemberIdentity(member_id) for member_id in member_ids)
        return self.ask(LeaveGroupRequest(GROUP, members), LeaveGroupAnswer, 5)

    # ---- groups in a state

    def stable(self, *client_ids: str, instances: Mapping[str, str] | None = None) -> dict[str, str]:
        """Bring a new group with these clients to Stable; return client -> member id, the leader first."""
        joins = {name: self.join(client_id=name, instance=(instances or {}).get(name)) for name in client_ids}
        while any(self.is_waiting(ticket) for ticket in joins.values()):
            self.pass_time(DELAY_MS)
        return self.settle(joins)

    def settle(self, joins: Mapping[str, int]) -> dict[str, str]:
        """Sync the members whose joins are answered; the leader assigns `for <id>` to each."""
        answers = {name: self.joined(ticket) for name, ticket in joins.items()}
        assert {answer.error_code for answer in answers.values()} == {ErrorCode.NONE}
        ids = {name: answer.member_id for name, answer in answers.items()}
        syncs = {}
        for name, answer in answers.items():
            given = {member.member_id: f"for {member.member_id}".encode() for member in answer.members}
            syncs[name] = self.sync(answer.member_id, answer.generation_id, given)
        for name, ticket in syncs.items():
            assert self.synced(ticket).assignment == f"for {ids[name]}".encode()
        leaders = {answer.leader for answer in answers.values()}
        return dict(sorted(ids.items(), key=lambda item: item[1] not in leaders))

    def state(self, group: str = GROUP) -> str:
        """Return the group's state as DescribeGroups reports it; Dead if there is no group."""
        return self.describe(group).group_state

    def describe(self, group: str = GROUP) -> DescribedGroup:
        return self.ask(DescribeGroupsRequest((group,)), DescribeGroupsAnswer, 5).groups[0]

    def generation(self) -> int:
        """Return the stored generation."""
        kept = stored.from_bytes(self.kept[GROUP])
        return kept.generation_id if isinstance(kept, stored.StoredGroup) else kept.group_epoch
