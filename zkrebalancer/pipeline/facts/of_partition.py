"""How often each offset of a partition was produced and delivered, and which deliveries must be looked at one by one.

Stretches, legs and produced ranges of all groups that read the partition go in; there are few of each. Offset ranges
become edges: the depth of what was produced, or delivered, changes by 1 where a range begins or ends, and is constant
between two edges. Due but delivered 0 times means lost, delivered twice means duplicated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Any

from zkrebalancer.pipeline.facts.one_pass import Row

KEY = ("run", "topic", "partition")
_AT = "struct<mono_us: bigint, block: bigint, row: bigint>"
SEGMENTS, SUSPECTS = "segments", "suspects"
SCHEMAS = {
    SEGMENTS: "run string, group string, topic string, partition int, era int, begin bigint, end bigint, due bigint, "
    "given bigint",
    SUSPECTS: "bucket bigint, partition int, started_us bigint, topic string, group string, member string, run string, "
    f"era int, began {_AT}, last {_AT}",
}
PRODUCED, INTERVAL, LEG, STRETCH = "produced", "interval", "leg", "stretch"
Ranges = list[tuple[int, int]]
Segment = tuple[int, int, int, int]  # begin, end, due, given


@dataclass(slots=True)
class Book:
    """What one group did with the partition, until its topic was deleted."""

    intervals: list[Row] = field(default_factory=list)
    legs: list[Row] = field(default_factory=list)
    stretches: list[Row] = field(default_factory=list)

    def segments(self, produced: Ranges) -> Iterator[Segment]:
        """Iterate over (begin, end, due, given).

        `due` is 0 before the first position at which the group started the partition, of those that are known, and for
        offsets that were not delivered because a consumer was repositioned beyond them.
        """
        given = edges((each["begin"], each["end"]) for each in self.stretches)
        first = min(self.intervals, key=lambda each: (each["position"] < 0, order(each["since"])), default=None)
        opens = None if first is None else int(first["position"])
        return segments(given, edges(self._passed_over()), edges(produced), opens)

    def suspects(self, doubled: Ranges) -> Iterator[Row]:
        """Iterate over the stretches whose single deliveries must be examined.

        They begin below the highest offset that their leg had reached and end above it, or include offsets that were
        delivered more than once.
        """
        for stretch, reached in late(self.stretches):
            if stretch["end"] > reached:
                stretch["is_suspect"] = True
        ends = [end for _begin, end in doubled]
        for stretch in self.stretches:
            place = bisect_right(ends, stretch["begin"])
            if stretch.get("is_suspect") or (place < len(ends) and doubled[place][0] < stretch["end"]):
                yield stretch

    def _passed_over(self) -> Iterator[tuple[int, int]]:
        """Iterate over the ranges that a consumer skipped when it was repositioned."""
        reached: dict[tuple[str, int], int] = {}
        for each in self.stretches:
            if each["started_us"] is not None:
                of_leg = (each["member"], each["started_us"])
                reached[of_leg] = max(reached.get(of_leg, each["end"]), each["end"])
        holds = defaultdict(list)
        for each in self.legs:
            holds[each["member"], each["held_us"]].append(each)
        for (member, _held_us), legs in holds.items():
            for before, after in pairwise(sorted(legs, key=itemgetter("started_us"))):
                begin = max(before["position"], reached.get((member, before["started_us"]), before["position"]))
                if begin < after["position"]:
                    yield begin, after["position"]


def order(at: Row) -> tuple[int, ...]:
    """Return the place of a moment in the order of events."""
    return tuple(at.values())


def late(stretches: Iterable[Row]) -> Iterator[tuple[Row, int]]:
    """Iterate over the stretches that begin below the highest offset that their leg had reached, and that offset."""
    reached: dict[tuple[str, int], int] = {}
    for stretch in sorted(stretches, key=lambda each: order(each["began"])):
        if stretch["started_us"] is None:
            continue
        leg = (stretch["member"], stretch["started_us"])
        before = reached.get(leg)
        before = int(stretch["position"]) if before is None else before
        if stretch["begin"] < before:
            yield stretch, before
        reached[leg] = max(before, stretch["end"])


def segments(given: Counter[int], passed: Counter[int], produced: Counter[int], opens: int | None) -> Iterator[Segment]:
    """Iterate over (begin, end, due, given) of a book, from the `edges` of ranges.

    `passed`: those that a consumer skipped; `opens`: the first position at which the group started, if it did.
    """
    due = Counter[int]() if opens is None else produced
    depth = depth_due = depth_passed = 0
    is_open = False
    for begin, end in pairwise(sorted({*given, *passed, *due, *([] if opens is None else [opens])})):
        depth += given[begin]
        depth_due += due[begin]
        depth_passed += passed[begin]
        is_open = is_open or begin == opens
        owed = depth_due if is_open and (depth or not depth_passed) else 0
        if owed > 0 or depth > 0:
            yield begin, end, owed, depth


class PartitionFacts:
    """The tables of one partition of a topic, of all groups."""

    def __init__(self, run: str, topic: str, partition: int) -> None:
        """Begin before the first row."""
        self.rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in SCHEMAS}
        self._key = (run, topic, partition)
        self._produced: dict[int, Ranges] = defaultdict(list)  # by era
        self._books: dict[tuple[str, int], Book] = defaultdict(Book)  # by group and era

    def apply(self, row: Row) -> None:
        """Handle a row, whose kind is `what`."""
        if row["what"] == PRODUCED:
            self._produced[row["era"]].append((row["begin"], row["end"]))
            return
        book = self._books[row["group"], row["era"]]
        {INTERVAL: book.intervals, LEG: book.legs, STRETCH: book.stretches}[row["what"]].append(row)

    def finish(self) -> None:
        """Complete both tables."""
        run, topic, partition = self._key
        for (group, era), book in self._books.items():
            segments = list(book.segments(self._produced[era]))
            self.rows[SEGMENTS] += [(run, group, topic, partition, era, *each) for each in segments]
            doubled = [(begin, end) for begin, end, _due, given in segments if given > 1]
            for each in book.suspects(doubled):
                place = (each["bucket"], partition, each["started_us"], topic, group, each["member"], run, era)
                self.rows[SUSPECTS].append((*place, each["began"], each["last"]))


def edges(ranges: Iterable[tuple[int, int]]) -> Counter[int]:
    """Return by how much the depth of ranges changes at each offset, where it does."""
    changes = Counter[int]()
    for begin, end in ranges:
        changes[begin] += 1
        changes[end] -= 1
    return Counter({offset: change for offset, change in changes.items() if change})
