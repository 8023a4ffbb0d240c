"""Sets of offsets as sorted ranges: a run of millions of records is a handful of ranges per partition."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class RangeSet:
    """Integers as disjoint half-open ranges [begin, end), sorted, never touching each other."""

    def __init__(self) -> None:
        """Begin empty."""
        self._begins: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over the ranges, ascending."""
        return iter(zip(self._begins, self._ends, strict=True))

    @property
    def count(self) -> int:
        """How many integers are in the set."""
        return sum(self._ends) - sum(self._begins)

    def add(self, begin: int, end: int) -> None:
        """Put [begin, end) in; an empty range changes nothing."""
        if begin >= end:
            return
        first = bisect_left(self._ends, begin)  # the first range that touches or follows
        last = bisect_right(self._begins, end)  # after the last range that touches or precedes
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last], self._ends[first:last] = [begin], [end]

    def discard(self, begin: int, end: int) -> None:
        """Take [begin, end) out, as far as it is in."""
        if begin >= end:
            return
        first, last = self._meeting(begin, end)
        if first >= last:
            return
        left, right = self._begins[first], self._ends[last - 1]
        rest = [(b, e) for b, e in ((left, begin), (end, right)) if b < e]
        self._begins[first:last] = [b for b, _e in rest]
        self._ends[first:last] = [e for _b, e in rest]

    def common(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [begin, end) that are in the set."""
        first, last = self._meeting(begin, end)
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
        """Return the ranges of what is not below `begin`."""
        return self.common(begin, max(begin, self._ends[-1])) if self._ends else []

    def _meeting(self, begin: int, end: int) -> tuple[int, int]:
        """Return which ranges share an integer with [begin, end), as indexes first and after the last."""
        return bisect_right(self._ends, begin), bisect_left(self._begins, end)
