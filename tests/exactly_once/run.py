"""One run: members and servers fail until the time is over; then the rest is stored, and the sinks are compared."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, field

import gevent

from tests.campaign.progress import Progress
from tests.exactly_once.groups import CONTROLS, GROUPS, KAFKA, Way, controls_of
from tests.exactly_once.judging import Judgement
from tests.exactly_once.kafka_results import topic_of
from tests.exactly_once.members import Members, new_members
from tests.exactly_once.world import MOST_PARTITIONS, TOPIC, World, new_world
from zkrebalancer.experiments.lab import NotReachedError
from zkrebalancer.experiments.versions import read_versions
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.settings import GroupSettings

SESSION_TIMEOUT_MS = 2_000
TICK_S = 0.1
CONTROL_INTERVAL_S = 3.0  # how often the sinks of controls are looked at
TELL_INTERVAL_S = 15.0
STALL_S = 120.0  # at the end, without a new result
MAX_PROVING_S = 120.0  # beyond the time of the run, for controls whose sinks are still right
CONTROL_MEMBERS = 2
MAX_PROBLEMS = 5  # members that end by themselves; then the run ends, too


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a run."""

    minutes: float
    seed: int
    sink: str
    members: int
    rate: int
    records: int
    groups: tuple[str, ...] = tuple(GROUPS)


@dataclass(slots=True)
class Outcome:
    """What happened in a run, and what the sinks have."""

    settings: Settings
    versions: dict[str, str] = field(default_factory=dict)
    records: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    suspended: Counter[str] = field(default_factory=Counter)
    growths: int = 0
    sinks: dict[str, Judgement] = field(default_factory=dict)
    controls: dict[str, bool] = field(default_factory=dict)  # whether its sink was wrong, as it must be
    problems: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0

    def document(self) -> dict[str, object]:
        """Return what `--json` prints."""
        return {
            "ok": not self.problems,
            "problems": self.problems,
            "seed": self.settings.seed,
            "sink": self.settings.sink,
            "versions": self.versions,
            "elapsed_s": round(self.elapsed_s, 1),
            "records": self.records,
            "kills": self.kills.total(),
            "kills_by_step": dict(sorted(self.kills.items())),
            "suspended_by_step": dict(sorted(self.suspended.items())),
            "topic_growths": self.growths,
            "sinks": {group: {**asdict(found), "ok": found.is_exact} for group, found in self.sinks.items()},
            "controls_found": self.controls,
        }


