"""The consumer's real machine in a shell without threads, which performs every effect at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from consumer_agent.membership import effects, events
from consumer_agent.membership.effects import Effect
from consumer_agent.membership.events import Event, Position
from consumer_agent.membership.registered_member import MemberSettings
from consumer_agent.membership.state_machine import MachineSettings, StateMachine
from tests.support.zk_model import Session, ZkModel
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.registration import Registration


@dataclass(slots=True)
class Log:
    """How far each partition has been read: a consumer that starts beyond that skips records."""

    read: dict[TopicPartition, int] = field(default_factory=dict)


class ConsumerProcess:
    """A consumer that joins at once, reads one record of each partition before giving it up, and never leaves."""

    def __init__(self, zk: ZkModel, log: Log, group: str, client: str, topic: str, session_ms: int, life: int) -> None:
        registration = Registration("static", {topic: 1}, "0", client, "h", session_ms)
        member = MemberSettings(group, auto_commit_interval_ms=None)
        self.machine = StateMachine(MachineSettings(member, registration))
        self.client = client
        self.alive = True
        self.session: Session | None = None
        self.emit_until_ms = 0
        self.emitting: set[TopicPartition] = set()
        self.positions: dict[TopicPartition, int] = {}
        self._zk, self._log = zk, log
        self._session_ms = session_ms
        self._life, self._registrations = life, 0
        self._events: deque[Event] = deque()

    def poll(self, now_ms: int) -> None:
        """Poll as an application, which makes the consumer join."""
        self._registrations += 1
        self.feed(events.Polled(f"{self.client}-{self._life}.{self._registrations}", 0), now_ms)

    def feed(self, event: Event, now_ms: int) -> None:
        """Pass an event to the machine, and perform the effects."""
        self._events.append(event)
        while self._events:
            for effect in self.machine.step(self._events.popleft(), now_ms):
                performer = _PERFORMERS.get(type(effect))
                if performer is not None:
                    performer(self, effect)

    def kill(self) -> None:
        """Kill the process; its session ends at once."""
        self.alive = False
        self.emitting.clear()
        if self.session is not None:
            self._zk.kill(self.session)

    @property
    def name(self) -> str:
        """The registered name, empty without a registration."""
        return "" if self.machine.member is None else self.machine.member.name

    def emits(self, partition: TopicPartition, now_ms: int) -> bool:
        """Whether a poll would return records of the partition now."""
        return self.alive and partition in self.emitting and now_ms < self.emit_until_ms

    def _open(self, _effect: effects.OpenSession) -> None:
        self.session = self._zk.open(self._session_ms)

    def _close(self, _effect: effects.CloseSession) -> None:
        if self.session is not None and not self.session.expired:
            self._zk.kill(self.session)
        self.session = None

    def _request(self, effect: effects.Request) -> None:
        if self.session is not None:
            self._zk.send(self.session, effect.call_id, effect.call)

    def _emit_until(self, effect: effects.EmitUntil) -> None:
        self.emit_until_ms = effect.until_ms

    def _progress(self, effect: effects.ReadProgress | effects.StopEmitting) -> None:
        if isinstance(effect, effects.StopEmitting):
            for partition in effect.partitions & self.emitting:
                self.positions[partition] += 1  # the record read meanwhile
                self._log.read[partition] = max(self._log.read.get(partition, 0), self.positions[partition])
            self.emitting -= effect.partitions
        positions = {partition: Position(offset, offset) for partition, offset in self.positions.items()}
        self._events.appendleft(events.Progress(effect.token, positions))

    def _resolve(self, effect: effects.ResolveOffsets) -> None:
        self._events.append(events.OffsetsResolved(effect.token, dict.fromkeys(effect.partitions, 0)))

    def _start(self, effect: effects.StartFetching) -> None:
        for partition, offset in effect.positions.items():
            end = self._log.read.get(partition, 0)
            assert offset <= end, f"{partition} starts at {offset}, but was read only up to {end}"
        self.positions.update(effect.positions)
        self.emitting.update(effect.positions)

    def _resume(self, effect: effects.ResumeFetching) -> None:
        self.emitting |= effect.partitions & self.positions.keys()

    def _forget(self, effect: effects.Forget) -> None:
        self.emitting -= effect.partitions
        for partition in effect.partitions:
            self.positions.pop(partition, None)

    def _revoked(self, effect: effects.AskRevoke) -> None:
        self._events.append(events.Revoked(effect.token))

    def _out(self, _effect: effects.BecameOut) -> None:
        self._registrations += 1
        self._events.append(events.Polled(f"{self.client}-{self._life}.{self._registrations}", 0))

    def _failed(self, effect: effects.Failed) -> None:
        raise AssertionError(f"{self.client}: {effect.error}")


_PERFORMERS: dict[type[Effect], Callable[..., None]] = {
    effects.OpenSession: ConsumerProcess._open,
    effects.CloseSession: ConsumerProcess._close,
    effects.Request: ConsumerProcess._request,
    effects.EmitUntil: ConsumerProcess._emit_until,
    effects.ReadProgress: ConsumerProcess._progress,
    effects.StopEmitting: ConsumerProcess._progress,
    effects.ResolveOffsets: ConsumerProcess._resolve,
    effects.StartFetching: ConsumerProcess._start,
    effects.ResumeFetching: ConsumerProcess._resume,
    effects.Forget: ConsumerProcess._forget,
    effects.AskRevoke: ConsumerProcess._revoked,
    effects.BecameOut: ConsumerProcess._out,
    effects.Failed: ConsumerProcess._failed,
}
