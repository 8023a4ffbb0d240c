"""Sets of offsets as sorted ranges: millions of records become a handful of ranges per partition."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class RangeSet:
    """A set of integers as half-open ranges [begin, end): sorted, disjoint and not adjacent."""

    def __init__(self) -> None:
        """Begin empty."""
        self._begins: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over the ranges, ascending."""
        return iter(zip(self._begins, self._ends, strict=True))

    @property
    def count(self) -> int:
        """The number of integers in the set."""
        return sum(self._ends) - sum(self._begins)

    def add(self, begin: int, end: int) -> None:
        """Add all integers in [begin, end)."""
        if begin >= end:
            return
        first = bisect_left(self._ends, begin)  # the first range that ends at `begin` or later
        last = bisect_right(self._begins, end)  # one after the last range that begins at `end` or earlier
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last], self._ends[first:last] = [begin], [end]

    def discard(self, begin: int, end: int) -> None:
        """Remove all integers in [begin, end)."""
        if begin >= end:
            return
        first, last = self._overlapping(begin, end)
        if first >= last:
            return
        left, right = self._begins[first], self._ends[last - 1]
        rest = [(b, e) for b, e in ((left, begin), (end, right)) if b < e]
        self._begins[first:last] = [b for b, _e in rest]
        self._ends[first:last] = [e for _b, e in rest]

    def common(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [begin, end) that are in the set."""
        first, last = self._overlapping(begin, end)
        pairs = zip(self._begins[first:last], self._ends[first:last], strict=True)
        return [(max(b, begin), min(e, end)) for b, e in pairs]

    def missing(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [begin, end) that are not in the set."""
        gaps = []
        for b, e in self.common(begin, end):
            if begin < b:
                gaps.append((begin, b))
            begin = e
        if begin < end:
            gaps.append((begin, end))
        return gaps

    def at_or_above(self, begin: int) -> list[tuple[int, int]]:
        """Return the parts of the set at or above `begin`."""
        return self.common(begin, max(begin, self._ends[-1])) if self._ends else []

    def _overlapping(self, begin: int, end: int) -> tuple[int, int]:
        """Return the index range [first, last) of the ranges that overlap [begin, end)."""
        return bisect_right(self._ends, begin), bisect_left(self._begins, end)
