"""Judges a run by its event files alone: was a record lost, doubled or out of order, did a partition have two owners?

An ownership interval of a member and partition runs from `fetcher_started` to the next `fetcher_stopped`, or to the member's
`ownership_ended`. A record that was delivered twice is excused only if its first delivery was by a member that ended without
a stop, at or above its committed offset. Order is judged per member and interval. Events are ordered by `mono_us`, the
clock that the processes of one host share.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from zkrebalancer.observe.coverage import Coverage

MAX_PROBLEMS = 50  # lines that are kept; the counts go on
Event = dict[str, Any]
GroupPartition = tuple[str, str, int]  # group, topic, partition


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One plan; times in milliseconds, `pause_ms_max` being the longest time that a moved partition had no consumer."""

    group: str
    generation: int
    mode: str
    cause: str
    members: int
    partitions: int
    moved: int
    settled_ms: float | None
    pause_ms_max: float | None
    outcome: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was broken on purpose, `at_s` seconds after the first event."""

    name: str
    target: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a run. Counts of records are sums over the groups that read them."""

    produced: int
    delivered: int
    lost: int
    duplicated: int
    duplicated_outside_crash: int
    out_of_order: int
    overlaps: int  # partitions that two members held at the same moment
    converged: bool
    rebalances: tuple[Rebalance, ...]
    faults: tuple[Fault, ...]
    problems: tuple[str, ...]
    torn_lines: int = 0

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not self.problems and self.converged


@dataclass(slots=True)
class _Interval:
    began_us: int
    next_offset: int
    is_stale: bool = False  # its topic was deleted meanwhile


@dataclass(slots=True)
class _Partition:
    """One partition as one group reads it."""

    first_position: int | None = None
    coverage: Coverage = field(default_factory=Coverage)
    intervals: dict[str, _Interval] = field(default_factory=dict)  # member -> its open interval
    committed: dict[str, int] = field(default_factory=dict)  # member -> offset
    ended_without_stop: dict[str, int] = field(default_factory=dict)  # member -> committed offset at its end
    without_owner_since: tuple[int, str] | None = None  # when, and who had it
    last_member: str | None = None


