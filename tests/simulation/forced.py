"""A region of unmodified clients in virtual time: Kafka's classic group protocol with an eager assignor, and faults.

A client's event thread acts between any two steps of its application, also while that has a batch in hand. Kafka expels
a client that is dead, frozen or cut off; the client hears of it later, and reads on until then.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.region import RegionRun
from tests.simulation.region_parts import Copies, SimulatedApplication, SimulatedMember
from tests.support.world import GROUP, World
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.region.documents import UNKNOWN, Settings
from zkrebalancer.region.roles import Phase

FAULTS = {
    "kill": 3,
    "freeze": 3,
    "expire-region": 3,
    "expire-kafka": 3,
    "deaf": 3,
    "cut": 8,
    "leader": 3,
    "join": 3,
    "leave": 3,
    "reset": 3,
    "reset-initial": 1,
    "grow": 1,
    "rebalance": 3,
}


@dataclass
class KafkaGroup:
    """Kafka's coordinator of one classic group."""

    ends: dict[TopicPartition, int] = field(default_factory=dict)
    generation: int = 0
    joined: dict[int, bool] = field(default_factory=dict)  # member -> whether it has joined the next generation
    assigned: dict[int, list[TopicPartition]] = field(default_factory=dict)
    expiring: dict[int, int] = field(default_factory=dict)  # member -> when its session is over
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    is_preparing: bool = False
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def join(self) -> int:
        """Let a new member join, and everybody join again."""
        self.rebalance()
        number = next(self._numbers)
        self.join_again(number)
        return number

    def join_again(self, number: int) -> None:
        self.joined[number] = True
        self._maybe_complete()

    def rebalance(self) -> None:
        """Let everybody join again."""
        if not self.is_preparing:
            self.is_preparing, self.joined = True, dict.fromkeys(self.joined, False)

    def remove(self, number: int) -> None:
        """Note that a member has left, or that its session is over."""
        if number in self.joined:
            self.rebalance()
            del self.joined[number]
            self._maybe_complete()

    def expire(self, client: SimulatedClient, at_us: int) -> None:
        """End the session of a client at a time."""
        if client.number is not None:
            self.expiring.setdefault(client.number, at_us)

    def tick(self, now_us: int) -> None:
        for number in [number for number, at_us in self.expiring.items() if now_us >= at_us]:
            del self.expiring[number]
            self.remove(number)

    def _maybe_complete(self) -> None:
        if self.is_preparing and all(self.joined.values()):
            self.is_preparing = False
            self.generation += 1
            partitions, numbers = sorted(self.ends), sorted(self.joined)
            self.assigned = {number: partitions[at :: len(numbers)] for at, number in enumerate(numbers)}


