"""The processes and topics of a campaign: coordinators, agents in groups of both modes, producers; restarts them."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import gevent

from tests.campaign.disk import SmallDisk
from tests.campaign.links import ProxiedLab
from tests.campaign.watching import Watcher
from tests.integration.commands import catches
from zkrebalancer.observe import inspection
from zkrebalancer.protocol.errors import RebalancerError, ZooKeeperRefusedError, ZooKeeperUnavailableError
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL, GroupSettings
from zkrebalancer.runtime.zk import CONNECT_TIMEOUT_S

COORDINATORS = ("coordinator-1", "coordinator-2", "coordinator-3")
TOPICS = {"campaign-orders": 8, "campaign-payments": 4}  # partitions at the beginning
MAX_PARTITIONS = 12  # of one topic
MAX_PASSING_TOPICS = 3  # those that are created and deleted
PASSING_TOPIC_PARTITIONS = 3
RECORDS_PER_PARTITION_S = 3
PATTERN = "^campaign-"
PRODUCER = "producer-"
MIN_MEMBERS = 2  # of a group
STATIC_GRACE_MS = 10_000
IMPATIENT_TIMEOUT_MS = 1_000
AGENT_OPTIONS: dict[str, object] = {"--auto-commit-interval-ms": 1_000}
ASK_INTERVAL_S = 0.1
SETTLE_DEADLINE_S = 60.0


class NothingToBreakError(RebalancerError):
    """A fault has no target at present."""


class BrokenPromiseError(RebalancerError):
    """A guarantee was violated."""


@dataclass(slots=True)
class Group:
    """One group; `topics` is None for one that subscribes to the pattern."""

    name: str
    settings: GroupSettings
    topics: tuple[str, ...] | None
    is_static: bool = False  # each member has an instance id, which it keeps over restarts
    members: list[str] = field(default_factory=list)


def new_groups() -> list[Group]:
    """Return the groups, without members; those with a pattern evict a slow member sooner than its session ends."""
    static = GroupSettings(mode=INCREMENTAL, static_grace_ms=STATIC_GRACE_MS)
    impatient = GroupSettings(rebalance_timeout_ms=IMPATIENT_TIMEOUT_MS, max_rebalance_retries=1)
    return [
        Group("named-incremental", static, tuple(TOPICS), is_static=True),
        Group("named-eager", GroupSettings(mode=EAGER), tuple(TOPICS)),
        Group("pattern-incremental", replace(impatient, mode=INCREMENTAL), None),
        Group("pattern-eager", replace(impatient, mode=EAGER), None),
    ]


def producer_of(topic: str) -> str:
    """Return the name of the process that writes to a topic."""
    return f"{PRODUCER}{topic}"


@dataclass(slots=True)
class Company:
    """The processes that should run; the campaign has ended those in `missing` and has to restart them."""

    lab: ProxiedLab
    watcher: Watcher
    max_agents: int
    groups: list[Group] = field(default_factory=new_groups)
    topics: dict[str, int] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    doomed: set[str] = field(default_factory=set)  # will kill themselves at a step
    not_reached: Counter[str] = field(default_factory=Counter)  # kind -> faults that did not take effect
    is_without_quorum: bool = False
    no_start_s: list[tuple[float, float]] = field(default_factory=list)  # from, until: no process could register
    disk: SmallDisk | None = None
    silent: set[str] = field(default_factory=set)  # topics whose producers have ended for good
    _started_s: dict[str, float] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _count: int = 0
    _step_count: int = 0

    # The beginning --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start all processes; a third of the places for agents stays free."""
        for name in COORDINATORS:
            self.start(name)
        for topic, partitions in TOPICS.items():
            self.change_topic(topic, partitions)
        self.lab.wait_leader()
        for group in self.groups:
            self.lab.configure(group.name, group.settings)
        for index in range(max(MIN_MEMBERS * len(self.groups), self.max_agents * 2 // 3)):
            self.join(self.groups[index % len(self.groups)])

    def note_step(self, name: str, target: str) -> None:
        """Write a planned change into the events, with a number that is unique in the run."""
        self._step_count += 1
        self.lab.note("step", name=name, target=target, number=self._step_count)

    # Processes ------------------------------------------------------------------------------------------------------

    def agents(self) -> list[str]:
        """Return every agent that should run."""
        return sorted(name for group in self.groups for name in group.members)

    def group_of(self, agent: str) -> Group:
        """Return the group that an agent is in."""
        return next(group for group in self.groups if agent in group.members)

    def dispensable_agents(self) -> list[str]:
        """Return the agents that their groups can spare."""
        names = [name for group in self.groups if len(group.members) > MIN_MEMBERS for name in group.members]
        return [name for name in names if name not in self.missing]

    def leader(self, group: Group) -> str:
        """Return the leader of a group's shard if it is known, else any coordinator."""
        return self.watcher.leader(group.name) or COORDINATORS[0]

    def some_leader(self, pick: float) -> str:
        """Return the leader of some group's shard."""
        return self.leader(self.groups[int(pick * len(self.groups))])

    @contextmanager
    def hold(self, names: list[str], pick: float) -> Iterator[str]:
        """Pick one of these that no other fault has, and reserve it for this fault; raises NothingToBreakError."""
        free = [name for name in names if name not in self._taken]
        if not free:
            raise NothingToBreakError("every possible target has a fault already")
        name = free[int(pick * len(free))]
        self._taken.add(name)
        try:
            yield name
        finally:
            self._taken.discard(name)

    def start(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        """Start a coordinator or an agent, once ZooKeeper has a quorum."""
        self.missing.add(name)
        if self.is_without_quorum:
            return
        self.missing.discard(name)
        self._started_s[name] = self.lab.elapsed_s()
        if name in COORDINATORS:
            self.lab.start_coordinator(int(name.rpartition("-")[2]), environment)
            return
        group = self.group_of(name)
        pattern = PATTERN if group.topics is None else None
        options = {**AGENT_OPTIONS, **({"--instance-id": name} if group.is_static else {})}
        if group.settings.rebalance_timeout_ms == IMPATIENT_TIMEOUT_MS:
            options["--stop-timeout-ms"] = IMPATIENT_TIMEOUT_MS
        self.lab.start_agent(
            name, group.name, group.topics or (), pattern=pattern, options=options, environment=environment
        )

    def kill(self, name: str, fault: str) -> None:
        """Kill a process; it is missing until it is restarted."""
        self.watcher.abandoned(name)
        self.missing.add(name)
        self.lab.kill(name, fault)

    def stop(self, *names: str) -> None:
        """Stop processes by SIGTERM; they are missing until they are restarted.

        Raises:
            BrokenPromiseError: one of them had ended by itself, and no fault had kept it from registering.

        """
        for name in names:  # before it has a handler, the signal would kill it
            self.lab.wait_for(f"start of {name}", partial(self._has_begun, name))
        running = [name for name in names if self.lab.programs[name].is_running]
        for name in set(names) - set(running) - self.missing - self.doomed:
            self._require_excuse(name)
        self.missing.update(names)
        self.lab.stop(*running)

    def _has_begun(self, name: str) -> bool:
        program = self.lab.programs[name]
        return not program.is_running or catches(program.pid, signal.SIGTERM)

    def doom(self, name: str) -> None:
        """Note that a started process will kill itself."""
        if name not in self.missing:
            self.doomed.add(name)

    def notice_deaths(self) -> None:
        """Note which of the doomed processes have killed themselves."""
        for name in self.doomed - self.missing:
            if not self.lab.programs[name].is_running:
                self.watcher.abandoned(name)
                self.missing.add(name)

    def end_doomed(self, name: str, kind: str) -> None:
        """Restart a process that should have killed itself; if it has not, kill it and count that."""
        if name in self.doomed and self.lab.programs[name].is_running:
            self.not_reached[kind] += 1
            self.kill(name, kind)
        self.doomed.discard(name)
        self.start(name)

    def join(self, group: Group) -> str:
        """Start one more agent; returns its name."""
        self._count += 1
        name = f"{group.name}-{self._count}"
        group.members.append(name)
        self.start(name)
        return name

    def leave(self, name: str) -> None:
        """End an agent for good."""
        self.stop(name)
        self.missing.discard(name)
        self.group_of(name).members.remove(name)

    def switch_mode(self, group: Group) -> None:
        """Change between the two modes."""
        mode = EAGER if group.settings.mode == INCREMENTAL else INCREMENTAL
        group.settings = replace(group.settings, mode=mode)
        self.lab.configure(group.name, group.settings)

    def complete(self) -> None:
        """Start every missing process."""
        for name in sorted(self.missing):
            self.start(name)

    # Topics ---------------------------------------------------------------------------------------------------------

    def change_topic(self, topic: str, partitions: int) -> None:
        """Create or enlarge a topic; its producer then writes to all partitions."""
        if topic in self.topics:
            self.lab.grow_topic(topic, partitions)
            self._stop_producers(topic)
        else:
            self.lab.create_topic(topic, partitions)
        self.topics[topic] = partitions
        self._produce(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic after all groups have read it; otherwise its last records would count as lost."""
        self.silent.add(topic)  # otherwise its producer could be restarted, and write after the deletion
        self._stop_producers(topic)
        self._wait_read(self.watcher.ends([topic]), f"all of {topic}")
        del self.topics[topic]
        self.silent.discard(topic)
        self.lab.note("topic_deleted", topic=topic)
        self.lab.delete_topic(topic)

    def topics_of(self, group: Group) -> dict[str, int]:
        """Return what a group reads: topic -> partitions."""
        return {topic: count for topic, count in self.topics.items() if group.topics is None or topic in group.topics}

    # Waiting --------------------------------------------------------------------------------------------------------

    def wait_settled(self) -> None:
        """Wait until every group is settled and has read everything produced so far; raises BrokenPromiseError."""
        ends = self.watcher.ends(self.topics)
        give_up_at = time.monotonic() + SETTLE_DEADLINE_S
        while unsettled := [*self._without_leader(), *(one.name for one in self.groups if not self._is_settled(one))]:
            self.require_running()
            if time.monotonic() > give_up_at:
                raise BrokenPromiseError(f"not settled within {SETTLE_DEADLINE_S:g} s: {', '.join(unsettled)}")
            gevent.sleep(ASK_INTERVAL_S)
        self._wait_read(ends, "all records")

    def require_running(self) -> None:
        """Restart processes that could not register; raise BrokenPromiseError if any other one ended by itself."""
        for topic in self.topics.keys() - self.silent:
            if not self.lab.programs[producer_of(topic)].is_running:
                self._produce(topic)  # producers are not judged
        for name in {*self.agents(), *COORDINATORS} - self.missing - self.doomed:
            if not self.lab.programs[name].is_running:
                self._require_excuse(name)
                self.start(name)  # as a service manager does

    def _require_excuse(self, ended: str) -> None:
        if not is_excused(self._started_s[ended], self.no_start_s):
            log = self.lab.programs[ended].log
            end = log.read_text(errors="replace").rstrip().rpartition("\n")[2]
            raise BrokenPromiseError(f"{ended} has ended by itself; the last line of {log.name}: {end}")

    @contextmanager
    def no_start(self) -> Iterator[None]:
        """Excuse processes that end at their start, because a server is down or they lack a right."""
        begin_s, index = self.lab.elapsed_s(), len(self.no_start_s)
        self.no_start_s.append((begin_s, math.inf))
        try:
            yield
        finally:
            self.no_start_s[index] = (begin_s, self.lab.elapsed_s())

    def drain(self) -> None:
        """End the producers and wait until every group has read all records."""
        self.silent.update(self.topics)
        self._stop_producers(*self.topics)
        self._wait_read(self.watcher.ends(self.topics), "the last records")

    def close(self) -> None:
        """Stop all processes, the coordinators last."""
        self.stop(*self.agents())
        self.stop(*COORDINATORS)

    def _produce(self, topic: str) -> None:
        partitions = self.topics[topic]
        self.lab.start_producer(producer_of(topic), {topic: partitions}, RECORDS_PER_PARTITION_S * partitions)

    def _stop_producers(self, *topics: str) -> None:
        """End producers; even one that ends with an error, after a rejected record, has recorded the accepted ones."""
        programs = [self.lab.programs[producer_of(topic)] for topic in topics]
        for program in programs:
            if program.is_running:
                os.kill(program.pid, signal.SIGTERM)
        self.lab.wait_for("end of the producers", lambda: not any(program.is_running for program in programs))

    def _is_settled(self, group: Group) -> bool:
        try:
            return self.lab.is_settled(group.name, self.topics_of(group), frozenset(group.members))
        except (ZooKeeperUnavailableError, ZooKeeperRefusedError):
            return False  # its server is unavailable, or a right is withheld: try again

    def _without_leader(self) -> list[str]:
        """Return the shards of groups that nobody leads."""
        try:
            shards = inspection.read_shards(self.lab.zk)
            leaders = inspection.read_leaders(self.lab.zk, shards)
        except (ZooKeeperUnavailableError, ZooKeeperRefusedError):
            return ["ZooKeeper"]
        return [f"shard {n} (no leader)" for n, leader in enumerate(leaders) if leader is None]

    def _wait_read(self, ends: Mapping[tuple[str, int], int], what: str) -> None:
        for group in self.groups:
            due = {partition: end for partition, end in ends.items() if partition[0] in self.topics_of(group)}
            give_up_at = time.monotonic() + SETTLE_DEADLINE_S
            while not self.watcher.has_read(group.name, due):
                self.require_running()
                if time.monotonic() > give_up_at:
                    raise BrokenPromiseError(f"group {group.name} did not read {what} in {SETTLE_DEADLINE_S:g} s")
                gevent.sleep(ASK_INTERVAL_S)


def is_excused(started_s: float, no_start_s: list[tuple[float, float]]) -> bool:
    """Whether one of these times (from, until) overlapped with the start of a process."""
    return any(begin_s < started_s + CONNECT_TIMEOUT_S and started_s < end_s for begin_s, end_s in no_start_s)
