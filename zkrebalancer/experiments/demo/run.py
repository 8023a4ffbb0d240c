"""The demo: a cluster, the same moves for two groups, one in each mode, and a verdict from the events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from zkrebalancer.experiments.demo.script import FIRST_TOPIC, Move, write_script
from zkrebalancer.experiments.demo.show import Show
from zkrebalancer.experiments.demo.stage import COORDINATORS, Stage
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.experiments.versions import read_versions
from zkrebalancer.experiments.watch import Watch
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.observe.checker import Verdict, check
from zkrebalancer.observe.events import JsonValue
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL

CHROOT = "/demo"
TICK_MS = 200
SESSION_TIMEOUT_MS = 2_000
GROUPS = (("demo", INCREMENTAL, "demo-payments"), ("demo-eager", EAGER, "demo-refunds"))
STEPS_AROUND_MOVES = 5  # cluster, coordinators, drain, stop, check


class DemoFailedError(RebalancerError):
    """A step of the demo timed out or a promise was broken; the text names the folder of logs and events."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Options of the demo; records flow for at least `seconds`; `records_per_s` is for the first topic."""

    seconds: float
    members: int
    partitions: int
    records_per_s: int
    seed: int
    events: Path | None
    keep: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result; `events` and `directory` are None if they were not kept."""

    verdict: Verdict
    versions: dict[str, str]
    seed: int
    events: Path | None
    directory: Path | None
    elapsed_s: float

    def document(self) -> dict[str, object]:
        """Return what `--json` prints."""
        verdict = self.verdict
        records = ("produced", "delivered", "lost", "duplicated", "duplicated_outside_crash", "out_of_order")
        return {
            "ok": verdict.ok,
            "versions": self.versions,
            "seed": self.seed,
            "rebalances": [asdict(rebalance) for rebalance in verdict.rebalances],
            "faults": [asdict(fault) for fault in verdict.faults],
            "records": {name: getattr(verdict, name) for name in records},
            "overlaps": verdict.overlaps,
            "events": None if self.events is None else str(self.events),
            "elapsed_s": round(self.elapsed_s, 1),
        }


def write_scripts(settings: DemoSettings) -> list[Move]:
    """Return the moves of both groups, one group after the other; the second starts with the grown first topic."""
    random = Random(settings.seed)  # noqa: S311  # chooses the targets
    partitions, moves = settings.partitions, list[Move]()
    for group, _mode, new_topic in GROUPS:
        moves += write_script(group, settings.members, partitions, new_topic, random)
        partitions = max(move.partitions for move in moves if move.target == FIRST_TOPIC)
    return moves


def count_steps(settings: DemoSettings) -> int:
    """Return how many steps the demo has."""
    return STEPS_AROUND_MOVES + len(write_scripts(settings))


def run(settings: DemoSettings, show: Show) -> Outcome:
    """Run the demo. No process remains, and no folder unless it is asked for or something failed.

    Raises:
        DemoFailedError: a step timed out; logs and events are kept.
        LocalClusterError, ConfigurationError: the cluster cannot be started.

    """
    began = time.monotonic()
    show.step("ZooKeeper and Kafka start")
    with _cluster(show, settings.keep) as running:
        cluster = running.cluster
        events = settings.events or running.directory / "events"
        versions = read_versions(cluster)
        show.heading(f"zkrebalancer demo · ZooKeeper {versions['zookeeper']} · Kafka {versions['kafka']}")
        with Lab(cluster, events, SESSION_TIMEOUT_MS) as lab, Watch(events) as watch:
            lab.note("scenario", **_scenario(settings, versions))
            show.watch = watch
            _play(Stage(lab, settings.records_per_s / settings.partitions), settings, watch, show)
        show.step("every event is checked")
        verdict = check(events)
        running.is_kept = settings.keep or not verdict.ok
    kept_events = events if settings.events or running.is_kept else None
    directory = running.directory if running.is_kept else None
    return Outcome(verdict, versions, settings.seed, kept_events, directory, time.monotonic() - began)


def _play(stage: Stage, settings: DemoSettings, watch: Watch, show: Show) -> None:
    lab = stage.lab
    show.step(f"{len(COORDINATORS)} coordinators and the producers start")
    stage.open(settings.partitions)
    records_began_s = lab.elapsed_s()
    moves = write_scripts(settings)
    modes = {group: mode for group, mode, _topic in GROUPS}
    for number, move in enumerate(moves):
        if move.group not in stage.groups:
            stage.add_group(move.group, modes[move.group])
        stage.pause_until(records_began_s + settings.seconds * number / len(moves))
        show.step(f"{move.group}: {move.title}")
        stage.perform(move)
    stage.pause_until(records_began_s + settings.seconds)
    show.step("the producers stop, and the consumers read the remaining records")
    stage.drain(watch.records_behind)
    show.step("consumers and coordinators stop")
    stage.close(watch.produced())


def _scenario(settings: DemoSettings, versions: dict[str, str]) -> dict[str, JsonValue]:
    return {
        "name": "demo",
        "protocol": "central",
        "members": settings.members,
        "partitions": settings.partitions,
        "seed": settings.seed,
        "versions": versions,
        "settings": {
            "seconds": settings.seconds,
            "records_per_s": settings.records_per_s,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "tick_ms": TICK_MS,
        },
    }


@dataclass(slots=True)
class _RunningCluster:
    """A running cluster, and whether its folder is kept at the end."""

    cluster: LocalCluster
    directory: Path
    is_kept: bool

    def end(self) -> None:
        """Stop every server, and keep or remove the folder."""
        if not self.is_kept:
            self.cluster.stop()
            return
        for server in (self.cluster.broker, *self.cluster.zookeeper_servers):
            server.kill()
        aside = self.directory.with_name(f"{self.directory.name}.kept")
        aside.mkdir()
        for entry in list(self.directory.iterdir()):
            entry.rename(aside / entry.name)
        self.cluster.stop()  # removes the folder, now empty
        aside.rename(self.directory)


@contextmanager
def _cluster(show: Show, keep: bool) -> Iterator[_RunningCluster]:
    """Run a cluster; if a step times out, keep its folder and name it in the error."""
    cluster = LocalCluster(chroot=CHROOT, tick_ms=TICK_MS, report=show.detail)
    cluster.start()
    running = _RunningCluster(cluster, cluster.directory, keep)
    try:
        yield running
    except RebalancerError as error:
        running.is_kept = True
        raise DemoFailedError(f"{error}; logs and events are in {running.directory}") from error
    except BaseException:
        running.is_kept = False
        raise
    finally:
        running.end()
