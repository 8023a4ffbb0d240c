"""From the events of one join or leave to its figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds from the creation (or the order to leave); None where it does not apply."""

    first_record_ms: float | None
    settled_ms: float
    longest_gap_ms: float


def read_events(directory: Path, group: str, since_us: int) -> list[Event]:
    """Return what the recorders and the coordinator wrote of a group from a moment on, in order."""
    return sorted(
        (event for event in _lines(directory) if event["group"] == group and event["mono_us"] >= since_us),
        key=lambda event: int(event["mono_us"]),
    )


def _lines(directory: Path) -> Iterator[Event]:
    for path in sorted([*directory.glob("bench-*.jsonl"), *directory.glob("coordinator-*.jsonl")]):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def owners(events: list[Event]) -> dict[int, str]:
    """Return partition -> member after these events."""
    owned: dict[int, str] = {}
    for event in events:
        if event["kind"] == "bench_started":
            owned.update(dict.fromkeys(event["partitions"], event["member"]))
        elif event["kind"] == "bench_stopped":
            for partition in event["partitions"]:
                if owned.get(partition) == event["member"]:
                    del owned[partition]
    return owned


def last_change_us(events: list[Event]) -> int:
    """Return when a partition was last started or stopped, 0 if none was."""
    return max((e["mono_us"] for e in events if e["kind"] in {"bench_started", "bench_stopped"}), default=0)


def figures(events: list[Event], began_us: int, joiner: str | None) -> Figures:
    """Measure one change that began at `began_us`; `events` are those since then."""
    longest_us = 0
    without: dict[int, int] = {}
    first_record_us = None
    for event in events:
        if event["kind"] == "bench_stopped":
            without.update(dict.fromkeys(event["partitions"], event["mono_us"]))
        elif event["kind"] == "bench_started":
            for partition in event["partitions"]:
                longest_us = max(longest_us, event["mono_us"] - without.pop(partition, event["mono_us"]))
        elif event["kind"] == "bench_first_record" and event["member"] == joiner:
            first_record_us = event["mono_us"]
    return Figures(
        first_record_ms=None if first_record_us is None else (first_record_us - began_us) / 1_000,
        settled_ms=(last_change_us(events) - began_us) / 1_000,
        longest_gap_ms=longest_us / 1_000,
    )
