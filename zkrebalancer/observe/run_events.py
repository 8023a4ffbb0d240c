"""The events of one run in order of time, whether one host wrote them or several, in one boot or more.

The processes of one boot share a clock, and their events are only merged. Otherwise the files are read twice: first to
align the clocks, then in the order of the reference clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from zkrebalancer.observe.clocks import Alignment, align
from zkrebalancer.observe.doubts import CLOCK, EARLIEST, KINDS, LATEST, Doubts
from zkrebalancer.observe.hosts import ClockNames, Witness
from zkrebalancer.observe.reading import Event, EventFiles, Problems, find_flaw

_TAIL_BYTES = 4_096  # where the last line is looked for first


class RunEvents:
    """Every event of a folder; with `alignment`, at times of its reference clock, and with the keys of `doubts`."""

    def __init__(self, directory: Path, problems: Problems) -> None:
        """Find the files, and align their clocks if there are several; iterating adds unreadable lines to `problems`.

        Raises:
            NoEventsError: the folder does not exist or contains no event file.

        """
        self.alignment: Alignment | None = None
        self.doubts: Doubts | None = None
        self._names = ClockNames()
        self._files = EventFiles(directory, problems)
        for path, size in self._files.sizes.items():
            for event in _ends(path, size):
                self._names.note(event)
        if self._names.count > 1:
            self._align()
            self._files.place = self._place

    @property
    def torn_lines(self) -> int:
        """How many files ended within a line, of those that were read."""
        return self._files.torn_lines

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events; all files stay open meanwhile."""
        return iter(self._files)

    def _align(self) -> None:
        self._names = ClockNames()
        for event in self._files.unordered():
            self._names.note(event)
        witness, changes = Witness(self._names), []
        for event in self._files.unordered():
            witness.add(event)
            if event["kind"] in KINDS:
                changes.append(event)
        self.alignment, self.doubts = align(witness.evidence()), Doubts()
        for event in changes:
            self.doubts.add(self._place(event))
        self.doubts.finish()

    def _place(self, event: Event) -> Event:
        if self.alignment is None:
            return event
        clock = self._names.of(event)
        found = self.alignment.place(clock, event["mono_us"])
        bounds = {CLOCK: clock, EARLIEST: found.earliest_us, LATEST: found.latest_us}
        return {**event, "mono_us": found.at_us, **bounds}


def _ends(path: Path, size: int) -> Iterator[Event]:
    """Iterate over the first and the last whole event of a file: of one process, or of one after the other."""
    length = _TAIL_BYTES
    with path.open("rb") as file:
        yield from _valid(file.readline(size))
        while True:
            begin = file.seek(max(0, size - length))
            lines = file.read(size - begin).split(b"\n")
            if len(lines) > 2 or length >= size:  # the rest of one, a whole one, a torn one
                break
            length *= 2
        for line in lines[-2:-1]:
            yield from _valid(line)


def _valid(line: bytes) -> Iterator[Event]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return
    if find_flaw(event) is None:
        yield event
