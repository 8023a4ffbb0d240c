"""One plan of one shape: runs it step by step, and interrupts it at any step.

All processes are the real machines; only time, ZooKeeper and Kafka's records are simulated. A step is one ZooKeeper
call of one actor. Between steps, every actor does at once what needs no call.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from consumer_agent.membership import events
from tests.interruptions.consumers import ConsumerProcess, Log
from tests.interruptions.shapes import Shape
from tests.support.world import GROUP, CoordinatorProcess, World
from tests.support.zk_model import Session
from zkrebalancer.assignment.columns import NOBODY, Columns, Rows
from zkrebalancer.assignment.transition import Transition, place
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.effects import Compute, Computed
from zkrebalancer.rebalance.election import ElectionState

TOPIC = "t"
SESSION_MS = 6_000
CALM_MS = 90_000  # within which an interrupted plan must reach its goal
MAX_ACTS = 20_000

Actor = CoordinatorProcess | ConsumerProcess


class Interruption(Enum):
    """What happens to an actor that is about to make a call, or to another one at that moment."""

    CALL_LOST = "the call is lost with the connection"
    REPLY_LOST = "the reply is lost with the connection"
    EXPIRED = "its session expires"
    DIED_BEFORE = "it dies before the call"
    DIED_AFTER = "it dies after the call, before the reply"
    OTHER_DIED = "another actor dies before the call"


class Schedule(Enum):
    """Which of the actors that can move is next."""

    IN_TURN = "one call each, in turn"
    COORDINATOR_FIRST = "the coordinator until it waits, then each consumer"
    CONSUMERS_FIRST = "the last consumer until it waits, …, then the coordinator"


@dataclass(frozen=True, slots=True)
class Step:
    """An actor (the coordinator: 0, the consumers: 1, 2, …) and the call that it is about to make."""

    actor: int
    call: str


class NotReachedError(AssertionError):
    """The group did not settle on the wanted owners."""


@dataclass(slots=True)
class PlanWorld:
    """A group in the state before the plan, then on its way to the state after."""

    shape: Shape
    mode: str
    schedule: Schedule
    cluster: World = field(default_factory=World)
    log: Log = field(default_factory=Log)
    consumers: list[ConsumerProcess] = field(default_factory=list)
    wanted: dict[int, int] = field(default_factory=dict)  # partition -> member
    lives: int = 0
    turn: int = 0

    def prepare(self) -> None:
        """Bring the group to the state before, and request the state after."""
        self.cluster.set_topic(TOPIC, len(self.shape.moves))
        self.cluster.create_group(settings.encode(GroupSettings(mode=self.mode, strategy="before")))
        self.cluster.add_coordinator()
        self.cluster.add_coordinator()  # a standby
        self.wanted = {p: before for p, (before, _after) in enumerate(self.shape.moves) if before is not None}
        for member in range(self.shape.members):
            self._start_consumer(member)
        self.run(lambda: self.owned() == self.wanted and self._is_quiet())
        self.wanted = {p: after for p, (_before, after) in enumerate(self.shape.moves)}
        self.cluster.configure(settings.encode(GroupSettings(mode=self.mode, strategy="after")))

    def is_done(self) -> bool:
        """Whether the state after is reached, and nothing is left of the transition."""
        return self.owned() == self.wanted and self._is_quiet()

    def owned(self) -> dict[int, int]:
        """Return partition -> member, from the ownership records."""
        return {
            number: int(name.partition("-")[0].removeprefix("c"))
            for name, partitions in self.cluster.owned().items()
            for _topic, number in partitions
        }

    def _is_quiet(self) -> bool:
        zk = self.cluster.zk
        channels = zk.children(paths.channel(GROUP))
        is_clean = channels == zk.children(paths.owners(GROUP)) == zk.children(paths.ids(GROUP))
        has_commands = any(zk.children(paths.channel(GROUP, name)) for name in channels)
        leading = [c for c in self.cluster.coordinators if c.alive and _leads(c)]
        is_settled = bool(leading) and not any(leading[0].machine.groups_being_rebalanced.values())
        is_complete = len(channels) == self.shape.members
        return is_clean and is_complete and is_settled and not has_commands and not zk.children(paths.evicted(GROUP))

    # Moving ---------------------------------------------------------------------------------------------------------

    def run(self, is_done: Callable[[], bool]) -> None:
        """Run in virtual time until all actors are at rest and `is_done`."""
        for _step in self.steps(is_done):
            pass

    def steps(self, is_done: Callable[[], bool]) -> Iterator[Step]:
        """Run like `run`, and yield every step before it is made."""
        end_us = self.cluster.now_us + CALM_MS * 1_000
        for _ in range(MAX_ACTS):
            index = self._next_actor()
            if index is None:
                if is_done():
                    return
                self._pass_time(end_us)
                continue
            actor = self.actors()[index]
            if not self._advance(actor):
                session = session_of(actor)
                yield Step(index, str(session.sent[0][1]))
                if session is session_of(actor) and session.sent:
                    self.cluster.zk.perform_next(session)
            self.check()
        raise NotReachedError("the group does not come to rest")

    def actors(self) -> list[Actor]:
        """Return all living actors, the leading coordinator first."""
        alive = [process for process in self.cluster.coordinators if process.alive]
        return [*sorted(alive, key=lambda process: not _leads(process)), *self.consumers]

    def _next_actor(self) -> int | None:
        able = [index for index, actor in enumerate(self.actors()) if self._can_move(actor)]
        if not able:
            return None
        if self.schedule is Schedule.COORDINATOR_FIRST:
            return able[0]
        if self.schedule is Schedule.CONSUMERS_FIRST:
            return able[-1]
        self.turn = next((index for index in able if index > self.turn), able[0])
        return self.turn

    def _can_move(self, actor: Actor) -> bool:
        session = session_of(actor)
        return bool(session.inbox or session.sent or (isinstance(actor, CoordinatorProcess) and actor.computing))

    def _advance(self, actor: Actor) -> bool:
        """Do one thing that needs no call; return False if there is none."""
        session = session_of(actor)
        if session.inbox:
            if isinstance(actor, CoordinatorProcess):
                self.cluster.deliver(actor)
            else:
                actor.feed(session.take(), self.now_ms)
        elif isinstance(actor, CoordinatorProcess) and actor.computing:
            task = actor.computing.pop(0)
            self.cluster.feed(actor, Computed(task.group, task.ticket, self._transition(task), 0))
        else:
            return False
        return True

    def _transition(self, task: Compute) -> Transition:
        """Run the strategy, which assigns each partition to its wanted member if that is present."""

        def give(columns: Columns, _options: object) -> tuple[Rows, Rows]:
            clients = {int(name.partition("-")[0].removeprefix("c")): row for row, name in enumerate(columns.consumers)}
            wanted = [clients.get(self.wanted.get(number, NOBODY), NOBODY) for number in range(len(columns.topic))]
            member = np.array(wanted, np.int32)
            return member, np.minimum(member, 0)

        return place(give, task.problem, task.before, task.changed, task.everything)

    def _pass_time(self, end_us: int) -> None:
        deadlines = [consumer.machine.wake_at_ms for consumer in self.consumers]
        at_us = [ms * 1_000 for ms in deadlines if ms is not None]
        if (coordinators := self.cluster.next_deadline_us()) is not None:
            at_us.append(coordinators)
        if not at_us or min(at_us) > end_us:
            raise NotReachedError(f"at rest with {self.owned()}, wanted {self.wanted}")
        self.cluster.now_us = max(self.cluster.now_us, min(at_us))
        self.cluster.tick()
        for consumer in self.consumers:
            wake_at_ms = consumer.machine.wake_at_ms
            if wake_at_ms is not None and wake_at_ms <= self.now_ms:
                consumer.feed(TICK, self.now_ms)

    # Interrupting ---------------------------------------------------------------------------------------------------

    def interrupt(self, interruption: Interruption, index: int, other: int) -> None:
        """Interrupt the actor that is about to make a call; with OTHER_DIED, the actor `other` dies."""
        actor, zk = self.actors()[index], self.cluster.zk
        session = session_of(actor)
        if interruption in {Interruption.REPLY_LOST, Interruption.DIED_AFTER}:
            zk.perform_next(session)
        if interruption in {Interruption.CALL_LOST, Interruption.REPLY_LOST}:
            zk.disconnect(session)
            zk.reconnect(session)
        elif interruption is Interruption.EXPIRED:
            self.cluster.now_us += SESSION_MS * 1_000  # sessions end no earlier, and the lease has ended by then
            zk.expire(session)
            if isinstance(actor, CoordinatorProcess):
                self.cluster.restart_session(actor)
        else:
            self._replace(self.actors()[other] if interruption is Interruption.OTHER_DIED else actor)
        self.check()

    def _replace(self, actor: Actor) -> None:
        """Kill a process and start it again, from the stored state."""
        if isinstance(actor, CoordinatorProcess):
            self.cluster.kill_coordinator(actor)
            self.cluster.add_coordinator()
        else:
            actor.kill()
            self.consumers.remove(actor)
            self._start_consumer(int(actor.client.removeprefix("c")))

    def _start_consumer(self, member: int) -> None:
        self.lives += 1
        consumer = ConsumerProcess(self.cluster.zk, self.log, GROUP, f"c{member}", TOPIC, SESSION_MS, self.lives)
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda consumer: consumer.client)
        consumer.poll(self.now_ms)

    # Checking -------------------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """The clock of the consumers, in milliseconds."""
        return self.cluster.now_us // 1_000

    def check(self) -> None:
        """Assert the invariants that hold after every step."""
        self.cluster.check()
        owned = {name: partitions.keys() for name, partitions in self.cluster.owned().items()}
        evicted = self.cluster.zk.children(paths.evicted(GROUP))
        for number in range(len(self.shape.moves)):
            emitting = [c for c in self.consumers if c.emits((TOPIC, number), self.now_ms)]
            assert len(emitting) <= 1, f"{number} is read by {[c.client for c in emitting]}"
            for consumer in emitting:
                is_owner = (TOPIC, number) in owned.get(consumer.name, ()) or consumer.name in evicted
                assert is_owner, f"{number} is read by {consumer.name}, whose record does not have it"

    def freeze(self) -> bytes:
        """Return a copy of the whole world as bytes, several times as fast as a deep copy."""
        return pickle.dumps(self)

    @staticmethod
    def thaw(frozen: bytes) -> PlanWorld:
        """Return the world of a copy."""
        world: PlanWorld = pickle.loads(frozen)  # noqa: S301  # our own
        return world


TICK = events.Tick()


def session_of(actor: Actor) -> Session:
    """Return the session of an actor."""
    assert actor.session is not None, "every actor here has a session"
    return actor.session


def _leads(process: CoordinatorProcess) -> bool:
    return process.machine.coordinator_elector.state is ElectionState.LEADING
