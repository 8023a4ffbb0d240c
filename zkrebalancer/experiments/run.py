"""One run: a fresh cluster, one scenario with one protocol, and a folder with its events, logs and result.

The result is written when the run begins and again when it ends, even by an error: `complete` is whether the run
finished, `trusted` whether its figures are valid, and `doubts` why not.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from zkrebalancer.experiments import disk
from zkrebalancer.experiments.costs import Costs, roles
from zkrebalancer.experiments.java_programs import (
    helix_consumer_command,
    helix_controller_command,
    java_consumer_command,
    old_consumer_command,
)
from zkrebalancer.experiments.lab import Lab, NotReachedError
from zkrebalancer.experiments.machine import describe_machine
from zkrebalancer.experiments.placement import place
from zkrebalancer.experiments.plan import COORDINATOR_SESSION_TIMEOUT_MS, Plan
from zkrebalancer.experiments.play import Play
from zkrebalancer.experiments.scenarios.model import GROUP, needed
from zkrebalancer.experiments.trust import find_doubts, find_doubts_of_backlog, find_doubts_of_disk
from zkrebalancer.experiments.versions import own_versions, read_versions
from zkrebalancer.experiments.watch import Watch
from zkrebalancer.localcluster import jars
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.locks import folder_locked
from zkrebalancer.observe.checker import check
from zkrebalancer.observe.events import EventLog
from zkrebalancer.observe.measures import measure
from zkrebalancer.observe.reading import EventFiles, NoEventsError, Problems
from zkrebalancer.observe.throughput import throughput
from zkrebalancer.protocol.errors import ConfigurationError, RebalancerError

RESULT = "result.json"
EVENTS = "events"
LOGS = "logs"
Result = dict[str, Any]


class RunFailedError(RebalancerError):
    """A process of the run failed; the text names its log in the run's folder."""


