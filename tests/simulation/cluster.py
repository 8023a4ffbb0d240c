"""A whole cluster in virtual time, built from a plan: ensemble, brokers, coordinators, agents with applications."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from consumer_agent.membership.offset_books import MARK_PREFIX
from consumer_agent.runtime.record_buffer import Fairness, Prefetch
from tests.simulation import shards
from tests.simulation.agent import AgentHost, AgentSettings
from tests.simulation.application import Application
from tests.simulation.coordinator import CoordinatorHost
from tests.simulation.emission import EmissionInvariants
from tests.simulation.ensemble import Ensemble
from tests.simulation.graces import GraceInvariants
from tests.simulation.hostile_invariants import CallRates, OffsetInvariants
from tests.simulation.invariants import OPERATOR, TreeInvariants
from tests.simulation.kafka import Brokers
from tests.simulation.operator_invariants import OperatorInvariants
from tests.simulation.operators import Command, Disk, OperatorHost
from tests.simulation.plan import GROUPS, Plan, Scenario
from tests.simulation.promises import BrokenPromiseError
from tests.simulation.schedule import Schedule
from tests.simulation.store import CHOICES
from tests.support.zk_model import Session
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Delete, Done, Multi, Operation, SetContent
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.rebalance.effects import Emit

FindProblem = Callable[[], str | None]

TOPICS = {"t": 4, "u": 2}
MAX_AGENTS = 4  # in a group
RECORD_INTERVAL_US = (80_000, 600_000)
COORDINATOR_SESSION_MS = 3_000
AGENT_SESSIONS_MS = (2_000, 3_000, 4_000)
SETTINGS = (
    '"rebalance_timeout_ms":1500,"max_rebalance_retries":1',
    '"rebalance_timeout_ms":400,"max_rebalance_retries":1',
    '"rebalance_timeout_ms":40,"max_rebalance_retries":3',
    '"rebalance_timeout_ms":800,"max_rebalance_retries":0,"rebalance_debounce_ms":0',
)
MAX_POLL_INTERVALS_MS = (2_500, 2_500, 300_000)  # shorter than a hang of an application, or longer than a run
STOP_TIMEOUTS_MS = (None, 300, 3_000)  # the group's limit, a shorter one, a longer one
OWN_GRACES_MS = {"i2": 4_000}  # by instance
STATIC_GRACE = '"static_grace_ms":1500'


class Cluster:
    """All participants of one run."""

    def __init__(self, plan: Plan, *, tells: bool = False) -> None:
        self.plan = plan
        self.random = Random(f"{plan.seed}/cluster")
        self.schedule = Schedule(tells=tells)
        self.ensemble = Ensemble(self.schedule, plan.seed)
        self.brokers = Brokers(self.schedule)
        self.storages = {group: self.random.choice(CHOICES) for group in GROUPS}
        self.coordinators: list[CoordinatorHost] = []
        self.agents: list[AgentHost] = []
        self.operators: list[OperatorHost] = []
        self.empty_until_us = dict.fromkeys(GROUPS, 0)  # a group's consumers are stopped for a command
        self.commands_to_come = 0
        self.unled_until_us = 0  # coordinators are stopped for a command
        self.is_restoring = False  # an operator puts the tree back
        self.kept_topics: set[str] = set()  # whose offsets an operator puts back
        self.disk = Disk()
        self.applications: dict[str, Application] = {}
        self.tree = TreeInvariants(self.ensemble, self.is_sound)
        OperatorInvariants(self.ensemble, self.tree)
        self.emission = EmissionInvariants(
            self.ensemble, self.is_sound, self.life, self.stored_life, lambda: self.agents
        )
        self.graces = GraceInvariants(self.ensemble)
        self.offsets = OffsetInvariants(self.ensemble, self.brokers, self.life)
        if plan.is_hostile:
            self.ensemble.on_request = CallRates(self.schedule).requested
        self.brokers.tell_commit = self.emission.kafka_committed
        self.events: Counter[str] = Counter()  # telemetry, by kind
        self.faults: Counter[str] = Counter()
        self.incarnations = dict.fromkeys(TOPICS, 0)
        self.topic_ids: dict[str, str] = {}  # topic -> the id in its node, "" for none
        self.share_of_ids = self.random.choice((0.0, 0.5, 1.0)) if plan.is_hostile else 1.0
        if plan.seed % 8 and any(fault.kind == "restore" for fault in plan.faults):
            self.share_of_ids = 1.0  # without, no restore is possible
        self.lives: dict[str, str] = {}  # name of a topic in a mark -> incarnation
        self.garbled: dict[str, tuple[bytes, bytes]] = {}  # path -> content before and after
        self.abandoned: dict[str, bytes] = {}  # group -> settings that an aborted operation left
        self.rogues: list[Session] = []
        self.strangers: set[str] = set()  # nodes of other programs
        self.hanging: set[str] = set()  # groups whose strategies hang
        self.broken: set[str] = set()  # groups whose every step raises
        self.perform: Callable[[str, int], None] = lambda _kind, _pick: None  # of faults, by kind
        self._names: Counter[str] = Counter()
        for path in ("/brokers", paths.BROKER_TOPICS, paths.CONSUMERS, paths.GROUPS):
            self.write(Create(path))
        for topic, partitions in TOPICS.items():
            self.set_topic(topic, partitions)
        for group in GROUPS:
            self.write(Create(paths.group(group), self.settings(group, SETTINGS[0])))
        if plan.shards > 1:
            shards.set_number(self.ensemble, plan.shards)
        for _ in range(plan.coordinators):
            self.add_coordinator()
        for group in GROUPS:
            for _ in range(plan.agents):
                self.add_agent(group)

    # Who takes part -------------------------------------------------------------------------------------------------

    def _name(self, kind: str) -> str:
        self._names[kind] += 1
        return f"{kind}-{self._names[kind]}"

    def add_coordinator(self) -> None:
        self.coordinators = [process for process in self.coordinators if process.alive]
        name, seed = self._name("coordinator"), self.plan.seed
        host = CoordinatorHost(name, self.schedule, seed, self.ensemble, COORDINATOR_SESSION_MS, self._emitted)
        if self.plan.shards > 1:
            host.share()
        host.is_checked, host.hanging, host.broken = self.plan.is_hostile, self.hanging, self.broken
        if self.schedule.now_us < self.unled_until_us:
            host.connection.cut_link(self.unled_until_us - self.schedule.now_us)
        self.coordinators.append(host)

    def add_agent(self, group: str, instance_id: str | None = None, *, whenever: bool = False) -> None:
        """Start an agent, unless the group is full, or an operator keeps it empty for a while."""
        if self.schedule.now_us < self.empty_until_us[group] and not whenever:
            return
        self.agents = [agent for agent in self.agents if agent.alive]
        if sum(agent.settings.group == group for agent in self.agents) >= MAX_AGENTS:
            return
        draw = self.random
        settings = AgentSettings(
            group=group,
            subscription={"t": 1, "u": 1},
            session_timeout_ms=draw.choice(AGENT_SESSIONS_MS),
            instance_id=instance_id,
            static_grace_ms=OWN_GRACES_MS.get(instance_id or ""),
            auto_commit_ms=draw.choice([None, 150, 400]),
            has_on_revoke=draw.random() < 0.5,
            slowness=draw.choice([1, 1, 1, 4]),
            fairness=draw.choice(list(Fairness)),
            prefetch=draw.choice([Prefetch.TOTAL, Prefetch.PER_PARTITION]),
            max_poll_interval_ms=draw.choice(MAX_POLL_INTERVALS_MS),
            stop_timeout_ms=draw.choice(STOP_TIMEOUTS_MS),
            storage=draw.choice(self.storages[group]),
            has_reliable_kafka=self.plan.scenario is not Scenario.CHAOS,
        )
        agent = AgentHost(self._name(group), self.schedule, self.plan.seed, self.ensemble, self.brokers, settings)
        self.agents.append(agent)
        self.applications[agent.name] = Application(agent, self.emission.delivered, self.emission.processed)

    def add_operator(self, command: Command) -> OperatorHost:
        """Start a process in which an operator runs a command."""
        host = OperatorHost(self._name("operator"), self.schedule, self.plan.seed, self.ensemble, command)
        self.operators.append(host)
        return host

    def living_operators(self) -> list[OperatorHost]:
        return [host for host in self.operators if host.alive]

    def living_agents(self, group: str | None = None) -> list[AgentHost]:
        return [a for a in self.agents if a.alive and group in {None, a.settings.group}]

    def living_coordinators(self) -> list[CoordinatorHost]:
        return [process for process in self.coordinators if process.alive]

    def _emitted(self, event: Emit) -> None:
        self.events[event.kind] += 1

    # What an operator, Kafka and the topic mirror write ---------------------------------------------------------------

    def write(self, *operations: Operation) -> bool:
        """Write as an operator; return whether it succeeded."""
        return isinstance(self.ensemble.zk.perform(Multi(operations), OPERATOR), Done)

    def settings(self, group: str, more: str) -> bytes:
        return f'{{"version":1,"mode":"{GROUPS[group]}",{STATIC_GRACE},{more}}}'.encode()

    def set_topic(self, topic: str, partitions: int) -> None:
        """Create or enlarge a topic."""
        interval_us = self.random.randrange(*RECORD_INTERVAL_US)
        is_new = not self.has_topic(topic)
        self.brokers.set_topic(topic, partitions, self._incarnation(topic), interval_us)
        if is_new:
            has_id = not self.plan.is_hostile or self.random.random() < self.share_of_ids
            self.topic_ids[topic] = self._incarnation(topic) if has_id else ""
        self.write_topic(topic)
        self._wake_fetchers()

    def _incarnation(self, topic: str) -> str:
        return f"{topic}-{self.incarnations[topic]}"

    def has_topic(self, topic: str) -> bool:
        """Whether the brokers have the topic."""
        return (topic, 0) in self.brokers.logs

    def write_topic(self, topic: str) -> None:
        """Write a topic's node as the brokers have it."""
        numbers = ",".join(f'"{number}":[1]' for name, number in sorted(self.brokers.logs) if name == topic)
        topic_id = f'"topic_id":"{self.topic_ids[topic]}",' if self.topic_ids[topic] else ""
        content = f'{{"version":3,{topic_id}"partitions":{{{numbers}}}}}'.encode()
        if not self.write(SetContent(paths.topic(topic), content)):
            self.write(Create(paths.topic(topic), content))
        self.garbled.pop(paths.topic(topic), None)
        self.learn_names()

    def write_topics(self) -> None:
        """Rewrite all topics and their parent nodes."""
        self.write(Create(paths.BROKER_TOPICS))
        for topic in sorted({name for name, _number in self.brokers.logs}):
            self.write_topic(topic)

    def rename_topic(self, topic: str, *, has_id: bool) -> None:
        """Write the same topic with a new id, or without one."""
        self._names["id"] += 1
        self.topic_ids[topic] = f"{topic}-id-{self._names['id']}" if has_id else ""
        self.write_topic(topic)

    def learn_names(self) -> None:
        """Record the present names of each topic: its id, and the zxid that created its node."""
        nodes = self.ensemble.zk.nodes
        for topic, number in self.incarnations.items():
            if paths.topic(topic) in nodes:
                names = {self.topic_ids[topic], f"czxid-{nodes[paths.topic(topic)].created_zxid}"} - {""}
                self.lives.update(dict.fromkeys(names, f"{topic}-{number}"))

    def life(self, mark: str) -> str:
        """Return the incarnation of a topic that a mark names, "" if none ever existed."""
        return next((self.lives[name] for name in mark.split() if name in self.lives), "")

    def is_known_by_id(self) -> bool:
        """Whether every mark names its topic's id; only then is a copied tree recognized."""
        return all(self.is_known_as(topic, self.topic_ids[topic]) for topic in self.incarnations)

    def is_known_as(self, topic: str, name: str) -> bool:
        """Whether all marks contain this name of a topic: with neither of its names left, it would be another topic."""
        nodes = self.ensemble.zk.nodes
        marks = [nodes[path].content for group in GROUPS if (path := paths.offsets(group, topic)) in nodes]
        in_kafka = [text for (_group, tp), (_offset, text) in self.brokers.offsets.items() if tp[0] == topic]
        known = [mark.decode(errors="replace") for mark in marks] + [one.removeprefix(MARK_PREFIX) for one in in_kafka]
        return all(name in names.split() for names in known)

    def delete_topic(self, topic: str) -> None:
        self.brokers.delete_topic(topic)
        self.write(Delete(paths.topic(topic)))
        self.incarnations[topic] += 1

    def _wake_fetchers(self) -> None:
        for agent in self.living_agents():
            agent.wake_fetcher()

    def is_sound(self, group: str, partition: TopicPartition) -> bool:
        """Whether a partition exists, in the incarnation to which the group's offsets belong."""
        log = self.brokers.logs.get(partition)
        is_marked = paths.offsets(group, partition[0]) in self.ensemble.zk.nodes
        return log is not None and is_marked and self.stored_life(group, partition) == log.incarnation

    def stored_life(self, group: str, partition: TopicPartition) -> str:
        """Return the incarnation that a group's offsets belong to: the record's or the mark's, else the present one."""
        nodes, log = self.ensemble.zk.nodes, self.brokers.logs.get(partition)
        stored = [paths.incarnations(group, partition[0]), paths.offsets(group, partition[0])]
        found = [self.life(nodes[path].content.decode(errors="replace")) for path in stored if path in nodes]
        said = next(filter(None, found), "")
        return said or (log.incarnation if log is not None else "")

    def stop_producing(self) -> None:
        self.brokers.stopped_us = self.schedule.now_us

    # Running ----------------------------------------------------------------------------------------------------------

    def run_until(self, at_us: int) -> None:
        """Run up to a moment.

        Raises:
            BrokenPromiseError: an invariant does not hold.

        """
        self.schedule.run_until(at_us)

    def run_until_no_problem(self, find_problem: FindProblem, limit_us: int, pause_us: int) -> None:
        """Run until there is no problem.

        Raises:
            BrokenPromiseError: there still is one after `limit_us`, or an invariant is broken.

        """
        deadline_us = self.schedule.now_us + limit_us
        while (problem := find_problem()) is not None:
            if self.schedule.now_us >= deadline_us:
                raise BrokenPromiseError("unsettled", f"{problem}, {limit_us / 1e6:g} s after the last fault")
            self.run_until(self.schedule.now_us + pause_us)
