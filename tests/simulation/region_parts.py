"""The parts of a simulated region: consumers, applications with a state of their own, and members of the region."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.world import GROUP, Agent, World
from tests.support.zk_model import Session
from zkrebalancer.protocol import command, ownership, paths, registration
from zkrebalancer.protocol.calls import (
    Call,
    Content,
    Create,
    Delete,
    Done,
    Get,
    Multi,
    Operation,
    Refusal,
    Refused,
    Reply,
    SetContent,
)
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Order, Settings
from zkrebalancer.region.member import Member
from zkrebalancer.region.roles import Phase

PIECE_BYTES = 1_200  # so that answers and merges have several pieces
Effects = dict[TopicPartition, list[int]]  # offsets of the records that a state reflects, in order
Copies = dict[tuple[str, int], Effects]  # (member, checkpoint) -> the state that it has stored


def read_order(content: bytes) -> Order | None:
    """Return an order, None for foreign bytes, as a member's session does."""
    try:
        return documents.decode_order(content)
    except NodeContentError:
        return None


@dataclass
class Log:
    """Kafka's records: only their numbers."""

    ends: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass
class SimulatedConsumer:
    """A consumer of the central group: what a region sees of it. Stops are applied between two polls only."""

    world: World
    agent: Agent
    log: Log
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    arriving: list[TopicPartition] = field(default_factory=list)  # acknowledged, and not visible yet
    has_lost: bool = False

    @property
    def has_given_up(self) -> bool:
        return self.has_lost

    @property
    def consumer(self) -> str | None:
        return self.agent.name

    @property
    def is_alive(self) -> bool:
        return not self.agent.session.expired

    def held(self) -> dict[TopicPartition, int]:
        return dict(self.positions)

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        self.positions.update({tp: offset for tp, offset in positions.items() if tp in self.positions})

    def store(self) -> bool:
        self.commit()
        return self.agent.name is not None and self.is_alive

    def identity(self, _topic: str) -> str:
        return "id-1"

    def subscribe(self, topics: Sequence[str]) -> None:
        """Read these topics from now on."""
        agent = self.agent
        agent.registration = agent.registration._replace(subscription=dict.fromkeys(topics, 1))
        if agent.name is not None:
            write = SetContent(paths.ids(GROUP, agent.name), registration.encode(agent.registration))
            self.world.zk.perform(Multi((write,)), agent.session.session_id)

    def let_arrive(self) -> bool:
        """Make the next started partition visible to the application."""
        if not self.arriving:
            return False
        tp = self.arriving.pop(0)
        self.positions[tp] = self._stored(tp)
        return True

    def _stored(self, tp: TopicPartition) -> int:
        node = self.world.zk.nodes.get(paths.offsets(GROUP, *tp))
        return int(node.content) if node is not None else 0

    def lose(self) -> None:
        """The session is over, or the coordinator has evicted the consumer: it joins again under another name."""
        self.has_lost = self.has_lost or bool(self.positions or self.arriving)
        self.positions.clear()
        self.arriving.clear()
        self.agent.name, self.agent.reading = None, None
        if self.agent.session.expired:
            self.agent.session = self.world.zk.open()

    def act(self, *, within_poll: bool) -> bool:
        """Join, read or acknowledge a command; a stop only `within_poll`."""
        agent, zk = self.agent, self.world.zk
        if agent.name is None:
            return self.world.act(agent)
        if paths.owners(GROUP, agent.name) not in zk.nodes:
            self.lose()
            return True
        if agent.reading is None:
            return self.world.act(agent)
        return self._apply(agent.name, *agent.reading, within_poll=within_poll)

    def _apply(self, name: str, path: str, content: bytes, *, within_poll: bool) -> bool:
        try:
            applying = command.decode(content)
        except NodeContentError:
            raise AssertionError(f"{path}: {content!r}") from None
        is_stop = isinstance(applying, command.StopFetcher)
        if is_stop and not within_poll:
            return False
        self.agent.reading = None
        reply = self.world.zk.perform(Get(paths.owners(GROUP, name)))
        assert isinstance(reply, Content)
        record = ownership.decode_owners(reply.content)
        after = command.applied(record.partitions, applying)
        new = OwnersRecord(applying.generation, applying.command_id, after)
        stopped = sorted(record.partitions.keys() - after.keys())
        owners = SetContent(paths.owners(GROUP, name), ownership.encode_owners(new), reply.stat.version)
        operations: list[Operation] = [Delete(path), owners]
        operations += [self._store(tp) for tp in stopped if tp in self.positions]
        done = self.world.zk.perform(Multi(tuple(operations)), self.agent.session.session_id)
        if isinstance(done, Done):
            for tp in stopped:
                self.positions.pop(tp, None)
                self.arriving = [other for other in self.arriving if other != tp]
            self.arriving += sorted(after.keys() - record.partitions.keys())
        return True

    def _store(self, tp: TopicPartition) -> Operation:
        path, content = paths.offsets(GROUP, *tp), str(self.positions[tp]).encode()
        above = paths.offsets(GROUP, tp[0])
        if above not in self.world.zk.nodes:
            self.world.zk.perform(Multi((Create(above, b"id-1"),)))
        return SetContent(path, content) if path in self.world.zk.nodes else Create(path, content)

    def commit(self) -> None:
        """Store the positions, as the automatic commit does at any time."""
        if self.agent.name is not None and self.positions and not self.agent.session.expired:
            self.world.zk.perform(
                Multi(tuple(self._store(tp) for tp in sorted(self.positions))), self.agent.session.session_id
            )


