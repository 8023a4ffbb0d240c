"""Reads a run's event files, merged in order of time.

A killed process may leave a torn last line, which is counted. Any other unreadable line is a problem, because a verdict
must not ignore events silently. Files may grow meanwhile: all are read up to where they ended at the beginning, since a
stop that one of them gets later may allow what another one gets after it.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from zkrebalancer.protocol.errors import RebalancerError

Event = dict[str, Any]

REORDERED_LINES = 1_000  # how far the threads of one process may write out of order
MAX_PROBLEMS = 100
SHOWN_BYTES = 80  # of a line that cannot be read
MAX_LINE_BYTES = 16 * 1024 * 1024  # a power failure can leave gigabytes of zeros without the end of a line
MAX_NUMBER = 2**53  # the largest integer that is exact for every JSON reader; far above any time or offset

_COMMON: dict[str, type] = {"mono_us": int, "kind": str}
_RANGE: dict[str, type] = {"topic": str, "partition": int, "first_offset": int, "last_offset": int}
_FETCHER: dict[str, type] = {"group": str, "member": str, "topic": str, "partitions": list, "positions": list}
KEYS: dict[str, dict[str, type]] = {  # required keys by kind; other kinds and keys are ignored
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
    "repositioned": {**_FETCHER, "reason": str},
    "committed": {"group": str, "member": str, "topic": str, "partition": int, "offset": int},
    "member_joined": {"group": str, "member": str},
    "member_left": {"group": str, "member": str, "reason": str},
    "false_claim": {"group": str, "member": str, "partition_count": int},
    "group_deleted": {"group": str},
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


def text_of(event: Event, key: str) -> str:
    """Return a text that its kind of events does not require, "" if it is missing or something else."""
    value = event.get(key)
    return value if isinstance(value, str) else ""


class NoEventsError(RebalancerError):
    """The folder contains no events, so there is nothing to judge."""


class Problems:
    """Problems as lines of text; beyond MAX_PROBLEMS they are only counted."""

    def __init__(self) -> None:
        """Begin without problems."""
        self._lines: list[str] = []
        self._left_out = 0

    def add(self, line: str) -> None:
        """Add a problem."""
        if len(self._lines) < MAX_PROBLEMS:
            self._lines.append(line)
        else:
            self._left_out += 1

    def lines(self) -> tuple[str, ...]:
        """Return the problems in the order in which they were added."""
        more = [f"and {self._left_out} more problems"] if self._left_out else []
        return (*self._lines, *more)


class EventFiles:
    """Every `*.jsonl` file of a folder; iterates over their events in order of time."""

    def __init__(self, directory: Path, problems: Problems, *, order: str = "mono_us") -> None:
        """Find the files; iterating adds unreadable lines to `problems`.

        `order`: the time by which the files are merged; `ts_us` if they may be of several hosts.

        Raises:
            NoEventsError: the folder does not exist or contains no event file.

        """
        self.torn_lines = 0
        self.place: Callable[[Event], Event] | None = None  # moves an event to the time by which all are ordered
        self.sizes: dict[Path, int] = {}  # how much of each file is read
        for path in sorted(directory.glob("*.jsonl")):
            with suppress(FileNotFoundError):  # its process has deleted it as its oldest one
                self.sizes[path] = path.stat().st_size
        self._problems = problems
        self._order = order
        if not self.sizes:
            raise NoEventsError(f"{directory} contains no event file (*.jsonl)")
        names = {path.name for path in self.sizes}
        for name, before in ((name, _file_before(name)) for name in sorted(names)):
            if before is not None and before not in names:
                problems.add(f"{before}, which precedes {name}, is missing: a process keeps only its last files")

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events; all files stay open meanwhile."""
        self.torn_lines = 0
        return heapq.merge(*(self._in_order(path) for path in self.sizes), key=self._time)

    def unordered(self) -> Iterator[Event]:
        """Iterate over the events, file by file; adds no problem."""
        for path in self.sizes:
            yield from self._parsed(path, Problems())

    def _time(self, event: Event) -> int:
        at = event.get(self._order)
        return at if type(at) is int else int(event["mono_us"])

    def _in_order(self, path: Path) -> Iterator[Event]:
        """Iterate over the events of one file; say once if they are out of order by more than can be sorted."""
        latest_us, is_told = -MAX_NUMBER, self.place is not None or self._order != "mono_us"  # other clocks may go back
        for at_us, _number, event in self._sorted(path):
            if at_us < latest_us and not is_told:
                is_told = True
                text = f"lines come more than {REORDERED_LINES} lines late, so events are judged in a wrong order"
                self._problems.add(f"{path.name}: {text}: give each process a file of its own")
            latest_us = max(latest_us, at_us)
            yield event

    def _sorted(self, path: Path) -> Iterator[tuple[int, int, Event]]:
        """Sort the events of one file with a bounded heap."""
        waiting: list[tuple[int, int, Event]] = []
        for number, event in enumerate(self._parsed(path, self._problems)):
            heapq.heappush(waiting, (self._time(event), number, event))
            if len(waiting) > REORDERED_LINES:
                yield heapq.heappop(waiting)
        while waiting:
            yield heapq.heappop(waiting)

    def _parsed(self, path: Path, problems: Problems) -> Iterator[Event]:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            problems.add(f"{path.name} was deleted before it was read: a process keeps only its last files")
            return
        with file:
            for number, line in enumerate(lines_of(file, self.sizes[path]), 1):
                try:
                    event = json.loads(line)
                except (ValueError, RecursionError):
                    if line.endswith(b"\n"):
                        problems.add(f"{path.name}, line {number}: not JSON: {line[:SHOWN_BYTES]!r}")
                    else:
                        self.torn_lines += 1
                    continue
                flaw = find_flaw(event)
                if flaw is None:
                    yield event if self.place is None else self.place(event)
                else:
                    problems.add(f"{path.name}, line {number}: {flaw}")


