"""The events of one run in order of time, whether one host wrote them or several, in one boot or more.

The processes of one boot share a clock, and their events are only merged. Otherwise the files are read twice: first to
align the clocks, then in the order of the reference clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from zkrebalancer.observe.clocks import Alignment, align
from zkrebalancer.observe.doubts import CLOCK, EARLIEST, KINDS, LATEST, Doubts
from zkrebalancer.observe.hosts import ClockNames, Witness
from zkrebalancer.observe.reading import Event, EventFiles, Problems, event_of, lines_of

_CLOCK = re.compile(rb'"host":"[^"]*","boot":"[^"]*"')  # as `EventLog` writes it


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
        began: dict[str, str] = {}  # the first event of each file, and the file
        for path, size in self._files.sizes.items():
            for number, event in enumerate(_of_each_clock(path, size)):
                self._names.note(event)
                other = path.name if number else began.setdefault(json.dumps(event), path.name)
                if other != path.name:
                    problems.add(f"{path.name} begins as {other} does: if one is a copy, its events count twice")
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


def _of_each_clock(path: Path, size: int) -> Iterator[Event]:
    """Iterate over those events of a file that may be of different clocks: nearly always, only the first one.

    A pod that moves to another node, and back, may have gone on in its file.
    """
    same: bytes | None = None
    with suppress(FileNotFoundError), path.open("rb") as file:  # deleted since it was listed
        for line in lines_of(file, size):
            if same is None or same not in line:
                if (event := event_of(line)) is not None:
                    yield event
                found = _CLOCK.search(line)
                same = None if found is None else found[0]
