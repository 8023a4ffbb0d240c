"""Figures of one join or leave, from its events."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.observe.reading import Event


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds since the member's creation (or the order to leave); None where not applicable."""

    first_record_ms: float | None
    settled_ms: float
    longest_gap_ms: float


class GroupEvents:
    """A group's events in order while they are written; of `delivered`, only the first of each member."""

    def __init__(self, directory: Path, group: str) -> None:
        """Follow the files of `directory`."""
        self._tail = EventTail(directory)
        self._group = group
        self._reading: set[str] = set()
        self._events: list[Event] = []

    def look(self) -> list[Event]:
        """Return every event so far."""
        for event in self._tail.read():
            if event["group"] != self._group or event["kind"] == "committed":
                continue
            if event["kind"] == "delivered":
                if event["member"] in self._reading:
                    continue
                self._reading.add(event["member"])
            self._events.append(event)
        self._events.sort(key=lambda event: int(event["mono_us"]))
        return self._events


def owners(events: list[Event]) -> dict[int, str]:
    """Return partition -> owner after these events."""
    owned: dict[int, str] = {}
    for event in events:
        if event["kind"] == "fetcher_started":
            owned.update(dict.fromkeys(event["partitions"], event["member"]))
        elif event["kind"] == "fetcher_stopped":
            for partition in event["partitions"]:
                if owned.get(partition) == event["member"]:
                    del owned[partition]
    return owned


def last_change_us(events: list[Event]) -> int:
    """Return when a partition last started or stopped, 0 if none did."""
    return max((e["mono_us"] for e in events if e["kind"] in {"fetcher_started", "fetcher_stopped"}), default=0)


def figures(events: list[Event], began_us: int, joiner: str | None) -> Figures:
    """Measure one change that began at `began_us`; `events` are those since then."""
    longest_us = 0
    without: dict[int, int] = {}
    first_record_us = None
    for event in events:
        if event["kind"] == "fetcher_stopped":
            without.update(dict.fromkeys(event["partitions"], event["mono_us"]))
        elif event["kind"] == "fetcher_started":
            for partition in event["partitions"]:
                longest_us = max(longest_us, event["mono_us"] - without.pop(partition, event["mono_us"]))
        elif event["kind"] == "delivered" and event["member"] == joiner:
            first_record_us = event["mono_us"]
    return Figures(
        first_record_ms=None if first_record_us is None else (first_record_us - began_us) / 1_000,
        settled_ms=(last_change_us(events) - began_us) / 1_000,
        longest_gap_ms=longest_us / 1_000,
    )