@dataclass
class SimulatedClient:
    """An unmodified client: what `ClassicSource` is for a region. `act` is its event thread."""

    world: World
    kafka: KafkaGroup
    draw: random.Random
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    arrived: set[TopicPartition] = field(default_factory=set)
    has_lost: bool = False
    was_revoked: bool = False
    rebalances: int = 0
    known: int = 0  # of them, those that the application has seen
    number: int | None = None  # its membership
    generation: int | None = None  # of its assignment
    is_started: bool = False
    deaf_until: int = 0  # it hears nothing of its group

    consumer = None
    is_alive = True

    @property
    def has_given_up(self) -> bool:
        return self.has_lost or self.was_revoked

    def held(self) -> dict[TopicPartition, int]:
        self.known = self.rebalances
        return dict(self.positions)

    def store(self) -> bool:
        return True

    def identity(self, _topic: str) -> str:
        return ""

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        self._let_move()
        if self.known == self.rebalances:
            self._assign_at(positions)

    def place(self, positions: Mapping[TopicPartition, int]) -> None:
        self._let_move()
        if self.known == self.rebalances:
            self.arrived.clear()
            self._assign_at(positions)

    def _let_move(self) -> None:
        """Let the event thread hear of its group before it does what it is told."""
        for _ in range(self.draw.choice((0, 0, 1, 3))):
            self.act()

    def _assign_at(self, positions: Mapping[TopicPartition, int]) -> None:
        self.positions.update({tp: at for tp, at in positions.items() if tp in self.positions})
        self.arrived -= positions.keys()

    def next_offsets(self) -> dict[TopicPartition, int]:
        """Return where the client reads on, nothing before all is placed."""
        if self.arrived:
            return {}
        return {tp: self.kafka.committed.get(tp, 0) if at == UNKNOWN else at for tp, at in self.positions.items()}

    def finish(self, batch: Mapping[TopicPartition, tuple[int, int]]) -> None:
        self.positions.update({tp: after for tp, (_first, after) in batch.items() if tp in self.positions})

    def commit(self) -> None:
        if self.number in self.kafka.joined and self.generation == self.kafka.generation:
            self.kafka.committed.update({tp: at for tp, at in self.positions.items() if at != UNKNOWN})

    def act(self) -> bool:
        """Hear one thing of the group, and call back; return whether there was something."""
        kafka = self.kafka
        if not self.is_started or self.world.now_us < self.deaf_until:
            return False
        if self.number is None:
            self.number = kafka.join()
        elif self.number not in kafka.joined:
            self.has_lost = self.has_lost or self.generation is not None
            self._clear()
            self.number = None
        elif kafka.is_preparing and not kafka.joined[self.number]:
            self.was_revoked = self.was_revoked or self.generation is not None
            self._clear()
            kafka.join_again(self.number)
        elif not kafka.is_preparing and self.generation != kafka.generation:
            self.generation = kafka.generation
            self.positions = dict.fromkeys(kafka.assigned[self.number], UNKNOWN)
            self.arrived = set(self.positions)
            self.rebalances += 1
        else:
            return False
        return True

    def _clear(self) -> None:
        self.positions, self.arrived, self.generation = {}, set(), None
        self.rebalances += 1


@dataclass
class CommittingApplication(SimulatedApplication):
    """Its offsets are committed at each checkpoint, for tools that show lag."""

    source: SimulatedClient | None = None

    def checkpoint(self, number: int) -> None:
        if self.source is not None:
            self.source.commit()
        super().checkpoint(number)


class ForcedMember(SimulatedMember):
    """A process with an unmodified client: what `Rounds` does with it."""

    source: SimulatedClient  # type: ignore[assignment]

    def __init__(self, run: ForcedRun, name: str) -> None:
        self.kafka, self.draw = run.kafka, run.draw
        self.in_hand: dict[TopicPartition, tuple[int, int]] = {}
        super().__init__(run.world, name, run.copies, run.log, run.settings)

    def new_source(self) -> SimulatedClient:  # type: ignore[override]
        return SimulatedClient(self.world, self.kafka, self.draw)

    def new_application(self, copies: Copies) -> SimulatedApplication:
        return CommittingApplication(self.name, copies, source=self.source)

    def step(self, draw: random.Random, cut: bool = False) -> None:
        if self.in_hand and self.running is None:
            for tp, (first, after) in self.in_hand.items():
                self.application.process(tp, first, after)
                self.processed += after - first
            self.source.finish(self.in_hand)
            self.in_hand = {}
        else:
            super().step(draw, cut)

    def note_source(self, draw: random.Random) -> bool:
        """Note it at once, or later: the event thread may be faster."""
        if draw.random() < 0.5:
            return False
        has_noted = super().note_source(draw)
        if self.source.was_revoked:
            self.source.was_revoked = False
            has_noted = self.member.revoked() or has_noted
        return has_noted

    def advance_at_once(self) -> None:
        """Follow the present order to its end, before anything of the source is noted."""
        self._read_order()
        self._begin("advance", self.member.advance(self.order))
        while self.running is not None:
            self._perform(self.draw, cut=False)

    def _poll(self, draw: random.Random) -> None:
        source = self.source
        if self.phase is not Phase.FLOW or self.session.expired:
            return
        source.is_started = True
        if source.arrived:
            source.held()
            self._begin("place", self.member.place(set(source.arrived)))
            return
        source.known = source.rebalances
        self.batch = {}
        for tp, position in sorted(source.next_offsets().items()):
            end = min(self.log.ends.get(tp, 0), position + draw.randint(1, 5))
            if end > position:
                self.batch[tp] = (position, end)
        if self.batch:
            self._begin("begin", self.member.begin_records({tp: first for tp, (first, _after) in self.batch.items()}))

    def _ended(self, value: object) -> None:
        if self.task == "place":
            if isinstance(value, dict):
                self.source.place(value)
        elif self.task == "begin":
            if value and not self.session.expired and not self.source.has_given_up:
                self.in_hand = self.batch
            else:
                self.source.seek({tp: first for tp, (first, _after) in self.batch.items()})
            self.batch = {}
        else:
            super()._ended(value)

    def stop(self) -> None:
        """Leave the group, and end the session."""
        if self.source.number is not None:
            self.kafka.remove(self.source.number)
        self.kill()
        self.is_dead, self.has_left = False, True

    def kill(self) -> None:
        self.world.zk.kill(self.session)
        self.is_dead, self.running = True, None
        self.source.is_started = False


