"""Plays a scenario in a lab: performs the actions of each step, then waits until the group is at rest again.

At rest: the expected members own all partitions, and no partition has started or stopped for QUIET_S. A step begins
after a further pause, drawn by the seed and the same for every protocol (PHASE_S). With a backlog the first
change is not kept waiting, as the group reads meanwhile: the group is measured as soon as its members own all
partitions, and changes once it was at rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from random import Random

import gevent

from zkrebalancer.experiments import helix, servers
from zkrebalancer.experiments.costs import Costs
from zkrebalancer.experiments.java_programs import config_options
from zkrebalancer.experiments.lab import ASK_INTERVAL_S, GATEWAY_PORTS, Lab, NotReachedError
from zkrebalancer.experiments.members.recorder import UNKNOWN_POSITION
from zkrebalancer.experiments.producer import INDEX_BYTES, shares
from zkrebalancer.experiments.protocols import BACKLOG_PHASE_S, PHASE_S, QUIET_S, Protocol, Settings
from zkrebalancer.experiments.scenarios.model import (
    GROUP,
    PATTERN,
    TOPIC,
    Action,
    Block,
    Cast,
    ConfigureGroup,
    FailBroker,
    FailCoordinator,
    FailZookeeper,
    Freeze,
    Join,
    Kill,
    Leave,
    OnMember,
    OnServers,
    Pause,
    Resize,
    RestartGateway,
    RestartZookeeper,
    Scenario,
    Step,
    Thaw,
    group_of,
)
from zkrebalancer.experiments.watch import Watch
from zkrebalancer.localcluster.ports import HOST, free_block
from zkrebalancer.observe.measures import BEFORE, END
from zkrebalancer.operations.weights import write_weights
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.weights import ALWAYS, Weights, encode

GATEWAY = "gateway"
FIRST_CHANGE = 2  # the number of its step, which follows BEFORE
COORDINATORS = (1, 2)  # a leader and a standby
DRAIN_DEADLINE_S = 120.0


@dataclass(slots=True)
class Play:
    """One scenario with one protocol.

    `processes` is process name -> its members, `command` runs such a process, `controller_command` one of the
    protocol's own controllers. `report` shows progress. In an upgrade there is one process for each version of its
    members.
    """

    lab: Lab
    watch: Watch
    protocol: Protocol
    tuning: str
    scenario: Scenario
    cast: Cast
    processes: Mapping[str, Sequence[str]]
    command: Sequence[str]
    controller_command: Sequence[str]
    costs: Costs
    report: Callable[[str], None]
    expected: set[str] = field(default_factory=set)
    topics: dict[str, int] = field(default_factory=dict)
    producers: list[str] = field(default_factory=list)
    _frozen: dict[str, list[TopicPartition]] = field(default_factory=dict)  # member -> what it owned when suspended
    _versions: dict[str, int] = field(default_factory=dict)  # member -> its version
    _steps_begun: int = 0
    _gateway_port: int = 0
    _unsettled_ms: int | None = None  # the limit of the last step, if the group did not settle

    @property
    def settings(self) -> Settings:
        """The protocol's settings for this tuning."""
        return self.protocol.settings[self.tuning]

    def open(self) -> None:
        """Start everything and wait until the members own all partitions; raises NotReachedError."""
        self.report("coordinators, topic and producer start")
        self.lab.wait_events_of(self.lab.start_pulse())
        servers.place_offsets(self.lab)
        if self.protocol.is_central:
            self._start_coordinators()
        if self.protocol.has_gateway:
            self._gateway_port = free_block(GATEWAY_PORTS)
            self._start_gateway()
            self.lab.wait_gateway(GATEWAY, self._gateway_port)
        self._resize(TOPIC, self.cast.topic_partitions)
        self.lab.wait_seen(TOPIC)
        self._start_controllers()
        self.report(f"{len(self.cast.present)} members join")
        names = [self._named(name, version) for version in self._known_versions() for name in self.processes]
        for name in names:
            self._start_process(name)
        for name in names:
            self.lab.wait_events_of(self.lab.programs[name])
        for member in self.cast.present:
            self._perform(Join(member))
        self._wait_at_rest(Step("start"))

    def perform(self, step: Step) -> bool:
        """Begin a measured window, perform the step and wait for its effect; return whether the group settled in time.

        Raises:
            LocalClusterError: a process ended unexpectedly.

        """
        for action in step.actions:
            if isinstance(action, Join):
                self._require_process(self._process_of(action.member))
        gevent.sleep(self.pause_before(self._steps_begun + 1))
        self._note_step(step.name, step.target)
        for action in step.actions:
            self._perform(action)
        try:
            self._wait_at_rest(step)
        except NotReachedError:
            self._unsettled_ms = round(step.deadline_s * 1_000)
        return self._unsettled_ms is None

    def pause_before(self, number: int) -> float:
        """Return how many seconds the group rests before a step, beyond QUIET_S; all phases are equally likely."""
        longest_s = PHASE_S[self.tuning]
        if self.scenario.backlog and number <= FIRST_CHANGE:
            longest_s = BACKLOG_PHASE_S if number == FIRST_CHANGE else 0.0
        return Random(f"{self.cast.seed}/{number}").uniform(0.0, longest_s)  # noqa: S311

    def rest_before(self) -> bool:
        """Measure the group at rest, as the baseline of the steps; return whether it stayed so."""
        return self.perform(Step(BEFORE, at_least_s=self.scenario.before_s))

    def close(self) -> None:
        """End the last window, let the members read the remaining records, and stop everything.

        Raises:
            NotReachedError, LocalClusterError: records were not read in time, or a process failed.

        """
        self._note_step(END, "")
        self.report("members read the remaining records")
        self.lab.stop(*self.producers)
        self.lab.wait_for("every record delivered", self._is_all_delivered, DRAIN_DEADLINE_S)
        self.report("members leave")
        names = [self._named(name, version) for version in self._known_versions() for name in self.processes]
        self.lab.stop(*(name for name in names if self.lab.programs[name].is_running))
        coordinators = [name for name in self.lab.programs if name.startswith("coordinator-")]
        self.lab.stop(*(name for name in coordinators if self.lab.programs[name].is_running))
        if self.protocol.has_gateway:
            self.lab.stop(GATEWAY)
        self.lab.stop("pulse")

    def _is_all_delivered(self) -> bool:
        return all(self.watch.records_behind(group) == 0 for group in self.cast.group_names)

    # Actions --------------------------------------------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        match action:
            case Pause(pause_s):
                gevent.sleep(pause_s)
            case Resize(topic, partitions):
                self._resize(topic, partitions)
            case ConfigureGroup():
                self._configure(is_before=False)
            case Join() | Leave() | Block() | Kill() | Freeze() | Thaw():
                self._perform_on_member(action)
            case _:
                self._perform_on_servers(action)

    def _perform_on_servers(self, action: OnServers) -> None:
        match action:
            case FailCoordinator():
                self._fail_coordinator()
            case RestartGateway():
                if self.protocol.has_gateway and not self.lab.programs[GATEWAY].is_running:
                    self._start_gateway()
            case FailBroker():
                servers.fail_broker(self.lab)
            case FailZookeeper(count):
                servers.fail_zookeeper(self.lab, count)
            case RestartZookeeper():
                servers.restart_zookeeper(self.lab.cluster)

    def _perform_on_member(self, action: OnMember) -> None:
        match action:
            case Join(member, version):
                self._versions[member] = version
                self._join(member)
            case Leave(member):
                self._tell_member(f"leave {member}", member)
                self.expected.discard(member)
            case Block(member, block_ms):
                self._tell_member(f"block {member} {block_ms}", member)
            case Kill(member):
                self._kill(member)
            case Freeze(member):
                self._freeze(member)
            case Thaw(member):
                self._thaw(member)

    def _join(self, member: str) -> None:
        instance = f" {member}" if self.scenario.is_static else ""
        self._tell_member(f"join {member}{instance}", member)
        self.expected.add(member)

    def _kill(self, member: str) -> None:
        """Kill a member's process and record its end now, not when the group notices: its partitions have no reader."""
        self.lab.kill(self._process_of(member))
        self.lab.note("ownership_ended", group=group_of(member), member=member, reason="killed")
        self.lab.note("member_left", group=group_of(member), member=member, reason="lost")
        self.expected.discard(member)

    def _freeze(self, member: str) -> None:
        """Suspend a member's process and record the end of its ownership: its partitions are not read."""
        self.lab.freeze(self._process_of(member))
        self.watch.look()
        with self.watch.lock:
            owners = self.watch.picture.group(group_of(member)).owners
            self._frozen[member] = [partition for partition, owner in owners.items() if owner == member]
        self.lab.note("ownership_ended", group=group_of(member), member=member, reason="frozen")
        self.expected.discard(member)

    def _thaw(self, member: str) -> None:
        """Resume a member's process. It still owns the partitions that no other member took meanwhile."""
        self.watch.look()
        with self.watch.lock:
            owners = self.watch.picture.group(group_of(member)).owners
            kept = sorted(partition for partition in self._frozen.pop(member) if partition not in owners)
        for topic, of_topic in groupby(kept, key=itemgetter(0)):
            numbers = [number for _topic, number in of_topic]
            positions = [UNKNOWN_POSITION] * len(numbers)
            also = {"topic": topic, "partitions": numbers, "positions": positions}
            self.lab.note("fetcher_started", group=group_of(member), member=member, **also)
        self.lab.thaw(self._process_of(member))
        self.expected.add(member)

    def _resize(self, topic: str, partitions: int) -> None:
        """Create or grow a topic, with another producer for the new partitions."""
        known = self.topics.get(topic, 0)
        self.lab.resize_topic(topic, known, partitions)
        self.topics[topic] = partitions
        name = f"producer-{topic}-{known}"
        self.producers.append(name)
        if self.scenario.records_s:
            sizes = (self.scenario.records_s, self.scenario.record_bytes, self.scenario.backlog)
            self.lab.wait_events_of(self.lab.start_bulk_producer(name, topic, range(known, partitions), *sizes))
            return
        rate = max(1, round(self.scenario.rate(self.cast) * (partitions - known)))
        skew = self.scenario.skew(self.cast)
        self.lab.start_producer(name, {topic: range(known, partitions)}, rate, skew, self.cast.seed, INDEX_BYTES)

    def _fail_coordinator(self) -> None:
        if self.protocol.is_central:
            self.lab.kill(f"coordinator-{self.lab.wait_leader()}", "kill-leader")
            return
        if self.settings.controller is not None:
            self.lab.kill(helix.wait_leader(self.lab, self.cast.group_names[0]), "kill-leader")
            return
        if self.protocol.has_gateway:
            self.lab.kill(GATEWAY, "restart-gateway")
            return
        servers.fail_broker(self.lab)

    # Processes ------------------------------------------------------------------------------------------------------

    def _configure(self, *, is_before: bool) -> None:
        """Set the groups' settings, those from before an upgrade or else the protocol's own."""
        settings = self.protocol.group(self.tuning, is_skewed=self.scenario.hottest > 0, is_before=is_before)
        for group in self.cast.group_names:
            if settings is not None:
                self.lab.configure(group, settings)

    def _start_coordinators(self) -> None:
        self._configure(is_before=self.scenario.is_upgrade)
        if self.scenario.has_weights:
            write_weights(self.lab.zk, GROUP, encode(known_load(self.scenario, self.cast)))
        for number in COORDINATORS:
            self.lab.wait_events_of(self.lab.start_coordinator(number))
        self.lab.wait_leader()

    def _start_controllers(self) -> None:
        scenario, options = self.scenario, dict(self._subscription)
        growing, weights = scenario.is_growing(self.cast), scenario.has_weights
        settings = self.protocol.controller(
            self.tuning, is_static=scenario.is_static, is_growing=growing, has_weights=weights
        )
        if weights and self.settings.weighing:
            options |= helix.weights_option(known_load(scenario, self.cast).rates)
        if settings is not None:
            groups = self.cast.group_names
            for number in COORDINATORS:
                name = f"coordinator-{number}"
                helix.start_controller(self.lab, name, self.controller_command, groups, settings, options)
            for group in groups:
                helix.wait_leader(self.lab, group)

    @property
    def _subscription(self) -> Mapping[str, str]:
        return {"--pattern": PATTERN} if self.scenario.is_wildcard else {"--topic": TOPIC}

    def _start_gateway(self) -> None:
        self.lab.start_gateway(GATEWAY, self._gateway_port, self.settings.gateway or {})

    def _known_versions(self) -> range:
        return range(self.protocol.restarts + 1 if self.scenario.is_upgrade else 1)

    def _named(self, process: str, version: int) -> str:
        return f"{process}-v{version}" if self.scenario.is_upgrade else process

    def _start_process(self, name: str) -> None:
        member = self.protocol.member(self.tuning, is_growing=self.scenario.is_growing(self.cast))
        if self.scenario.is_upgrade:
            member = self.protocol.versions(self.tuning)[int(name.rpartition("-v")[2])]
        options: dict[str, object] = {"--kind": self.protocol.kind, "--group": GROUP, **self._subscription}
        options |= self.scenario.reading(self.cast)
        if self.protocol.has_gateway:
            options["--bootstrap"] = f"{HOST}:{self._gateway_port}"
        self.lab.start_members(name, [*self.command, *config_options(member)], options)

    def _require_process(self, name: str) -> None:
        """Start a killed process again, before the step, so that the step does not include the interpreter's start."""
        if not self.lab.programs[name].is_running:
            self._start_process(name)
            self.lab.wait_events_of(self.lab.programs[name])

    def _process_of(self, member: str) -> str:
        process = next(name for name, members in self.processes.items() if member in members)
        return self._named(process, self._versions.get(member, 0))

    def _tell_member(self, order: str, member: str) -> None:
        self.lab.programs[self._process_of(member)].tell(order)

    # Waiting --------------------------------------------------------------------------------------------------------

    def _note_step(self, name: str, target: str) -> None:
        self._steps_begun += 1
        number = self._steps_begun
        cause_id = None if name in {BEFORE, END} else f"step-{number}"
        self.costs.measure()
        before = {} if self._unsettled_ms is None else {"unsettled_ms": self._unsettled_ms}
        group = self.cast.group_names[0]
        self.lab.note("step", group=group, cause_id=cause_id, name=name, target=target, number=number, **before)
        self.report(f"{name} {target}".strip())

    def _wait_at_rest(self, step: Step) -> None:
        """Wait until exactly the expected members own all partitions and nothing has changed for a while."""
        began_s = time.monotonic()
        wanted = {(topic, number) for topic, count in self.topics.items() for number in range(count)}
        programs = [*self.producers, *{self._process_of(member) for member in self.expected}]
        expected = {name: {one for one in self.expected if group_of(one) == name} for name in self.cast.group_names}
        is_hurried = self.scenario.backlog and not self._steps_begun
        quiet_s = 0.0 if is_hurried else QUIET_S[self.tuning]

        def is_so() -> bool:
            self.lab.require_running(*programs)
            self.watch.look()
            with self.watch.lock:
                groups = [(self.watch.picture.group(name), members) for name, members in expected.items()]
                # The effect of the step may not have begun yet.
                last_s = max(began_s, *(group.changed_us / 1e6 for group, _members in groups))
                is_over = time.monotonic() - last_s >= quiet_s and all(
                    is_assigned(group.owners, wanted, members) for group, members in groups
                )
            return is_over and time.monotonic() - began_s >= step.at_least_s

        title = f"{step.name} {step.target}".strip()
        what = f"step {title}: the group at rest"
        # The step, and with it its costs, ends when this returns: its end may not depend on how long it took.
        self.lab.wait_for(what, is_so, step.deadline_s, longest_s=ASK_INTERVAL_S)


def known_load(scenario: Scenario, cast: Cast) -> Weights:
    """Return each partition's records per second as weights, as if they had been learned."""
    partitions = [(TOPIC, number) for number in range(cast.partitions)]
    parts = shares(partitions, scenario.skew(cast), cast.seed)
    records_s = scenario.rate(cast) * cast.partitions
    return Weights(ALWAYS, {TOPIC: [[records_s * parts[partition]] for partition in partitions]})


def is_assigned(
    owners: Mapping[TopicPartition, str], wanted: AbstractSet[TopicPartition], members: AbstractSet[str]
) -> bool:
    """Whether every wanted partition has an owner, all owners are `members`, and as many as possible own something."""
    holders = set(owners.values())
    return owners.keys() == wanted and holders <= members and len(holders) == min(len(wanted), len(members))
