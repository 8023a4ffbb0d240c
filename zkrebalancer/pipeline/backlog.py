"""How far to read each of several event files if not all of their new lines fit: all of them up to about the same time.

File after file would be simpler. But then the events of the second one are older than those of the first, and a run
whose events come in order of time can be continued (`continued/`), without reading it again.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from heapq import heapify, heappop, heappush
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

_LEAST_STEP, _MOST_STEP = 4 * 1024, 64 * 1024  # bytes of a file that are considered at once
_STEPS = 4  # at least; for each file, if there are many
_LOOKED_AT = 100  # lines, for one that has a time
_READ_BYTES = 1024 * 1024  # of a line, at once
_EARLY = -(1 << 63)  # the time of lines of which none is known
_NEVER = 1 << 63  # that of the end
_TIME = re.compile(rb'"(ts_us|mono_us)"\s*:\s*(-?\d{1,18})\b')


def parts_until_one_time(folder: Path, unread: Mapping[str, tuple[int, int]], budget: int) -> dict[str, int]:
    """Return how many bytes to read of some files, about `budget` in all: the lines up to one time.

    `unread`: where the first unread line of a file begins, and where the file ends. Nothing is returned if the lines
    have no times. Hosts are compared by their wall clocks: only the order of reading depends on these.
    """
    step = max(_LEAST_STEP, budget // (_STEPS * len(unread)))
    step = min(step, _MOST_STEP, max(1, budget // _STEPS))
    files: dict[str, _File] = {}
    for name, (begin, end) in unread.items():
        with suppress(FileNotFoundError):  # moved elsewhere since it was listed
            files[name] = _File(folder / name, begin, end)
    waiting = [(file.next_us, name) for name, file in files.items() if not file.is_over]
    heapify(waiting)
    spent = 0
    while waiting and spent < budget:
        _next_us, name = heappop(waiting)
        with suppress(FileNotFoundError):
            spent += files[name].advance(step)
            if not files[name].is_over:
                heappush(waiting, (files[name].next_us, name))
    until_us = waiting[0][0] if waiting else None
    if until_us == _EARLY or not any(file.has_times for file in files.values()):
        return {}
    found: dict[str, int] = {}
    for name, file in files.items():
        with suppress(FileNotFoundError):
            found[name] = file.bytes_until(until_us, step)
    return {name: wanted for name, wanted in found.items() if wanted}


class _File:
    """The unread lines of a file, considered step by step."""

    def __init__(self, path: Path, begin: int, end: int) -> None:
        """Look at the first line."""
        self._path, self._begin, self._end = path, begin, end
        self._marks: list[tuple[int, int]] = []  # where a line begins, and its time, or that of one soon after it
        self._mark(begin, is_begin=True)

    @property
    def next_us(self) -> int:
        """The time of the next line to be considered."""
        return self._marks[-1][1]

    @property
    def has_times(self) -> bool:
        """Whether a line has a time."""
        return any(_EARLY < time_us < _NEVER for _at, time_us in self._marks)

    @property
    def is_over(self) -> bool:
        """Whether all lines were considered."""
        return self._marks[-1][0] >= self._end

    def advance(self, step: int) -> int:
        """Consider about `step` bytes; return how many they are."""
        before = self._marks[-1][0]
        self._mark(before + step, is_begin=False)
        return self._marks[-1][0] - before

    def bytes_until(self, until_us: int | None, step: int) -> int:
        """Return how many of the bytes that were considered are of lines up to a time; None: all of them."""
        if until_us is None:
            return self._marks[-1][0] - self._begin
        number = bisect_right(self._marks, until_us, key=itemgetter(1))
        if not number:
            return 0
        at = self._marks[number - 1][0]
        limit = self._marks[number][0] if number < len(self._marks) else min(self._end, at + step)
        with self._path.open("rb") as file:
            file.seek(at)
            while at < limit and (line := file.readline(_READ_BYTES)):
                if (time_us := _time_us(line)) is not None and time_us > until_us:
                    break
                at += len(line)
        return at - self._begin

    def _mark(self, position: int, *, is_begin: bool) -> None:
        """Note the line that begins at a position, or else the next one."""
        last_us = self._marks[-1][1] if self._marks else _EARLY
        with self._path.open("rb") as file:
            file.seek(position)
            at = position if is_begin else position + _rest_of_line(file)
            lines = (file.readline(_READ_BYTES) for _ in range(_LOOKED_AT))
            times = (_time_us(line) for line in lines)
            next_us = next((each for each in times if each is not None), last_us)
        is_over = at >= self._end
        self._marks.append((self._end, _NEVER) if is_over else (at, max(next_us, last_us)))


def _rest_of_line(file: BinaryIO) -> int:
    """Read the rest of a line, which may have any length; return how long it is."""
    size = 0
    while piece := file.readline(_READ_BYTES):
        size += len(piece)
        if piece.endswith(b"\n"):
            break
    return size


def _time_us(line: bytes) -> int | None:
    found = dict(_TIME.findall(line))
    text = found.get(b"ts_us", found.get(b"mono_us"))
    return None if text is None else int(text)
