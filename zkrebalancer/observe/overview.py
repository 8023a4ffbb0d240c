"""A run at a glance: its rebalances and causes, pauses, records, and the verdict, from a few files and without Spark.

A figure that was not recorded is None, not 0: often only coordinators write events, or files of agents are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from zkrebalancer.observe.checker import Verdict, read
from zkrebalancer.observe.reading import Event, text_of
from zkrebalancer.observe.rebalances import Rebalance

NEEDS = {  # the kinds of events without which a figure is unknown
    "produced": ("produced", "fetcher_started"),
    "delivered": ("delivered",),
    "lost": ("produced", "delivered", "fetcher_started"),
    "duplicated": ("delivered",),
    "duplicated_outside_crash": ("delivered", "fetcher_started"),
    "out_of_order": ("delivered", "fetcher_started"),
    "overlaps": ("fetcher_started",),
    "converged": ("fetcher_started",),
}
STEP_EVENTS = 5_000  # between two reports of progress


@dataclass(frozen=True, slots=True)
class Cause:
    """What one kind of change brought about, in one group."""

    group: str
    cause: str
    rebalances: int
    moved: int
    pause_ms_max: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """What the events of a folder say."""

    verdict: Verdict
    kinds: Counter[str]
    began_us: int | None  # wall clock
    ended_us: int | None
    rebalances: tuple[tuple[int | None, Rebalance], ...]  # each with the wall clock of its plan
    clocks: int
    error_us: int | None  # the largest one of a change of owners; None: unbounded
    silent_members: int  # that started or stopped partitions, and have no event of their own

    def figures(self) -> dict[str, int | bool | None]:
        """Return the verdict's figures, None for those that were not recorded."""
        is_whole = not self.silent_members
        known = {name: is_whole and all(self.kinds[kind] for kind in kinds) for name, kinds in NEEDS.items()}
        return {name: getattr(self.verdict, name) if known[name] else None for name in NEEDS}

    def causes(self) -> list[Cause]:
        """Return what each cause brought about, the most frequent one first."""
        found: dict[tuple[str, str], list[Rebalance]] = {}
        for _at_us, each in self.rebalances:
            found.setdefault((each.group, each.cause), []).append(each)
        causes = []
        for (group, cause), rebalances in found.items():
            pauses = [each.pause_ms_max for each in rebalances if each.pause_ms_max is not None]
            moved = sum(each.moved for each in rebalances)
            causes.append(Cause(group, cause, len(rebalances), moved, max(pauses, default=None)))
        return sorted(causes, key=lambda each: (-each.rebalances, each.group, each.cause))

    def document(self) -> dict[str, object]:
        """Return everything as plain data."""
        return {
            "ok": self.verdict.ok,
            "event_count": self.kinds.total(),
            "began_us": self.began_us,
            "ended_us": self.ended_us,
            "clocks": self.clocks,
            "clock_error_us": self.error_us,
            "members_without_events": self.silent_members,
            "rebalances": [{"planned_at_us": at_us, **asdict(each)} for at_us, each in self.rebalances],
            "causes": [asdict(each) for each in self.causes()],
            "faults": [asdict(each) for each in self.verdict.faults],
            **self.figures(),
            "unclear": list(self.verdict.unclear),
        }


def overview(directory: Path, progress: Callable[[int], None] = lambda _count: None) -> Overview:
    """Look at the event files of a folder; `progress` gets the number of events so far.

    Raises:
        NoEventsError: the folder contains no events.

    """
    seen = _Seen(progress)
    run, files = read(directory, seen.add)
    silent = seen.silent_members()
    owners_are_recorded = bool(seen.kinds["fetcher_started"]) and not silent
    silent_groups = {group for group, _member in silent}
    verdict = run.verdict(files.torn_lines, owners_are_recorded=owners_are_recorded, silent_groups=silent_groups)
    for rebalance in verdict.rebalances:
        plan = rebalance.group, rebalance.generation
        if silent or plan not in seen.started:  # then the coordinator's figure is the only one of all members
            rebalance.pause_ms_max = seen.pauses_ms.get(plan)
    return Overview(
        verdict,
        seen.kinds,
        seen.began_us,
        seen.ended_us,
        tuple(zip(seen.planned_us, verdict.rebalances, strict=True)),
        1 if files.alignment is None else 1 + len(files.alignment.relations),
        0 if files.doubts is None else files.doubts.widest_us,
        len(silent),
    )


class _Seen:
    """What the checker does not keep."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress = progress
        self.kinds: Counter[str] = Counter()
        self.began_us: int | None = None
        self.ended_us: int | None = None
        self.planned_us: list[int | None] = []
        self.pauses_ms: dict[tuple[str, int], float] = {}
        self.started: set[tuple[str, int]] = set()  # group and generation of plans under which a start was recorded
        self._commanded: set[tuple[str, str]] = set()  # group and member
        self._heard: set[tuple[str, str]] = set()
        self._empty: set[str] = set()  # commands about no partition: agents write no event of those

    def silent_members(self) -> set[tuple[str, str]]:
        """Return group and name of the members that started or stopped partitions without an event of theirs."""
        if self.kinds["scenario"]:
            return set()  # the recorder of an experiment writes for all members, by other names
        return self._commanded - self._heard

    def add(self, event: Event) -> None:
        kind, at_us = event["kind"], event.get("ts_us")
        self.kinds[kind] += 1
        if self.kinds.total() % STEP_EVENTS == 0:
            self._progress(self.kinds.total())
        at_us = at_us if type(at_us) is int else None
        if at_us is not None:
            self.began_us = at_us if self.began_us is None else min(self.began_us, at_us)
            self.ended_us = at_us if self.ended_us is None else max(self.ended_us, at_us)
        if kind == "command_sent" and event.get("partition_count") == 0:
            self._empty.add(text_of(event, "command_id"))
        elif kind == "command_acked" and text_of(event, "command_id") not in self._empty:
            self._commanded.add((text_of(event, "group"), text_of(event, "member")))
        elif kind in {"fetcher_started", "fetcher_stopped"}:
            self._heard.add((event["group"], event["member"]))
        if kind == "rebalance_planned":
            self.planned_us.append(at_us)
        elif kind == "fetcher_started" and event.get("cause_id") is not None:
            self.started.add((event["group"], event.get("generation") or 0))
        elif kind == "rebalance_finished" and type(event.get("pause_us_max")) is int:
            self.pauses_ms[event["group"], event["generation"]] = event["pause_us_max"] / 1_000