@dataclass
class SimulatedApplication:
    """A state that lists the records it reflects, and its durable copies."""

    name: str
    copies: Copies
    state: Effects = field(default_factory=dict)
    resets: int = 0
    checkpoints: int = 0

    def checkpoint(self, number: int) -> None:
        assert (self.name, number) not in self.copies, f"{self.name} stores checkpoint {number} twice"
        self.copies[self.name, number] = {tp: list(found) for tp, found in self.state.items()}
        self.checkpoints += 1

    def reset(self, number: int | None) -> None:
        copy: Effects = {} if number is None else self.copies[self.name, number]
        self.state = {tp: list(found) for tp, found in copy.items()}
        for name, other in list(self.copies):
            if name == self.name and other != number:
                del self.copies[name, other]
        self.resets += 1

    def retire(self, number: int) -> None:
        for name, other in list(self.copies):
            if name == self.name and other < number:
                del self.copies[name, other]

    def process(self, tp: TopicPartition, first: int, after: int) -> None:
        self.state.setdefault(tp, []).extend(range(first, after))


class SimulatedMember:
    """A process: its consumer, its region session, and a generator that waits for replies."""

    def __init__(self, world: World, name: str, copies: Copies, log: Log, settings: Settings) -> None:
        self.world, self.name = world, name
        self.log = log
        self.source = self.new_source()
        self.application = self.new_application(copies)
        self.member = Member(GROUP, name, settings, self.source, self.application, PIECE_BYTES)
        self.session: Session = world.zk.open()
        self.order: Order | None = None
        self.phase = Phase.OUT
        self.running: Generator[Sequence[Call], Sequence[Reply], object] | None = None
        self.calls: Sequence[Call] = ()
        self.task = ""
        self.batch: dict[TopicPartition, tuple[int, int]] = {}
        self.is_dead = self.has_left = self.is_joined = False
        self.dies_when_it_has_left = False
        self.frozen_until = 0
        self.processed = 0

    def new_source(self) -> SimulatedConsumer:
        world = self.world
        agent = world.add_agent(f"{self.name}-{len(world.agents)}", {"t": 1, "u": 1}, stop_timeout_ms=1_000)
        return SimulatedConsumer(world, agent, self.log)

    def new_application(self, copies: Copies) -> SimulatedApplication:
        return SimulatedApplication(self.name, copies)

    @property
    def is_running(self) -> bool:
        return not self.is_dead and not self.has_left

    # ---- one step

    def step(self, draw: random.Random, cut: bool = False) -> None:
        """Do one thing that the application's thread does next; `cut`: its calls' replies are lost."""
        if self.running is not None:
            self._perform(draw, cut=cut)
            return
        if self.session.expired:
            self.session = self.world.zk.open()
            self.member.session_lost()
            self.order = None
        if draw.random() < 0.7:
            self._read_order()
        if self.phase is Phase.OUT or self.member.zxid is None:
            self._begin("register", self.member.register(lambda: self.session.session_id))
        elif self.note_source(draw):
            pass
        elif draw.random() < 0.5:
            self._poll(draw)
        else:
            self._begin("advance", self.member.advance(self.order))

    def note_source(self, _draw: random.Random) -> bool:
        """Tell the member what the consumer's callbacks have reported; return whether there was something."""
        if not self.source.has_lost:
            return False
        self.source.has_lost = False
        self.member.lost("partitions were lost")
        return True

    def _begin(self, task: str, running: Generator[Sequence[Call], Sequence[Reply], object]) -> None:
        self.task, self.running = task, running
        self._go_on(None)

    def _go_on(self, replies: Sequence[Reply] | None) -> None:
        assert self.running is not None
        try:
            self.calls = next(self.running) if replies is None else self.running.send(replies)
            if self.calls == [look := Get(paths.RESTORE)]:  # at once: what is written afterwards takes steps
                self.calls = self.running.send([self.world.zk.perform(look, self.session.session_id)])
        except StopIteration as end:
            self.running = None
            self._ended(end.value)

    def _perform(self, draw: random.Random, *, cut: bool) -> None:
        """Perform the calls; with `cut`, the connection breaks after one of them, whose reply is lost as well."""
        last = draw.randrange(len(self.calls) + 1) if cut else len(self.calls)
        replies: list[Reply] = []
        for index, call in enumerate(self.calls):
            lost = Refused(Refusal.SESSION_EXPIRED if self.session.expired else Refusal.CONNECTION_LOST)
            if index > last or self.session.expired:
                replies.append(lost)
            else:
                reply = self.world.zk.perform(call, self.session.session_id)
                replies.append(lost if index == last else reply)
            self.world.check()
        self._go_on(replies)

    def _read_order(self) -> None:
        reply = self.world.zk.perform(Get(paths.region(GROUP, "order")))
        self.order = read_order(reply.content) if isinstance(reply, Content) else None

    def _ended(self, value: object) -> None:
        if self.task == "register":
            self.phase = Phase.WAIT if value else Phase.OUT
        elif self.task == "advance":
            assert isinstance(value, Phase)
            self.phase = value
            self.has_left = value is Phase.LEFT
            self.is_joined = self.is_joined or value is Phase.FLOW
            if self.has_left and self.dies_when_it_has_left:
                self.kill()
            elif self.has_left:
                self.stop()
        elif self.task == "begin" and value:
            self._process()
        else:
            self.batch = {}

    # ---- records

    def _poll(self, draw: random.Random) -> None:
        """Run callbacks, and process some records, if they flow and both sessions hold."""
        if self.is_joined:
            self.source.act(within_poll=True)
        if self.source.has_lost:
            return
        if self.phase is Phase.FLOW and not self.session.expired and self.source.is_alive and self.is_joined:
            self.batch = {}
            for tp, position in sorted(self.source.positions.items()):
                end = min(self.log.ends.get(tp, 0), position + draw.randint(1, 5))
                if end > position:
                    self.batch[tp] = (position, end)
            if self.batch:
                first = {tp: first for tp, (first, _after) in self.batch.items()}
                self._begin("begin", self.member.begin_records(first))

    def _process(self) -> None:
        if self.session.expired or not self.source.is_alive:  # the lease is over: the records are not returned
            self.batch = {}
            return
        for tp, (first, after) in self.batch.items():
            if self.source.positions.get(tp) == first:
                self.application.process(tp, first, after)
                self.source.positions[tp] = after
                self.processed += after - first
        self.batch = {}

    # ---- the end

    def stop(self) -> None:
        """Close cleanly: final offsets, then both sessions."""
        self.source.commit()
        self.world.leave(self.source.agent)
        self.kill()
        self.is_dead, self.has_left = False, True

    def kill(self) -> None:
        """Die at once."""
        self.world.kill_agent(self.source.agent)
        self.world.zk.kill(self.session)
        self.is_dead, self.running = True, None