def _file_before(name: str) -> str | None:
    """Return the name of the file after which a process began this one, None for its first."""
    found = re.fullmatch(r"(.+)\.(\d{4,})\.jsonl", name)
    if found is None:
        return None
    stem, number = found[1], int(found[2]) - 1
    return f"{stem}.{number:04d}.jsonl" if number else f"{stem}.jsonl"


def lines_of(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the lines of a file's first bytes; of one that is too long for an event, only its beginning and its end."""
    while line := file.readline(min(size, MAX_LINE_BYTES)):
        size -= len(line)
        rest = line
        while len(rest) == MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(min(size, MAX_LINE_BYTES))
            size -= len(rest)
        yield line if rest is line else line[:SHOWN_BYTES] + (b"\n" if rest.endswith(b"\n") else b"")


def event_of(line: bytes) -> Event | None:
    """Return the event of a line, None if it is not a valid one."""
    try:
        event: Event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if find_flaw(event) is None else None


def find_flaw(event: object) -> str | None:
    """Return what is wrong with a parsed line, None if it is a valid event."""
    if not isinstance(event, dict):
        return "not a JSON object"
    required = KEYS.get(str(event.get("kind")), {})
    for key, kind in {**_COMMON, **required}.items():
        value = event.get(key)
        if type(value) is not kind:
            return f"event {event.get('kind')!r:.80}: {key} is {value!r:.80}, not of type {kind.__name__}"
    if type(event.get("generation")) not in {int, type(None)}:
        return f"event {event['kind']!r}: generation is {event['generation']!r:.80}, not an integer"
    if abs(event["mono_us"]) > MAX_NUMBER:
        return f"event {event['kind']!r}: mono_us {event['mono_us']} is out of range"
    return _numbers_flaw(event, required)


def _numbers_flaw(event: Event, required: Mapping[str, type]) -> str | None:
    if "positions" in required:
        partitions, positions = event["partitions"], event["positions"]
        if len(partitions) != len(positions) or any(type(number) is not int for number in partitions + positions):
            return f"event {event['kind']!r}: partitions and positions must be equally many integers"
    if "first_offset" in required:
        first, last = event["first_offset"], event["last_offset"]
        count = event["count"] if "count" in required else last - first + 1
        if not 0 <= first <= last <= MAX_NUMBER or count != last - first + 1:
            return f"event {event['kind']!r}: {count} records, offsets {first} to {last}"
    return None
