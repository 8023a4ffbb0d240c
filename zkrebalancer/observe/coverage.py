"""Which offsets were delivered, and by whom first: sorted runs instead of single records, so that millions are cheap."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """Offsets `first` to `last`, both included, whose first delivery was `by` somebody."""

    first: int
    last: int
    by: str

    def __len__(self) -> int:
        """How many offsets."""
        return self.last - self.first + 1


class Coverage:
    """Disjoint runs in order."""

    def __init__(self) -> None:
        """Cover nothing."""
        self._lasts: list[int] = []
        self._runs: list[Run] = []

    def add(self, first: int, last: int, by: str) -> list[Run]:
        """Cover `first` to `last`; return the parts that were covered already, with who had them first."""
        begin = bisect_left(self._lasts, first)
        end = begin
        again: list[Run] = []
        fresh: list[Run] = []
        position = first
        while end < len(self._runs) and self._runs[end].first <= last:
            run = self._runs[end]
            if run.first > position:
                fresh.append(Run(position, run.first - 1, by))
            again.append(Run(max(run.first, first), min(run.last, last), run.by))
            position = run.last + 1
            end += 1
        if position <= last:
            fresh.append(Run(position, last, by))
        self._replace(begin, end, sorted([*self._runs[begin:end], *fresh], key=lambda run: run.first))
        return again

    def _replace(self, begin: int, end: int, runs: list[Run]) -> None:
        begin, end = max(0, begin - 1), min(len(self._runs), end + 1)  # neighbours may grow together with the new runs
        around = [*self._runs[begin : begin + 1], *runs, *self._runs[end - 1 : end]]
        merged: list[Run] = []
        for run in sorted(set(around), key=lambda run: run.first):
            if merged and merged[-1].last + 1 == run.first and merged[-1].by == run.by:
                merged[-1] = Run(merged[-1].first, run.last, run.by)
            else:
                merged.append(run)
        self._runs[begin:end] = merged
        self._lasts[begin:end] = [run.last for run in merged]

    def missing(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Return the parts of `first` to `last` that are not covered."""
        position = first
        for run in self._runs[bisect_left(self._lasts, first) :]:
            if run.first > last:
                break
            if run.first > position:
                yield position, run.first - 1
            position = run.last + 1
        if position <= last:
            yield position, last

    def common(self, first: int, last: int) -> int:
        """How many offsets from `first` to `last` are covered."""
        return last - first + 1 - sum(end - begin + 1 for begin, end in self.missing(first, last))

    def last(self) -> int:
        """The highest offset that is covered, -1 if none is."""
        return self._lasts[-1] if self._lasts else -1

    def count(self) -> int:
        """How many offsets are covered."""
        return sum(map(len, self._runs))