@dataclass(slots=True)
class Run:
    """One run in progress; `report` shows progress, `events_directory` gets copies of its events."""

    plan: Plan
    out: Path
    report: Callable[[str], None]
    events_directory: Path | None = None
    doubts: list[str] = field(default_factory=list)
    _result: Result = field(default_factory=dict)
    _began_s: float = field(default_factory=time.monotonic)

    @property
    def directory(self) -> Path:
        """The run's own folder."""
        return self.out / self.plan.folder

    def perform(self) -> Result:
        """Run, and return the result, which is also written to the run's folder and replaces an earlier one.

        Raises:
            RebalancerError: the run did not finish, which its result also records; or another process performs it.

        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with folder_locked(self.directory):
            return self._perform()

    def _perform(self) -> Result:
        events = self.directory / EVENTS
        for old in (events, self.directory / LOGS):
            shutil.rmtree(old, ignore_errors=True)
        events.mkdir()
        self._result = self._describe()
        self._write()
        try:
            self._run(events)
            self._result["complete"] = True
        except BaseException as error:
            self.doubts.append(f"did not finish: {str(error) or type(error).__name__}")
            raise
        finally:
            self._judge(events)
            self._copy(events)  # before the result, because a run with a result is not repeated
            self._write()
        return self._result

    def _run(self, events: Path) -> None:
        plan = self.plan
        self.report("ZooKeeper and Kafka start")
        cluster = plan.cluster()
        logs = self.directory / LOGS
        with _started(cluster) as directory:
            try:
                self._result["versions"] |= read_versions(cluster)
                self._examine_disk(cluster)
                self._play(cluster, events)
            except RebalancerError as error:
                raise RunFailedError(str(error).replace(str(directory), str(logs))) from error
            finally:
                _keep_logs(directory, logs)

    def _examine_disk(self, cluster: LocalCluster) -> None:
        sync_ms = self.plan.scenario.sync_ms
        if sync_ms:
            write_ms = self._result["zookeeper_write_ms"] = disk.shortest_write_ms(cluster.zookeeper)
            self.doubts += find_doubts_of_disk(sync_ms, write_ms, disk.quick_servers(cluster))

    def _play(self, cluster: LocalCluster, events: Path) -> None:
        plan = self.plan
        steps = needed(plan.scenario.steps(plan.cast), plan.protocol.restarts)
        command = self._member_command()
        processes = place(plan.cast, steps, plan.members_per_process)
        self._result["processes"] = len(processes) * (plan.protocol.restarts + 1 if plan.scenario.is_upgrade else 1)
        log = EventLog(events, "run")
        log.write("scenario", group=GROUP, name=plan.scenario.name, mode="members in threads", **self._scenario())
        with (
            Lab(cluster, events, COORDINATOR_SESSION_TIMEOUT_MS) as lab,
            Watch(events) as watch,
            Costs(log, cluster, lambda: roles(lab.programs)) as costs,
        ):
            about = (plan.protocol, plan.tuning, plan.scenario, plan.cast)
            play = Play(lab, watch, *about, processes, command, self._controller_command(), costs, self.report)
            play.open()
            if not play.rest_before():
                self.doubts.append("the group did not stay at rest before the first step")
            elif all(play.perform(step) for step in steps):
                self._result["settled"] = True  # or else the remaining steps are skipped, and this is the outcome
            try:
                play.close()
            except NotReachedError as error:
                if self._result["settled"]:
                    self.doubts.append(str(error))
        log.close()

    def _member_command(self) -> list[str]:
        """Return the command that runs members; may download a client first."""
        kind = self.plan.protocol.kind
        if kind == "java":
            self._result["versions"]["java-client"] = jars.KAFKA_4
            return java_consumer_command(self.report)
        if kind == "zookeeper":
            self._result["versions"]["old-consumer"] = jars.OLD_CLIENT
            return old_consumer_command(self.report)
        if kind == "helix":
            self._result["versions"] |= {"helix": jars.HELIX.partition("-")[2], "java-client": jars.KAFKA_4}
            return helix_consumer_command(self.report)
        return [sys.executable, "-m", "zkrebalancer.experiments.members.program"]

    def _controller_command(self) -> list[str]:
        return helix_controller_command(self.report) if self.plan.protocol.kind == "helix" else []

    # The result -----------------------------------------------------------------------------------------------------

    def _describe(self) -> Result:
        """Return the result as far as it is known before the run."""
        plan = self.plan
        return {
            "protocol": plan.protocol.name,
            "scenario": plan.scenario.name,
            "settings": plan.tuning,
            "members": plan.cast.members,
            "partitions": plan.cast.partitions,
            "seed": plan.cast.seed,
            "processes": 0,
            "versions": own_versions(),
            "machine": describe_machine(),
            "details": plan.details(),
            "zookeeper_write_ms": None,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "elapsed_s": 0.0,
            "complete": False,
            "settled": False,
            "trusted": False,
            "doubts": [],
            "steps": [],
            "measures": {},
            "events": EVENTS,
        }

    def _scenario(self) -> dict[str, Any]:
        keys = ("protocol", "members", "partitions", "seed", "versions", "settings", "machine", "details", "processes")
        return {key: self._result[key] for key in keys}

    def _judge(self, directory: Path) -> None:
        """Add the verdict and measures of the events to the result."""
        try:
            verdict = check(directory)
            unread = Problems()
            figures, steps = measure(EventFiles(directory, unread))
            self.doubts += [f"an event cannot be read: {line}" for line in unread.lines()[:1]]
            self.doubts += find_doubts(EventFiles(directory, Problems()), steps)
        except NoEventsError:
            return
        for name in ("lost", "duplicated", "duplicated_outside_crash", "out_of_order", "overlaps"):
            figures[name] = getattr(verdict, name)
        self._result["steps"], self._result["measures"] = steps, figures
        if self.plan.cast.groups == 1:
            # In a run that was interrupted, `read` has one more: the step that did not end.
            read = throughput(EventFiles(directory, Problems()))
            self._result["steps"] = [{**step, **read[cast("int", step["number"])]} for step in steps]
        if self.plan.scenario.backlog:
            self.doubts += find_doubts_of_backlog(self._result["steps"])
        self._result["problems"] = list(verdict.problems)

    def _copy(self, events: Path) -> None:
        if self.events_directory is not None:
            copies = self.events_directory / self.plan.folder
            shutil.rmtree(copies, ignore_errors=True)  # of an earlier attempt
            shutil.copytree(events, copies)

    def _write(self) -> None:
        """Write the result atomically."""
        self._result["elapsed_s"] = round(time.monotonic() - self._began_s, 1)
        self._result["doubts"] = self.doubts
        self._result["trusted"] = self._result["complete"] and not self.doubts
        draft = self.directory / f"{RESULT}.{os.getpid()}"
        draft.write_text(json.dumps(self._result, indent=1) + "\n")
        draft.replace(self.directory / RESULT)


def read_result(plan: Plan, out: Path) -> Result | None:
    """Return the result of a finished run, None if there is none.

    Raises:
        ConfigurationError: the result cannot be read, or it used another broker or other members per process.

    """
    file = out / plan.folder / RESULT
    if not file.exists():
        return None
    try:
        result = json.loads(file.read_text())
        is_complete, details = result["complete"], result["details"]
        found = details["broker"]["kind"], details["members_per_process"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{file}: not a result ({error!r}); remove it to run this again") from None
    wanted = plan.broker, plan.members_per_process
    if is_complete and found != wanted:
        text = "{} with {} members in a process".format
        there = f"{file} is of a run on {text(*found)}, not on {text(*wanted)}"
        raise ConfigurationError(f"{there}; name another folder with --out")
    return dict(result) if is_complete else None


@contextmanager
def _started(cluster: LocalCluster) -> Iterator[Path]:
    """Run a cluster; remove its folder even after a failure, when the logs have been copied."""
    cluster.start()
    directory = cluster.directory
    try:
        yield directory
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _keep_logs(directory: Path, logs: Path) -> None:
    logs.mkdir(exist_ok=True)
    for log in directory.glob("*.log"):
        shutil.copy(log, logs)
