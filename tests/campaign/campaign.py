"""Runs a campaign: rounds of faults until the time is over or a promise is broken, then the verdict."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import gevent

from tests.campaign.causes import CAUSES
from tests.campaign.company import PRODUCER, Company, NothingToBreakError
from tests.campaign.disk import SmallDisk
from tests.campaign.interim import InterimChecks
from tests.campaign.links import Links, ProxiedLab
from tests.campaign.process_faults import find_faketime
from tests.campaign.progress import Progress
from tests.campaign.records import CampaignRecord, FaultRecord, Outcome, RoundRecord
from tests.campaign.schedule import KINDS, Fault, rounds
from tests.campaign.verdict import allow_open_files
from tests.campaign.watching import Watcher
from tests.support.warm import COMMANDS, WarmPrograms, ending_starter
from zkrebalancer.experiments.versions import read_versions
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.observe.checker import Verdict, check
from zkrebalancer.observe.reading import NoEventsError
from zkrebalancer.protocol.errors import RebalancerError

CHROOT = "/campaign"
SESSION_TIMEOUT_MS = 3_000
TICK_MS = 200
TICK_S = 0.1
ZOOKEEPER_PROPERTIES = {"preAllocSize": "8", "snapCount": "20000"}  # kilobytes, so that a full disk is noticed at once


class Cluster(WarmPrograms):
    """A cluster whose processes are forks, but for those with an environment of their own."""

    warm = (*COMMANDS, "tests.campaign.proxy")


@dataclass(frozen=True, slots=True)
class CampaignSettings:
    """The options; `events` None: a folder that is removed after success."""

    minutes: float
    seed: int
    max_agents: int
    kinds: tuple[str, ...]
    events: Path | None
    keep: bool


@dataclass(slots=True)
class Campaign:
    """One campaign; `end_soon` ends the faults of the current round, and the campaign after that round."""

    settings: CampaignSettings
    progress: Progress
    record: CampaignRecord = field(default_factory=CampaignRecord)
    left_out: dict[str, str] = field(default_factory=dict)
    is_ending: bool = False
    _began: float = field(default_factory=time.monotonic)

    def end_soon(self) -> None:
        """End with the verdict so far."""
        self.is_ending = True

    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def run(self) -> Outcome:
        """Run it. No process, mount or folder remains, except events and logs that are requested or show a failure.

        Raises:
            LocalClusterError, ConfigurationError: the servers cannot be started.

        """
        allow_open_files()
        self.progress.line("ZooKeeper and Kafka start")
        cluster = Cluster(zookeepers=3, chroot=CHROOT, tick_ms=TICK_MS, zookeeper_properties=ZOOKEEPER_PROPERTIES)
        with ending_starter(), cluster:
            directory = cluster.directory
            events = self.settings.events or directory / "events"
            versions = read_versions(cluster)
            with Links(cluster) as links, ProxiedLab(cluster, events, SESSION_TIMEOUT_MS, links=links) as lab:
                lab.note("scenario", **self._scenario(versions))
                with self._small_disk(cluster) as disk:
                    self._play(Company(lab, Watcher(events), self.settings.max_agents, disk=disk))
            outcome = self.judge(directory, events, versions)
        shutil.rmtree(directory, ignore_errors=True)  # the cluster keeps its logs if one of its processes failed
        return outcome

    def judge(self, directory: Path, events: Path, versions: dict[str, str]) -> Outcome:
        """Check every event, and every log in `directory`; if a promise was broken, they are kept and named."""
        self.record.problems += _tracebacks(directory)
        self.progress.line("every event is checked")
        began = time.monotonic()
        verdict = _check(events)
        outcome = self._outcome(verdict, versions, time.monotonic() - began)
        return self._keep_what_is_needed(outcome, directory, events)

    # Rounds ---------------------------------------------------------------------------------------------------------

    def _play(self, company: Company) -> None:
        """Start, inject faults, end; a broken promise ends it early and is recorded."""
        checks = InterimChecks(company.lab)
        self.record.not_reached = company.not_reached
        try:
            self.progress.line(f"{company.max_agents} agents at most, in {len(company.groups)} groups, start")
            company.open()
            company.wait_settled()
            end_at = time.monotonic() + self.settings.minutes * 60
            for number, faults in enumerate(rounds(self.settings.seed, self._kinds(), SESSION_TIMEOUT_MS / 1_000), 1):
                if self.is_ending or time.monotonic() > end_at:
                    break
                self._play_round(company, number, faults)
                self.record.checks += checks.look()
                self.record.problems += [problem for done in self.record.checks for problem in done.problems]
                if self.record.problems:
                    return
            self.progress.line("the producers stop, the agents read the remaining records and leave")
            company.drain()
            company.close()
        except RebalancerError as error:
            unread = "the run ended here, and records not read by then count as lost"
            self.record.problems.append(f"after {self.elapsed_s():.0f} s: {error}; {unread}")

    def _play_round(self, company: Company, number: int, faults: tuple[Fault, ...]) -> None:
        began = time.monotonic()
        company.watcher.look()
        company.watcher.gaps.begin()
        waiting = sorted(faults, key=lambda fault: fault.at_s)
        running: list[_Running] = []
        done: list[FaultRecord] = []
        while waiting or running:
            now_s = time.monotonic() - began
            due = [each for each in running if now_s >= each.end_at_s or self.is_ending]
            if due:
                first = min(due, key=lambda each: each.end_at_s)
                running.remove(first)
                done.append(self._end(first))
            elif waiting and (now_s >= waiting[0].at_s or self.is_ending):
                fault = waiting.pop(0)
                if not self.is_ending:
                    running += self._begin(company, fault, began)
            else:
                gevent.sleep(TICK_S)
                company.notice_deaths()
                self._tell(number, [each.record for each in running])
        company.complete()
        repaired_at = time.monotonic()
        self._tell(number, [])
        company.wait_settled()
        settled_s = round(time.monotonic() - repaired_at, 2)
        if done:
            done_round = RoundRecord(tuple(done), round(company.watcher.gaps.longest_us / 1e6, 2), settled_s)
            self.record.rounds.append(done_round)
            self.progress.line(_round_line(number, done_round))

    def _begin(self, company: Company, fault: Fault, round_began: float) -> list[_Running]:
        cause = CAUSES[fault.kind](company, fault)
        began_s = round(self.elapsed_s(), 2)
        try:
            target = cause.__enter__()
        except NothingToBreakError:
            self.record.skipped[fault.kind] += 1
            return []
        record = FaultRecord(fault.kind, target, fault.detail, began_s)
        return [_Running(cause, record, time.monotonic() - round_began + fault.lasts_s)]

    def _end(self, running: _Running) -> FaultRecord:
        running.cause.__exit__(None, None, None)
        running.record.ended_s = round(self.elapsed_s(), 2)
        return running.record

    def _tell(self, number: int, running: list[FaultRecord]) -> None:
        what = (
            ", ".join(f"{fault.kind} {fault.target}" for fault in running)
            or "everything is repaired; waiting for all groups"
        )
        count = sum(len(each.faults) for each in self.record.rounds)
        left_s = max(0.0, self.settings.minutes * 60 - self.elapsed_s())
        self.progress.status(f"round {number}, {count} faults so far, {left_s:.0f} s left: {what}")

    # Around them ----------------------------------------------------------------------------------------------------

    def _kinds(self) -> list[str]:
        return [kind for kind in self.settings.kinds if kind not in self.left_out]

    @contextmanager
    def _small_disk(self, cluster: Cluster) -> Iterator[SmallDisk | None]:
        """Put one ZooKeeper server onto a small disk if possible; print which faults are skipped."""
        disk = None
        server = cluster.zookeeper_servers[0]
        try:
            disk = SmallDisk(server, cluster.directory / server.name)
        except LocalClusterError as error:
            self.left_out["fill-disk"] = str(error)
        if find_faketime() is None:
            self.left_out["jump-clock"] = "libfaketime is not installed (Debian: apt-get install faketime)"
        for kind, reason in self.left_out.items():
            self.progress.line(f"skipped: {KINDS[kind].title}: {reason}")
        yield disk
        if disk is not None:
            disk.close()

    def _scenario(self, versions: dict[str, str]) -> dict[str, object]:
        settings = {"minutes": self.settings.minutes, "session_timeout_ms": SESSION_TIMEOUT_MS, "tick_ms": TICK_MS}
        members = self.settings.max_agents
        return {
            "name": "campaign",
            "protocol": "central",
            "members": members,
            "partitions": 0,
            "seed": self.settings.seed,
            "versions": versions,
            "settings": settings,
        }

    def _outcome(self, verdict: Verdict | None, versions: dict[str, str], check_s: float) -> Outcome:
        seed = self.settings.seed
        return Outcome(self.record, verdict, seed, versions, self.left_out, self.elapsed_s(), check_s)

    def _keep_what_is_needed(self, outcome: Outcome, directory: Path, events: Path) -> Outcome:
        if not (outcome.problems or self.settings.keep):
            return outcome
        folder = Path(tempfile.mkdtemp(prefix="zkrebalancer-campaign-"))
        outcome = replace(outcome, folder=str(folder))
        for log in directory.glob("*.log"):
            shutil.copy(log, folder)
        if self.settings.events is None:
            shutil.move(events, folder / "events")
        (folder / "campaign.json").write_text(json.dumps(outcome.document(), indent=1))
        return outcome


@dataclass(frozen=True, slots=True)
class _Running:
    """A fault that lasts; `end_at_s` counts from its round's beginning."""

    cause: AbstractContextManager[str]
    record: FaultRecord
    end_at_s: float


def _round_line(number: int, done: RoundRecord) -> str:
    what = ", ".join(f"{fault.kind} {fault.target}{fault.detail and f' ({fault.detail})'}" for fault in done.faults)
    return f"round {number}: {what}; longest without owner {done.without_owner_s} s, settled in {done.settled_s} s"


def _check(events: Path) -> Verdict | None:
    try:
        return check(events)
    except NoEventsError:
        return None


def _tracebacks(directory: Path) -> list[str]:
    """Return a problem for each of our processes that wrote a traceback, and for an invalid frame at the proxy."""
    found = [
        f"{log.stem} wrote a traceback"
        for log in sorted(directory.glob("*.log"))
        if not log.name.startswith(PRODUCER)  # producers are not judged
        if "Traceback" in log.read_text(errors="replace")
    ]
    proxy = (directory / "proxy.log").read_text()
    return found + ([f"the proxy received invalid bytes: {proxy.splitlines()[0]}"] if proxy else [])
