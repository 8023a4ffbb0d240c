"""Coordinators and scripted agents around a ZooKeeper in memory, in virtual time; a test picks the next actor."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from tests.support.kept_problems import assert_kept_as_made_anew, assert_placed_as_anew
from tests.support.requests import requests
from tests.support.zk_model import Session, ZkModel
from zkrebalancer.assignment import STRATEGIES
from zkrebalancer.protocol import cluster_nodes, command, ownership, paths, registration
from zkrebalancer.protocol.calls import Content, Create, Delete, Done, Get, Multi, Operation, Refused, SetContent
from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.command import StartFetcher
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.effects import (
    Compute,
    Computed,
    Effect,
    Emit,
    Event,
    Now,
    ReadLoads,
    Request,
    RequestEach,
    Stopped,
    Tick,
    Warn,
)
from zkrebalancer.rebalance.election import ElectionState, Identity
from zkrebalancer.rebalance.planning import answer

GROUP = "g"
SESSION_MS = 6_000
EPOCH_OFFSET_MS = 1_700_000_000_000
_decode_given = lru_cache(maxsize=1_000)(ownership.decode_given)
_decode_owners = lru_cache(maxsize=1_000)(ownership.decode_owners)  # most records have not changed since the last step


@dataclass(slots=True)
class CoordinatorProcess:
    machine: Coordinator
    session: Session
    computing: list[Compute] = field(default_factory=list)
    reading: list[ReadLoads] = field(default_factory=list)
    alive: bool = True


@dataclass(slots=True)
class Agent:
    """Registers, and acknowledges commands in order; `name` is None while it is not registered."""

    client: str
    registration: Registration
    session: Session
    name: str | None = None
    registrations: int = 0
    reading: tuple[str, bytes] | None = None  # a command that was read but not acknowledged
    alive: bool = True
    silent: bool = False


@dataclass(slots=True)
class World:
    zk: ZkModel = field(default_factory=ZkModel)
    now_us: int = 1_000_000
    coordinators: list[CoordinatorProcess] = field(default_factory=list)
    agents: dict[str, Agent] = field(default_factory=dict)
    events: list[Emit] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    readable_records: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)
    rogues: set[str] = field(default_factory=set)  # names of agents with false claims
    checked_zxid: int = -1
    evictions_seen: dict[str, tuple[int, int]] = field(default_factory=dict)  # path -> (since, lease), both in us
    has_bugs: bool = False  # the test breaks groups on purpose, and the coordinator may quarantine them

    # Coordinators ---------------------------------------------------------------------------------------------------

    def add_coordinator(
        self, weighing: frozenset[str] = frozenset(), limit: RequestLimit = DEFAULT_LIMIT
    ) -> CoordinatorProcess:
        machine = Coordinator(Identity(len(self.coordinators) + 1, "host"), weighing, limit)
        process = CoordinatorProcess(machine, self.zk.open())
        self.coordinators.append(process)
        return process

    def leader(self) -> CoordinatorProcess:
        leading = ElectionState.LEADING
        return next(c for c in self.coordinators if c.alive and c.machine.coordinator_elector.state is leading)

    def feed(self, process: CoordinatorProcess, event: Event) -> list[Effect]:
        now = Now(self.now_us, EPOCH_OFFSET_MS + self.now_us // 1_000)
        effects = process.machine.step(event, now)
        if process.machine.quarantine.failures and not self.has_bugs:
            raise AssertionError(next(effect.text for effect in effects if isinstance(effect, Warn)))
        for effect in effects:
            if isinstance(effect, Request | RequestEach):
                for one in requests(effect):
                    self.zk.send(process.session, *one)
            elif isinstance(effect, Compute):
                assert_kept_as_made_anew(process.machine.groups, effect)
                process.computing.append(effect)
            elif isinstance(effect, ReadLoads):
                process.reading.append(effect)
            elif isinstance(effect, Emit):
                self.events.append(effect)
            elif isinstance(effect, Warn):
                self.warnings.append(effect.text)
            elif isinstance(effect, Stopped):
                self.kill_coordinator(process)
        return effects

    def deliver(self, process: CoordinatorProcess) -> None:
        self.feed(process, process.session.take())

    def compute(self, process: CoordinatorProcess) -> None:
        task = process.computing.pop(0)
        try:
            transition = answer(task, STRATEGIES)
        except RebalancerError as error:
            self.feed(process, Computed(task.group, task.ticket, None, 0, str(error)))
        else:
            assert_placed_as_anew(STRATEGIES[task.strategy], task, transition)
            self.feed(process, Computed(task.group, task.ticket, transition, 7))

    def move(self, process: CoordinatorProcess) -> bool:
        """Perform one call of a process, deliver one event, or run one computation; False if there is none."""
        if process.session.sent:
            self.zk.perform_next(process.session)
        elif process.session.inbox:
            self.deliver(process)
        elif process.computing:
            self.compute(process)
        else:
            return False
        return True

    def kill_coordinator(self, process: CoordinatorProcess) -> None:
        process.alive = False
        process.computing.clear()
        self.zk.kill(process.session)

    def restart_session(self, process: CoordinatorProcess) -> None:
        """Open a new session, as the client library does after an expiry; its events follow those of the old one."""
        old = process.session
        process.session = self.zk.open()
        process.session.inbox.extendleft(reversed(old.inbox))

    # Agents ---------------------------------------------------------------------------------------------------------

    def add_agent(self, client: str, subscription: dict[str, int] | None = None, **fields: object) -> Agent:
        described: dict[str, object] = {
            "pattern": "static",
            "subscription": subscription or {"t": 1},
            "timestamp": "0",
            "client_id": client,
            "host": "h",
            "session_timeout_ms": SESSION_MS,
            **fields,
        }
        agent = Agent(client, Registration(**described), self.zk.open(SESSION_MS))  # type: ignore[arg-type]
        self.agents[client] = agent
        return agent

    def act(self, agent: Agent) -> bool:
        """Let an agent register, read a command or acknowledge it; False if there is nothing to do."""
        if not agent.alive or agent.silent:
            return False
        if agent.name is None:
            return self._register(agent)
        if agent.reading is None:
            return self._read(agent, agent.name)
        return self._acknowledge(agent, agent.name)

    def _register(self, agent: Agent) -> bool:
        agent.registrations += 1
        name = f"{agent.client}-{agent.registrations}"
        nodes = (
            Create(paths.channel(GROUP, name)),
            Create(paths.ids(GROUP, name), registration.encode(agent.registration), ephemeral=True),
            Create(paths.owners(GROUP, name), ownership.encode_owners(OwnersRecord(0, None, {})), ephemeral=True),
        )
        if not isinstance(self.zk.perform(Multi(nodes), agent.session.session_id), Done):
            return False
        agent.name, agent.reading = name, None
        return True

    def _read(self, agent: Agent, name: str) -> bool:
        channel = paths.channel(GROUP, name)
        if paths.owners(GROUP, name) not in self.zk.nodes:
            agent.name = None  # evicted
            return True
        names = sorted(self.zk.children(channel))
        if not names:
            return False
        agent.reading = (f"{channel}/{names[0]}", self.zk.nodes[f"{channel}/{names[0]}"].content)
        return True

    def _acknowledge(self, agent: Agent, name: str) -> bool:
        path, content = agent.reading or ("", b"")
        agent.reading = None
        owners = self.zk.perform(Get(paths.owners(GROUP, name)))
        if not isinstance(owners, Content):
            agent.name = None
            return True
        try:
            applying, record = command.decode(content), ownership.decode_owners(owners.content)
        except NodeContentError:
            self.leave(agent)
            return True
        new = OwnersRecord(applying.generation, applying.command_id, command.applied(record.partitions, applying))
        writing = SetContent(paths.owners(GROUP, name), ownership.encode_owners(new), owners.stat.version)
        self.zk.perform(Multi((Delete(path), writing)), agent.session.session_id)
        if applying.cause.kind == command.INSTANCE_FENCED:
            self.leave(agent)
            self.kill_agent(agent)
        return True

    def kill_agent(self, agent: Agent) -> None:
        agent.alive = False
        self.zk.kill(agent.session)

    def leave(self, agent: Agent) -> None:
        """Close cleanly; the agent may register again."""
        name, agent.name, agent.reading = agent.name, None, None
        if name is not None:
            channel = paths.channel(GROUP, name)
            deletes: list[Operation] = [Delete(f"{channel}/{node}") for node in self.zk.children(channel)]
            deletes += [Delete(channel), Delete(paths.ids(GROUP, name)), Delete(paths.owners(GROUP, name))]
            self.zk.perform(Multi(tuple(deletes)), agent.session.session_id)

    # Cluster --------------------------------------------------------------------------------------------------------

    def set_topic(self, topic: str, partitions: int, topic_id: str = "id-1") -> None:
        numbers = ",".join(f'"{number}":[1]' for number in range(partitions))
        content = f'{{"version":3,"topic_id":"{topic_id}","partitions":{{{numbers}}}}}'.encode()
        if isinstance(self.zk.perform(Multi((SetContent(paths.topic(topic), content),))), Refused):
            for path in ("/brokers", paths.BROKER_TOPICS):
                self.zk.perform(Multi((Create(path),)))
            self.zk.perform(Multi((Create(paths.topic(topic), content),)))

    def delete_topic(self, topic: str) -> None:
        self.zk.perform(Multi((Delete(paths.topic(topic)),)))

    def create_group(self, content: bytes = b"") -> None:
        for path in (paths.CONSUMERS, paths.GROUPS):
            self.zk.perform(Multi((Create(path),)))
        self.zk.perform(
            Multi(
                (
                    Create(paths.group(GROUP), content),
                    *[Create(f"{paths.group(GROUP)}/{c}") for c in paths.GROUP_CHILDREN],
                )
            )
        )

    def configure(self, content: bytes) -> None:
        self.zk.perform(Multi((SetContent(paths.group(GROUP), content),)))

    # Time -----------------------------------------------------------------------------------------------------------

    def run(self, limit: int = 20_000) -> None:
        """Run all actors until nothing is left to do, without advancing time."""
        for _ in range(limit):
            if not self.run_once():
                return
        raise AssertionError(f"the actors still have work after {limit} rounds")

    def run_once(self) -> bool:
        moved = False
        for process in self.coordinators:
            while process.alive and self._has_work(process):
                moved = True
                if self.zk.is_behind(process.session):
                    self.zk.follow(process.session)
                elif process.session.sent:
                    self.zk.perform_next(process.session)
                elif process.session.inbox:
                    self.deliver(process)
                else:
                    self.compute(process)
                self.check()
        for agent in self.agents.values():
            if self.act(agent):
                moved = True
                self.check()
        return moved

    def _has_work(self, process: CoordinatorProcess) -> bool:
        session = process.session
        return bool(session.sent or session.inbox or process.computing) or self.zk.is_behind(session)

    def next_deadline_us(self) -> int | None:
        deadlines = [p.machine.scheduler.next_deadline_us() for p in self.coordinators if p.alive]
        return min((at for at in deadlines if at is not None), default=None)

    def pass_time(self, milliseconds: int) -> None:
        """Advance time by this much, from deadline to deadline, and run all actors at each."""
        end_us = self.now_us + milliseconds * 1_000
        self.run()
        while (at_us := self.next_deadline_us()) is not None and at_us <= end_us:
            self.now_us = max(self.now_us, at_us)
            self.tick()
            self.run()
        self.now_us = end_us

    def tick(self) -> None:
        for process in self.coordinators:
            if process.alive:
                self.feed(process, Tick())

    # What ZooKeeper stores ------------------------------------------------------------------------------------------

    def owned(self) -> dict[str, dict[TopicPartition, int]]:
        """Return the stored ownership: consumer -> partition -> thread."""
        return {
            name: dict(record.partitions)
            for name in self.zk.children(paths.owners(GROUP))
            if (record := self._owners_record(name)) is not None
        }

    def _owners_record(self, name: str) -> OwnersRecord | None:
        try:
            return _decode_owners(self.zk.nodes[paths.owners(GROUP, name)].content)
        except NodeContentError:
            return None

    def holders(self) -> dict[TopicPartition, set[str]]:
        """Return the holders of each partition, from ownership records, pending starts and eviction records.

        Of an unreadable record, the last readable content counts, because its consumer continues with that.
        """
        held: dict[TopicPartition, set[str]] = {}
        for name in self.zk.children(paths.owners(GROUP)):
            record = self._owners_record(name)
            if record is not None:
                self.readable_records[name] = frozenset(record.partitions)
            given = self.given(name)
            if name not in self.rogues:
                assert record is None or record.partitions.keys() <= given, f"{name} owns what it was not given"
            for partition in self.readable_records.get(name, frozenset()) & given:
                held.setdefault(partition, set()).add(name)
            for node in self.zk.children(paths.channel(GROUP, name)):
                for partition in self._started_by(f"{paths.channel(GROUP, name)}/{node}"):
                    held.setdefault(partition, set()).add(name)
        for name in self.zk.children(paths.evicted(GROUP)):
            evicted = ownership.decode_eviction(self.zk.nodes[paths.evicted(GROUP, name)].content)
            unreadable = self.readable_records.get(name, frozenset()) if evicted.topics else frozenset()
            for partition in evicted.partitions.keys() | unreadable:
                held.setdefault(partition, set()).add(name)
        return held

    def given(self, name: str) -> frozenset[TopicPartition]:
        """Return what the coordinators gave a consumer, as they recorded it."""
        node = self.zk.nodes.get(paths.given(GROUP, name))
        try:
            return _decode_given(node.content) if node is not None else frozenset()
        except NodeContentError:
            return frozenset()

    def _started_by(self, path: str) -> frozenset[TopicPartition]:
        try:
            decoded = command.decode(self.zk.nodes[path].content)
        except NodeContentError:
            return frozenset()
        return frozenset(decoded.partitions) if isinstance(decoded, StartFetcher) else frozenset()

    def check(self) -> None:
        """Assert what must hold after every step, from what ZooKeeper stores."""
        if self.checked_zxid == self.zk.zxid:
            return
        self.checked_zxid = self.zk.zxid
        for partition, names in self.holders().items():
            assert len(names) <= 1, f"{partition} is held by {sorted(names)}"
        present = {paths.evicted(GROUP, name) for name in self.zk.children(paths.evicted(GROUP))}
        for path in self.evictions_seen.keys() - present:
            since_us, lease_us = self.evictions_seen.pop(path)
            assert self.now_us - since_us >= lease_us, f"{path} was removed before its lease was over"
        for path in present - self.evictions_seen.keys():
            lease_ms = ownership.decode_eviction(self.zk.nodes[path].content).lease_ms
            self.evictions_seen[path] = (self.now_us, lease_ms * 1_000)

    def topics(self) -> dict[str, Topic]:
        nodes = {name: self.zk.nodes[paths.topic(name)] for name in self.zk.children(paths.BROKER_TOPICS)}
        return {name: cluster_nodes.decode_topic(node.content, node.created_zxid) for name, node in nodes.items()}

    def generation(self) -> int:
        return cluster_nodes.decode_counter("generation", self.zk.nodes[paths.generation(GROUP)].content)

    def assert_settled(self) -> None:
        """Assert that every partition of the topics has one owner, balanced, with offsets of the right incarnation."""
        topics = self.topics()
        owned = [partition for partitions in self.owned().values() for partition in partitions]
        wanted = (
            [(topic, number) for topic, known in topics.items() for number in known.partitions] if self.owned() else []
        )
        assert sorted(owned) == sorted(wanted), f"owned {sorted(owned)}, wanted {sorted(wanted)}"
        counts = [len(partitions) for partitions in self.owned().values()]
        assert not counts or max(counts) - min(counts) <= 1, f"not balanced: {counts}"
        for topic in {topic for topic, _number in owned}:
            mark = self.zk.nodes[paths.offsets(GROUP, topic)].content.decode()
            names = set(topics[topic].incarnation.split())
            assert names <= set(mark.split()), f"{topic} is read with the offsets of {mark}"  # a mark keeps old names
        groups = self.leader().machine.groups_being_rebalanced
        assert not any(groups.values()), f"still rebalancing: {groups}"

    def assert_nothing_left(self) -> None:
        """Assert that no command, channel of a dead consumer or eviction record is left."""
        names = set(self.owned())
        channels = set(self.zk.children(paths.channel(GROUP)))
        assert channels == names, f"channels of dead consumers: {channels - names}"
        assert not [c for name in names for c in self.zk.children(paths.channel(GROUP, name))], "commands are left"
        assert not self.zk.children(paths.evicted(GROUP)), "eviction records are left"
        given = set(self.zk.children(paths.given(GROUP)))
        assert given <= names, f"records of what was given to dead consumers: {given - names}"
