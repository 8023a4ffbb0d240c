"""Reads a run's event files in the order in which things happened, one event at a time.

A process that was killed may leave a torn last line, which is counted. Anything else that cannot be read is a problem:
a verdict must not rest on events that were silently left out.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zkrebalancer.protocol.errors import RebalancerError

Event = dict[str, Any]

REORDERED_LINES = 1_000  # threads of one process may write so many lines out of order
MAX_PROBLEMS = 100
MAX_NUMBER = 2**53  # what every reader of JSON has exactly; no time and no offset comes near

_COMMON: dict[str, type] = {"mono_us": int, "kind": str}
_RANGE: dict[str, type] = {"topic": str, "partition": int, "first_offset": int, "last_offset": int}
_FETCHER: dict[str, type] = {"group": str, "member": str, "topic": str, "partitions": list, "positions": list}
KEYS: dict[str, dict[str, type]] = {  # what a judgement needs of each kind; other kinds and keys are passed over
    "rebalance_requested": {"group": str, "cause_id": str, "trigger": str},
    "rebalance_planned": {
        "group": str,
        "generation": int,
        "cause_id": str,
        "mode": str,
        "member_count": int,
        "partition_count": int,
        "moved_count": int,
    },
    "rebalance_finished": {"group": str, "generation": int, "cause_id": str, "outcome": str, "settled_us": int},
    "fetcher_started": _FETCHER,
    "fetcher_stopped": {**_FETCHER, "reason": str},
    "delivered": {"group": str, "member": str, **_RANGE, "count": int},
    "produced": _RANGE,
    "ownership_ended": {"group": str, "member": str, "reason": str},
    "repositioned": _FETCHER,
    "committed": {"group": str, "member": str, "topic": str, "partition": int, "offset": int},
    "member_joined": {"group": str, "member": str},
    "member_left": {"group": str, "member": str, "reason": str},
    "leader_elected": {"epoch": int},
    "leader_resigned": {"epoch": int},
    "fault": {"name": str, "target": str},
    "topic_deleted": {"topic": str},
    "step": {"name": str, "target": str, "number": int},
    "stalled": {"role": str, "gap_ms": int},
    "busy": {"busy_us": int, "own_us": int, "processors": int},
    "sampled": {"role": str, "target": str, "cpu_us": int, "rss_bytes": int},
    "counted": {"role": str, "target": str, "requests": int, "bytes_in": int},
}


class NoEventsError(RebalancerError):
    """A folder without events, of which nothing can be said."""


class Problems:
    """Readable lines; of more than MAX_PROBLEMS the rest is only counted."""

    def __init__(self) -> None:
        """Begin without a problem."""
        self._lines: list[str] = []
        self._left_out = 0

    def add(self, line: str) -> None:
        """Note a problem."""
        if len(self._lines) < MAX_PROBLEMS:
            self._lines.append(line)
        else:
            self._left_out += 1

    def lines(self) -> tuple[str, ...]:
        """Return the problems in the order in which they were found."""
        more = [f"and {self._left_out} problems more"] if self._left_out else []
        return (*self._lines, *more)


class EventFiles:
    """Every `*.jsonl` file of a folder; iterating gives the events of all, by `mono_us`."""

    def __init__(self, directory: Path, problems: Problems) -> None:
        """Prepare to read; lines that cannot be read are added to `problems`.

        Raises:
            NoEventsError: the folder is not there or has no event file.

        """
        self.torn_lines = 0
        self._paths = sorted(directory.glob("*.jsonl"))
        self._problems = problems
        if not self._paths:
            raise NoEventsError(f"{directory} has no event file (*.jsonl)")

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events; every file is open meanwhile."""
        return heapq.merge(*(self._in_order(path) for path in self._paths), key=lambda event: int(event["mono_us"]))

    def _in_order(self, path: Path) -> Iterator[Event]:
        """Put the lines of one file in order with a heap of bounded size."""
        waiting: list[tuple[int, int, Event]] = []
        for number, event in enumerate(self._parsed(path)):
            heapq.heappush(waiting, (event["mono_us"], number, event))
            if len(waiting) > REORDERED_LINES:
                yield heapq.heappop(waiting)[2]
        while waiting:
            yield heapq.heappop(waiting)[2]

    def _parsed(self, path: Path) -> Iterator[Event]:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    event = json.loads(line)
                except ValueError:
                    if line.endswith(b"\n"):
                        self._problems.add(f"{path.name}, line {number}: not JSON: {line[:80]!r}")
                    else:
                        self.torn_lines += 1
                    continue
                flaw = find_flaw(event)
                if flaw is None:
                    yield event
                else:
                    self._problems.add(f"{path.name}, line {number}: {flaw}")


def find_flaw(event: object) -> str | None:
    """Return what is wrong with a line's content, None if it can be judged."""
    if not isinstance(event, dict):
        return "not a JSON object"
    for key, kind in {**_COMMON, **KEYS.get(str(event.get("kind")), {})}.items():
        value = event.get(key)
        if type(value) is not kind:
            return f"event {event.get('kind')!r}: {key} is {value!r}, not of type {kind.__name__}"
    if abs(event["mono_us"]) > MAX_NUMBER:
        return f"event {event['kind']!r}: mono_us {event['mono_us']} is no time"
    if "positions" in event and "partitions" in event:
        partitions, positions = event["partitions"], event["positions"]
        if len(partitions) != len(positions) or any(type(number) is not int for number in partitions + positions):
            return f"event {event['kind']!r}: partitions and positions are not integers of equal number"
    if "first_offset" in event and not 0 <= event["first_offset"] <= event["last_offset"] <= MAX_NUMBER:
        return f"event {event['kind']!r}: offsets {event['first_offset']} to {event['last_offset']}"
    return None