class _Judge:
    """Takes events in order; `verdict` tells what came of them."""

    def __init__(self) -> None:
        self.partitions: dict[GroupPartition, _Partition] = {}
        self.of_member: dict[tuple[str, str], set[GroupPartition]] = {}  # (group, member) -> partitions it has now
        self.produced: dict[tuple[str, int], Coverage] = {}
        self.problems: list[str] = []
        self.began_us: int | None = None
        self.duplicated = self.duplicated_outside_crash = self.out_of_order = 0
        self.delivered = self.lost = 0
        self.overlapping: set[GroupPartition] = set()
        self.causes: dict[str, str] = {}
        self.planned: dict[tuple[str, int, str], Event] = {}
        self.finished: dict[tuple[str, int, str], Event] = {}
        self.pauses_us: dict[tuple[str, int], int] = {}
        self.faults: list[Fault] = []
        self._handlers = {
            "fetcher_started": self._fetcher_started,
            "fetcher_stopped": self._fetcher_stopped,
            "ownership_ended": self._ownership_ended,
            "topic_deleted": self._topic_deleted,
            "produced": self._produced,
            "delivered": self._delivered,
            "committed": self._committed,
            "rebalance_requested": self._rebalance_requested,
            "rebalance_planned": self._rebalance_planned,
            "rebalance_finished": self._rebalance_finished,
            "fault": self._fault,
        }

    def take(self, event: Event) -> None:
        if self.began_us is None:
            self.began_us = event["mono_us"]
        handler = self._handlers.get(event["kind"])
        if handler is not None:
            handler(event)

    def problem(self, event: Event, text: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(f"{(event['mono_us'] - (self.began_us or 0)) / 1e6:.6f} s, {event['process']}: {text}")

    # Ownership ------------------------------------------------------------------------------------------------------

    def _fetcher_started(self, event: Event) -> None:
        member, group = event["member"], event["group"]
        for number, position in zip(event["partitions"], event["positions"], strict=True):
            key = (group, event["topic"], number)
            partition = self.partitions.setdefault(key, _Partition())
            others = partition.intervals.keys() - {member}
            if others:
                self.overlapping.add(key)
                self.problem(event, f"{member} starts {key}, which {', '.join(sorted(others))} still has")
            if partition.first_position is None:
                partition.first_position = position
            partition.intervals[member] = _Interval(event["mono_us"], position)
            partition.committed[member] = position
            self.of_member.setdefault((group, member), set()).add(key)
            self._note_pause(event, partition, member)

    def _note_pause(self, event: Event, partition: _Partition, member: str) -> None:
        if partition.without_owner_since is not None and event["generation"] is not None:
            since_us, former = partition.without_owner_since
            if former != member:
                key = (event["group"], event["generation"])
                self.pauses_us[key] = max(self.pauses_us.get(key, 0), event["mono_us"] - since_us)
        partition.without_owner_since = None

    def _fetcher_stopped(self, event: Event) -> None:
        for number in event["partitions"]:
            key = (event["group"], event["topic"], number)
            partition = self.partitions.get(key)
            if partition is not None and partition.intervals.pop(event["member"], None) is not None:
                partition.without_owner_since = (event["mono_us"], event["member"])
                self.of_member[event["group"], event["member"]].discard(key)
                if event["reason"] == "lost":  # its session was over: what it did not commit is read again
                    partition.ended_without_stop[event["member"]] = partition.committed[event["member"]]

    def _ownership_ended(self, event: Event) -> None:
        member = event["member"]
        for key in sorted(self.of_member.pop((event["group"], member), set())):
            partition = self.partitions[key]
            del partition.intervals[member]
            partition.ended_without_stop[member] = partition.committed[member]
            partition.without_owner_since = (event["mono_us"], member)

    def _topic_deleted(self, event: Event) -> None:
        """Its records are gone; what is created under its name is another topic."""
        for (_group, topic, number), partition in self.partitions.items():
            if topic == event["topic"]:
                self._close_books(topic, number, partition, event)
                partition.coverage, partition.first_position = Coverage(), None
                for interval in partition.intervals.values():
                    interval.is_stale = True
        for key in [key for key in self.produced if key[0] == event["topic"]]:
            del self.produced[key]

    # Records --------------------------------------------------------------------------------------------------------

    def _produced(self, event: Event) -> None:
        coverage = self.produced.setdefault((event["topic"], event["partition"]), Coverage())
        coverage.add(event["first_offset"], event["last_offset"], "")

    def _delivered(self, event: Event) -> None:
        member, first, last = event["member"], event["first_offset"], event["last_offset"]
        key = (event["group"], event["topic"], event["partition"])
        partition = self.partitions.get(key)
        interval = partition.intervals.get(member) if partition is not None else None
        if partition is None or interval is None:
            self.problem(event, f"{member} delivers {key} offsets {first}-{last} without having the partition")
            return
        if interval.is_stale:
            return
        if first < interval.next_offset:
            self.out_of_order += 1
            self.problem(event, f"{member} delivers {key} offset {first} after {interval.next_offset - 1}")
        interval.next_offset = max(interval.next_offset, last + 1)
        for run in partition.coverage.add(first, last, member):
            self.duplicated += len(run)
            committed = partition.ended_without_stop.get(run.by)
            inexcusable = len(run) if committed is None else max(0, min(committed, run.last + 1) - run.first)
            if inexcusable:
                self.duplicated_outside_crash += inexcusable
                self.problem(event, f"{member} delivers {key} offsets {run.first}-{run.last}, delivered by {run.by} before")

    def _committed(self, event: Event) -> None:
        partition = self.partitions.get((event["group"], event["topic"], event["partition"]))
        if partition is not None:
            known = partition.committed.get(event["member"], 0)
            partition.committed[event["member"]] = max(known, event["offset"])

    # What is only noted ---------------------------------------------------------------------------------------------

    def _rebalance_requested(self, event: Event) -> None:
        self.causes[event["cause_id"]] = event["trigger"]

    def _rebalance_planned(self, event: Event) -> None:
        self.planned[event["group"], event["generation"], event["cause_id"]] = event

    def _rebalance_finished(self, event: Event) -> None:
        self.finished[event["group"], event["generation"], event["cause_id"]] = event

    def _fault(self, event: Event) -> None:
        self.faults.append(Fault(event["name"], event["target"], round((event["mono_us"] - (self.began_us or 0)) / 1e6, 3)))

    # The end --------------------------------------------------------------------------------------------------------

    def _close_books(self, topic: str, number: int, partition: _Partition, event: Event) -> None:
        """Count what the group was to get of one partition, and what it did not get."""
        produced = self.produced.get((topic, number))
        if produced is not None and partition.first_position is not None:
            highest = produced.last()
            for first, last in partition.coverage.missing(partition.first_position, highest):
                gaps = produced.common(first, last)
                self.lost += gaps
                if gaps:
                    self.problem(event, f"{topic}-{number}: {gaps} records of offsets {first}-{last} were never delivered")
        self.delivered += partition.coverage.count()

    def verdict(self, last: Event | None, torn_lines: int) -> Verdict:
        for (_group, topic, number), partition in sorted(self.partitions.items()):
            if last is not None:
                self._close_books(topic, number, partition, last)
        busy_groups = {group for group, _topic, _number in self.partitions if self._is_alive(group)}
        homeless = [key for key, p in self.partitions.items() if key[0] in busy_groups and len(p.intervals) != 1]
        return Verdict(
            produced=self.delivered + self.lost,
            delivered=self.delivered,
            lost=self.lost,
            duplicated=self.duplicated,
            duplicated_outside_crash=self.duplicated_outside_crash,
            out_of_order=self.out_of_order,
            overlaps=len(self.overlapping),
            converged=not homeless,
            rebalances=tuple(self._rebalances()),
            faults=tuple(self.faults),
            problems=tuple(self.problems),
            torn_lines=torn_lines,
        )

    def _is_alive(self, group: str) -> bool:
        return any(partitions for (name, _member), partitions in self.of_member.items() if name == group)

    def _rebalances(self) -> Iterator[Rebalance]:
        for key, planned in self.planned.items():
            group, generation, cause_id = key
            finished = self.finished.get(key)
            pause_us = self.pauses_us.get((group, generation))
            yield Rebalance(
                group=group,
                generation=generation,
                mode=planned["mode"],
                cause=self.causes.get(cause_id, "unknown"),
                members=planned["member_count"],
                partitions=planned["partition_count"],
                moved=planned["moved_count"],
                settled_ms=round(finished["settled_us"] / 1_000, 3) if finished else None,
                pause_ms_max=None if pause_us is None else round(pause_us / 1_000, 3),
                outcome=finished["outcome"] if finished else "superseded",  # by the plan of the next leader
            )


def judge(events: Iterable[Event], torn_lines: int = 0) -> Verdict:
    """Judge events that are in the order of `mono_us`."""
    the_judge = _Judge()
    last = None
    for last in events:
        the_judge.take(last)
    return the_judge.verdict(last, torn_lines)


def check(directory: Path) -> Verdict:
    """Judge the event files in a folder.

    Lines that are not events are problems, but for the last line of a file: a process that is killed may tear it.
    """
    events: list[Event] = []
    broken: list[str] = []
    torn_lines = 0
    for path in sorted(directory.glob("*.jsonl")):
        content = path.read_bytes()
        lines = content.splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            event = _parse(line)
            if event is not None:
                events.append(event)
            elif number == len(lines) and not line.endswith(b"\n"):
                torn_lines += 1
            else:
                broken.append(f"{path.name}, line {number}: not an event")
    verdict = judge(sorted(events, key=itemgetter("mono_us")), torn_lines)
    if not broken:
        return verdict
    return replace(verdict, problems=(*broken, *verdict.problems)[:MAX_PROBLEMS])


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    is_event = isinstance(event, dict) and isinstance(event.get("mono_us"), int) and isinstance(event.get("kind"), str)
    return event if is_event else None