@dataclass(slots=True)
class Run:
    """A run; `end_soon` ends its faults, and leads to the verdict so far."""

    settings: Settings
    progress: Progress
    is_ending: bool = False
    _began_s: float = field(default_factory=time.monotonic)
    _looked_at_s: float = 0.0
    _told_at_s: float = 0.0

    def end_soon(self) -> None:
        """End with the verdict so far."""
        self.is_ending = True

    def run(self) -> Outcome:
        """Run it.

        Raises:
            LocalClusterError, ConfigurationError, PostgresMissingError: the servers cannot be started.

        """
        outcome = Outcome(self.settings)
        self.progress.line(f"ZooKeeper, Kafka and {self.settings.sink} start")
        with new_world(self.settings.sink, self.settings.seed, SESSION_TIMEOUT_MS, self.settings.groups) as world:
            outcome.versions = read_versions(world.cluster)
            groups = self._members(world, {group: GROUPS[group] for group in self.settings.groups})
            controls = self._members(world, {name: CONTROLS[name] for name in controls_of(self.settings.groups)})
            try:
                self._play(world, groups, controls)
                self._drain(world, groups)
                self._judge(world, groups, outcome)
            except RebalancerError as error:
                outcome.problems.append(f"after {self._elapsed_s():.0f} s: {error}")
            finally:
                for members in groups + controls:
                    members.kill()
            self._count(world, groups, controls, outcome)
        outcome.elapsed_s = self._elapsed_s()
        return outcome

    def _members(self, world: World, ways: dict[str, Way]) -> list[Members]:
        options: dict[str, object] = {
            "--zookeeper": world.cluster.zookeeper,
            "--bootstrap": world.cluster.bootstrap,
            "--topic": TOPIC,
            "--session-timeout-ms": SESSION_TIMEOUT_MS,
        }
        prepared = []
        for group, way in ways.items():
            if way.mode is not None:  # else the first member makes the group
                world.lab.configure(group, GroupSettings(mode=way.mode))
            if way.results == KAFKA:
                world.lab.create_topic(topic_of(group), MOST_PARTITIONS)
            given = {**options, "--database": world.results[way.results].address}
            count = CONTROL_MEMBERS if group in CONTROLS else self.settings.members
            prepared.append(new_members(world.cluster, group, way, count, given, str(self.settings.seed)))
        return prepared

    def _play(self, world: World, groups: list[Members], controls: list[Members]) -> None:
        world.open(self.settings.rate, self.settings.records)
        for members in groups + controls:
            members.start()
        end_s = time.monotonic() + 60 * self.settings.minutes
        while not self.is_ending:
            over_s = time.monotonic() - end_s
            unproved = [members for members in controls if not members.is_proved]
            if over_s > (MAX_PROVING_S if unproved else 0):
                return
            for members in groups + unproved:
                members.tick()
            if sum(len(members.problems) for members in groups + controls) > MAX_PROBLEMS:
                return
            world.tick()
            self._look_at(world, unproved)
            self._tell(world, groups)
            gevent.sleep(TICK_S)

    def _look_at(self, world: World, controls: list[Members]) -> None:
        """End controls whose sinks are wrong: they have shown what they are for."""
        if time.monotonic() - self._looked_at_s < CONTROL_INTERVAL_S:
            return
        self._looked_at_s = time.monotonic()
        for members in controls:
            if world.results[members.way.results].has_doubles(members.group):
                members.is_proved = True
                members.kill()
                self.progress.line(f"control {members.group}: results are doubled, as they must be")

    def _tell(self, world: World, groups: list[Members]) -> None:
        if time.monotonic() - self._told_at_s > TELL_INTERVAL_S:
            self._told_at_s = time.monotonic()
            kills = sum(members.ended.total() for members in groups)
            stored = {members.group: sum(world.stored(members).values()) for members in groups}
            self.progress.line(f"{kills} members killed, servers {dict(world.faults)}, results {stored}")

    def _drain(self, world: World, groups: list[Members]) -> None:
        self.progress.line("everybody lives on; the rest is stored")
        for members in groups:
            members.live()
        world.repair()
        world.end_producer()
        ends = world.ends()
        if not ends:
            raise NotReachedError("no record was produced")
        waiting = {members.group: members for members in groups}
        before, give_up_at_s = -1, time.monotonic() + STALL_S
        while waiting and time.monotonic() < give_up_at_s:
            stored = {group: world.stored(members) for group, members in waiting.items()}
            if (now := sum(sum(offsets.values()) for offsets in stored.values())) != before:
                before, give_up_at_s = now, time.monotonic() + STALL_S
            for group, members in list(waiting.items()):
                members.require_alive()
                if stored[group].items() >= ends.items():
                    del waiting[group]
            gevent.sleep(TICK_S)
        if waiting:
            self.progress.line(f"nothing more is stored of {', '.join(waiting)}; the sinks are compared all the same")

    def _judge(self, world: World, groups: list[Members], outcome: Outcome) -> None:
        self.progress.line("the sinks are compared with the input")
        log = world.log()
        outcome.records = sum(map(len, log.values()))
        for members in groups:
            found = world.results[members.way.results].judge(members.group, log)
            outcome.sinks[members.group] = found
            if not found.is_exact:
                outcome.problems.append(f"sink of {members.group}: {asdict(found)}")

    def _count(self, world: World, groups: list[Members], controls: list[Members], outcome: Outcome) -> None:
        for members in groups:
            outcome.kills += members.ended
            outcome.suspended += members.suspended
            outcome.problems += members.problems
        outcome.growths = world.faults.pop("topic growth", 0)
        outcome.kills += world.faults
        for members in controls:
            outcome.controls[members.group] = members.is_proved
            if not members.is_proved:
                outcome.problems.append(f"control {members.group}: its sink is right, so this run proves nothing")

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s