class ForcedRun(RegionRun):
    """One run of unmodified clients."""

    def __init__(self, seed: int, faults: int = 12) -> None:
        self.kafka = KafkaGroup()
        self.members: list[ForcedMember] = []  # type: ignore[assignment]
        super().__init__(seed, faults)

    def new_settings(self) -> Settings:
        return Settings("billing", "forced", every_ms=2_000, reset_ms=40_000)

    def add(self, name: str) -> None:
        self.kafka.ends = self.log.ends
        self.members.append(ForcedMember(self, name))

    def step(self) -> None:
        self.kafka.tick(self.world.now_us)
        super().step()

    def is_nearly_answered(self) -> bool:
        """Whether all members but one have answered an open checkpoint."""
        order = self.order()
        if order is None or order.open is None or order.is_resetting:
            return False
        answers = self.world.zk.children(paths.region(GROUP, "contributions", str(order.open.id)))
        return len({name.rpartition(".")[0] for name in answers}) == len(order.open.members) - 1

    def act(self, member: SimulatedMember) -> None:
        client: Any = member.source
        client.act()

    def serve_all(self) -> None:
        """Do nothing: every member reads both topics."""

    # ---- faults

    def fault(self) -> None:
        kind = self.draw.choices(list(FAULTS), list(FAULTS.values()))[0]
        self.seen[kind] += 1
        actors = self.running()
        member = self.draw.choice(actors) if actors else None
        if kind == "leader":
            self.lose_leader()
        elif kind in {"reset", "reset-initial"}:
            self.ask(kind)
        elif kind == "grow":
            number = sum(topic == "t" for topic, _number in self.log.ends)
            self.world.set_topic("t", number + 1)
            self.log.ends["t", number] = 0
            self.kafka.rebalance()
        elif kind == "rebalance":
            self.kafka.rebalance()
        elif kind == "join" or not isinstance(member, ForcedMember):
            self.join()
        else:
            self.hurt(kind, member)

    def hurt(self, kind: str, member: SimulatedMember) -> None:
        assert isinstance(member, ForcedMember)
        now_us, client = self.world.now_us, member.source
        later_us = now_us + self.draw.randint(0, 2_000_000)
        if kind == "kill":
            self.kafka.expire(client, later_us)
            super().hurt(kind, member)
        elif kind == "freeze":
            member.frozen_until = now_us + self.draw.randint(500_000, 3_000_000)
            if self.draw.random() < 0.5:
                self.kafka.expire(client, later_us)
            if self.draw.random() < 0.5:
                self.world.zk.end(member.session)
        elif kind == "expire-kafka":
            self.kafka.expire(client, now_us)
        elif kind == "deaf":
            client.deaf_until = now_us + self.draw.randint(300_000, 3_000_000)
            self.kafka.expire(client, min(later_us, client.deaf_until))
        else:
            super().hurt(kind, member)

    # ---- promises

    def is_done(self) -> bool:
        positions: dict[TopicPartition, int] = {}
        for member in self.running():
            assert isinstance(member, ForcedMember)
            positions.update(member.source.next_offsets())
            if member.phase is not Phase.FLOW or member.running is not None or member.in_hand:
                return False
        order = self.order()
        flows = order is not None and order.open is None and order.pending is None
        return not self.running() or (flows and positions == self.log.ends)
