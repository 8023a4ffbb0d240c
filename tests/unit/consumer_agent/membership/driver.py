"""Drives a machine by hand: events in, effects out, and the ZooKeeper calls that wait for an answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from consumer_agent.membership.duties import Duties
from consumer_agent.membership.effects import Effect, ReadProgress, Request, StopEmitting
from consumer_agent.membership.events import Event, Polled, Position, Progress, Tick
from consumer_agent.membership.offset_books import Storage
from consumer_agent.membership.registered_member import MemberSettings
from consumer_agent.membership.state_machine import MachineSettings, StateMachine
from zkrebalancer.protocol import calls, cluster_nodes, command, ownership, paths
from zkrebalancer.protocol.calls import (
    Call,
    Children,
    Connected,
    Content,
    Done,
    Get,
    ListChildren,
    Multi,
    Reply,
    Stat,
    WatchBelow,
)
from zkrebalancer.protocol.command import Cause, StartFetcher, StopFetcher
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.registration import Registration

GROUP = "g"
CONSUMER = "c-1"
SESSION = 7
SESSION_TIMEOUT_MS = 9_000
LEASE_MS = 6_000
CHANNEL = paths.channel(GROUP, CONSUMER)
OWNERS = paths.owners(GROUP, CONSUMER)
LIST_CHANNEL = ListChildren(CHANNEL)
LIST_WITH_WATCH = ListChildren(CHANNEL, watch=True)  # on servers before ZooKeeper 3.6
WATCH_CHANNEL = WatchBelow(CHANNEL)
LOOK_AT_RESTORE = Get(paths.RESTORE, watch=True)
RENEWAL = Multi((calls.Check(OWNERS),))
CAUSE = Cause("cause-1", "member-joined")
REGISTRATION = Registration("static", {"t": 1}, "", "c", "host", 10_000)

E = TypeVar("E", bound=Effect)

T0: TopicPartition = ("t", 0)
T1: TopicPartition = ("t", 1)


def offset_path(partition: TopicPartition) -> str:
    return paths.offsets(GROUP, *partition)


def content(data: bytes, version: int = 0, owner: int = 0) -> Content:
    return Content(data, Stat(version, 1, 1, owner))


def owners_content(record: OwnersRecord, version: int) -> Content:
    return content(ownership.encode_owners(record), version, SESSION)


class Driver:
    """A machine with a clock that the test turns."""

    def __init__(
        self,
        *,
        auto_commit_interval_ms: int | None = 5_000,
        ask_application: bool = False,
        pause: bool = True,
        instance_id: str | None = None,
        storage: Storage = Storage.ZOOKEEPER,
        begins_anywhere: bool = True,
        tells_origins: bool = False,
        in_region: bool = False,
        keeps_copies: bool = False,
    ) -> None:
        member = MemberSettings(GROUP, auto_commit_interval_ms, ask_application, pause, storage, begins_anywhere)
        duties = Duties(tells_origins or in_region, in_region, keeps_copies)
        member = replace(member, duties=duties)
        self.machine = StateMachine(MachineSettings(member, REGISTRATION._replace(instance_id=instance_id)))
        self.now_ms = 1_000
        self.waiting: dict[int, Call] = {}
        self.sequence = -1
        self.hides_restore = True  # answers at once that no restore runs, and does not show the question

    def step(self, event: Event) -> list[Effect]:
        effects = self.machine.step(event, self.now_ms)
        shown: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Request) and effect.call == LOOK_AT_RESTORE and self.hides_restore:
                shown += self.step(calls.Replied(effect.call_id, calls.Refused(calls.Refusal.NO_NODE)))
                continue
            shown.append(effect)
            if isinstance(effect, Request):
                self.waiting[effect.call_id] = effect.call
        return shown

    def answer(self, call: Call, reply: Reply) -> list[Effect]:
        """Answer the oldest call that waits and equals `call`."""
        for call_id, waiting in self.waiting.items():
            if waiting == call:
                del self.waiting[call_id]
                return self.step(calls.Replied(call_id, reply))
        raise AssertionError(f"{call} does not wait, but {list(self.waiting.values())}")

    def answer_write(self, reply: Reply) -> list[Effect]:
        """Answer the one transaction that waits, besides renewals."""
        (call,) = self.writes()
        return self.answer(call, reply)

    def writes(self) -> list[Multi]:
        return [call for call in self.waiting.values() if isinstance(call, Multi) and call != RENEWAL]

    def tick(self, after_ms: int) -> list[Effect]:
        """Let time pass; if the lease is renewed, answer the list that comes with it."""
        self.now_ms += after_ms
        effects = self.step(Tick())
        if LIST_CHANNEL in self.waiting.values():
            member = self.machine.member
            current = None if member is None else member.channel.current
            self.answer(LIST_CHANNEL, Children(() if current is None else (current,)))
        return effects

    def break_connection(self) -> list[Effect]:
        """Suspend the session and fail every call that is under way."""
        effects = self.step(calls.Suspended())
        for call_id in list(self.waiting):
            del self.waiting[call_id]
            effects += self.step(calls.Replied(call_id, calls.Refused(calls.Refusal.CONNECTION_LOST)))
        return effects

    def connect(self) -> list[Effect]:
        return self.step(Connected(SESSION, SESSION_TIMEOUT_MS))

    def register(self) -> list[Effect]:
        """Bring the machine to ACTIVE, with an empty channel."""
        self.step(Polled(CONSUMER, 5))
        self.connect()
        self.answer(ListChildren(paths.group(GROUP)), Children(tuple(sorted(paths.GROUP_CHILDREN))))
        effects = self.answer_write(self.registered)
        effects += self.answer(WATCH_CHANNEL, Done())
        return effects + self.answer(LIST_CHANNEL, Children(()))

    def register_at_old_server(self) -> None:
        """Bring the machine to ACTIVE on a server that knows no lasting watches."""
        self.step(Polled(CONSUMER, 5))
        self.connect()
        self.answer(ListChildren(paths.group(GROUP)), Children(tuple(sorted(paths.GROUP_CHILDREN))))
        self.answer_write(self.registered)
        self.answer(WATCH_CHANNEL, calls.Refused(calls.Refusal.UNIMPLEMENTED))
        self.answer(LIST_CHANNEL, Children(()))
        self.answer(LIST_WITH_WATCH, Children(()))

    @property
    def registered(self) -> Done:
        return Done((CHANNEL, paths.ids(GROUP, CONSUMER), OWNERS))

    # ---- commands

    def send(self, data: bytes) -> list[Effect]:
        """Put a command into the channel and let it be read."""
        self.sequence += 1
        self.step(calls.Watched(self.command_path, children=False))
        return self.answer(Get(self.command_path), content(data))

    @property
    def command_path(self) -> str:
        return f"{CHANNEL}/command-{self.sequence:010d}"

    def send_start(self, partitions: Iterable[TopicPartition], command_id: str = "start-1") -> list[Effect]:
        return self.send(command.encode(StartFetcher(command_id, 1, 4, CAUSE, dict.fromkeys(partitions, 0))))

    def start(self, stored: Mapping[TopicPartition, int], command_id: str = "start-1") -> list[Effect]:
        """Send a start of partitions with stored offsets, up to where its ack is written."""
        self.send_start(stored, command_id)
        effects: list[Effect] = []
        for partition, offset in sorted(stored.items()):
            reply = content(cluster_nodes.encode_counter(offset))
            effects = self.answer(Get(offset_path(partition)), reply)
        return effects

    def own(self, stored: Mapping[TopicPartition, int]) -> list[Effect]:
        """Start partitions and acknowledge."""
        self.start(stored)
        return self.answer_write(Done((1, None)))

    def stop(self, partitions: frozenset[TopicPartition] | None, command_id: str = "stop-1") -> list[Effect]:
        return self.send(command.encode(StopFetcher(command_id, 1, 5, CAUSE, partitions)))

    def progress(self, effects: list[Effect], positions: Mapping[TopicPartition, Position]) -> list[Effect]:
        """Answer the question for positions that stands in `effects`."""
        (token,) = [effect.token for effect in effects if isinstance(effect, ReadProgress | StopEmitting)]
        return self.step(Progress(token, positions))


def requests(effects: list[Effect]) -> list[Call]:
    return [effect.call for effect in effects if isinstance(effect, Request)]


def of_type(effects: list[Effect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]
