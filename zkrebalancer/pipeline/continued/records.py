"""What became of the records of a run up to a moment, to be continued from there.

The rules are those of `facts.of_partition`, `facts.fates` and `facts.deliveries`, which look at a whole run; here,
deliveries come in order of time. Remembered is what later events may need: for each offset whether it was delivered,
and whether it may come once more, both as ranges; where each leg is that may go on; open intervals.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from zkrebalancer.observe.holdings import Held, Order
from zkrebalancer.observe.ranges import RangeSet
from zkrebalancer.pipeline.facts.deliveries import BUCKET_US
from zkrebalancer.pipeline.facts.fates import COUNTS, DELIVERY, DOUBTFUL, EXCUSES, of_segments
from zkrebalancer.pipeline.facts.of_partition import SEGMENTS, SUSPECTS, segments
from zkrebalancer.pipeline.facts.of_run import Key

STRETCHES = "stretches"
SCHEMAS = {
    STRETCHES: "bucket bigint, partition int, started_us bigint, topic string, group string, member string, "
    "run string, era int, begin bigint, end bigint, began struct<mono_us: bigint, block: bigint, row: bigint>, "
    "last struct<mono_us: bigint, block: bigint, row: bigint>, position bigint, events bigint"
}
BookKey = tuple[str, str, int, int]  # group, topic, partition and era
Rows = dict[str, list[Any]]  # by table: tuples, or tables with rows of it


class NotContinuableError(Exception):
    """The run has to be looked at as a whole."""


class Delivered(NamedTuple):
    """One delivery of the offsets [begin, end)."""

    mono_us: int
    block: int
    row: int
    key: Key
    member: str
    begin: int
    end: int


class Committed(NamedTuple):
    """A committed offset."""

    mono_us: int
    file: str
    block: int
    row: int
    key: Key
    member: str
    offset: int


@dataclass(slots=True)
class Stretch:
    """Deliveries of one leg, each of which begins where the one before it ended; all of them are in one time bucket."""

    book: BookKey
    member: str
    started_us: int | None
    position: int | None
    bucket: int
    reached: int | None  # by its leg before
    items: list[Delivered]

    @property
    def begin(self) -> int:
        """The first offset."""
        return self.items[0].begin

    @property
    def end(self) -> int:
        """The offset after the last one."""
        return self.items[-1].end


@dataclass(slots=True)
class Hold:
    """An interval of ownership that may go on, or that a crash may still excuse."""

    held: Held
    committed: int | None = None
    delivered: RangeSet = field(default_factory=RangeSet)
    reached: dict[int, int] = field(default_factory=dict)  # by the start of a leg: the highest offset
    seeks: int = 0  # that were applied
    passed: int = 0  # pairs of legs that were looked at
    is_excused: bool = False  # and the excuse was applied

    @property
    def excused_from(self) -> int:
        """The offset from which on records may come once more after a crash."""
        return self.held.position if self.committed is None else self.committed


@dataclass(slots=True)
class Book:
    """What one group did with a partition, until its topic was deleted."""

    given: Counter[int] = field(default_factory=Counter)
    passed: Counter[int] = field(default_factory=Counter)
    opens: tuple[bool, Order, int] | None = None  # whether it is unknown, when, and the position
    delivered: RangeSet = field(default_factory=RangeSet)
    repeatable: RangeSet = field(default_factory=RangeSet)
    doubled: RangeSet = field(default_factory=RangeSet)  # delivered more than once
    unexcused: int = 0
    out_of_order: int = 0
    unheld: int = 0


class Records:
    """The tables about the records of a run; `rows` has the complete rows, and may be emptied."""

    def __init__(self, run: str) -> None:
        """Begin before the first event."""
        self.rows: Rows = defaultdict(list)
        self._run = run
        self._produced: dict[tuple[str, int, int], Counter[int]] = defaultdict(Counter)  # by topic, partition and era
        self._books: dict[BookKey, Book] = defaultdict(Book)
        self._holds: dict[tuple[Key, str, int], Hold] = {}

    def produce(self, topic: str, partition: int, era: int, begin: int, end: int) -> None:
        """Handle a produced range."""
        _shift(self._produced[topic, partition, era], begin, end)

    def advance(
        self,
        held: Iterable[tuple[Key, Held]],
        deliveries: Sequence[tuple[Delivered, int]],
        commits: Sequence[Committed],
    ) -> dict[BookKey, RangeSet]:
        """Handle the next part of the run; return what was delivered again that an earlier part had delivered.

        `held`: all intervals of that part, also those that go on. Deliveries come with their era, and both they and
        commits in order. None may be earlier than those of an earlier part.
        """
        holds = [(key, self._hold(key, each)) for key, each in held]
        part = _Part(holds)
        entries: list[tuple[int, int, Any]] = [(each.mono_us, _COMMIT, each) for each in commits]
        entries += [(each.mono_us, _DELIVERY, (each, era)) for each, era in deliveries]
        entries += (excuse for key, hold in holds for excuse in _excuses(key, hold))
        for _at_us, what, entry in sorted(entries, key=itemgetter(0, 1)):
            if what == _COMMIT:
                part.commit(entry)
            elif what == _DELIVERY:
                self._deliver(part, *entry)
            else:
                self._excuse(*entry)
        for key, hold in holds:
            self._pass_over(key, hold)
        for stretch in part.stretches:
            self._end_stretch(stretch)
        return part.back

    def judge(self, held: Iterable[tuple[Key, Held]]) -> None:
        """Forget intervals that nothing can change any more."""
        for key, each in held:
            hold = self._holds.pop((key, each.member, each.began.us), None)
            if hold is not None and each.excused_us is not None:
                self.rows[EXCUSES].append(
                    (self._run, *key, each.member, each.began.us, each.excused_us, hold.excused_from)
                )

    def finish(self) -> None:
        """Add the rows of the tables that are about everything so far."""
        totals: dict[Key, dict[str, int]] = {}
        for (group, topic, partition, era), book in self._books.items():
            opens = None if book.opens is None else book.opens[2]
            produced = self._produced.get((topic, partition, era), Counter())
            found = list(segments(book.given, book.passed, produced, opens))
            self.rows[SEGMENTS] += [(self._run, group, topic, partition, era, *each) for each in found]
            counts = {
                **of_segments(found),
                "duplicated_outside_crash": book.unexcused,
                "out_of_order": book.out_of_order,
                "unheld": book.unheld,
            }
            total = totals.setdefault((group, topic, partition), {**dict.fromkeys(COUNTS, 0), "segments": 0})
            for name, count in {**counts, "segments": len(found)}.items():
                total[name] += count
        for key, total in totals.items():
            if total["segments"]:
                self.rows[DELIVERY].append((self._run, *key, *(total[name] for name in COUNTS)))

    def _hold(self, key: Key, held: Held) -> Hold:
        hold = self._holds.setdefault((key, held.member, held.began.us), Hold(held))
        hold.held = held
        book = self._books[*key, held.era]
        at = (held.position < 0, held.began.at, held.position)
        book.opens = at if book.opens is None else min(book.opens, at)
        return hold

    def _deliver(self, part: _Part, delivery: Delivered, era: int) -> None:
        hold, started_us, position = part.leg(delivery)
        if hold is not None and hold.held.era != era:
            return  # its topic was deleted since it began
        name = (*delivery.key, era)
        book = self._books[name]
        begin, end = delivery.begin, delivery.end
        for again in book.delivered.common(begin, end):
            book.unexcused += sum(e - b for b, e in book.repeatable.missing(*again))
            book.doubled.add(*again)
            part.repeat(name, again)
        book.repeatable.discard(begin, end)
        book.delivered.add(begin, end)
        part.fresh[name].add(begin, end)
        _shift(book.given, begin, end)
        reached = None
        if hold is not None and started_us is not None:
            hold.delivered.add(begin, end)
            reached = hold.reached.get(started_us, position)
            hold.reached[started_us] = end if reached is None else max(reached, end)
        bucket = bucket_of(delivery.mono_us)
        leg = (name, delivery.member, started_us)
        last = part.last.get(leg)
        if last is not None and (last.bucket, last.end) == (bucket, begin):
            last.items.append(delivery)
            return
        part.last[leg] = Stretch(name, delivery.member, started_us, position, bucket, reached, [delivery])
        part.stretches.append(part.last[leg])

    def _excuse(self, name: BookKey, hold: Hold, position: int | None) -> None:
        """Let records come once more: all from a position on, or after a crash those that the interval got."""
        book = self._books[name]
        whose, begin = (hold.delivered, hold.excused_from) if position is None else (book.delivered, position)
        for again in whose.at_or_above(begin):
            book.repeatable.add(*again)

    def _pass_over(self, key: Key, hold: Hold) -> None:
        """Note the ranges that a consumer skipped when it was repositioned."""
        legs = list(hold.held.legs())
        for (started_us, position, _until_us), (next_us, to, _next_until_us) in pairwise(legs[hold.passed :]):
            if started_us == next_us:
                raise NotContinuableError("two legs begin at once")
            _shift(self._books[*key, hold.held.era].passed, max(position, hold.reached.get(started_us, position)), to)
        hold.passed = len(legs) - 1

    def _end_stretch(self, stretch: Stretch) -> None:
        book = self._books[stretch.book]
        reached, is_suspect = stretch.reached, bool(book.doubled.common(stretch.begin, stretch.end))
        if stretch.started_us is None:
            book.unheld += len(stretch.items)
        elif reached is not None and stretch.begin < reached:
            book.out_of_order += sum(each.begin < reached for each in stretch.items)
            is_suspect = is_suspect or stretch.end > reached
        group, topic, partition, era = stretch.book
        first, last = stretch.items[0], stretch.items[-1]
        place = (stretch.bucket, partition, stretch.started_us, topic, group, stretch.member, self._run, era)
        ends = (tuple(first[:3]), tuple(last[:3]))
        self.rows[STRETCHES].append((*place, stretch.begin, stretch.end, *ends, stretch.position, len(stretch.items)))
        if is_suspect:
            self.rows[SUSPECTS].append((*place, *ends))
            self.rows[DOUBTFUL] += (doubtful(self._run, stretch, each) for each in stretch.items)


class _Part:
    """The part of a run that is being handled."""

    def __init__(self, holds: Iterable[tuple[Key, Hold]]) -> None:
        self.stretches: list[Stretch] = []
        self.last: dict[tuple[BookKey, str, int | None], Stretch] = {}
        self.fresh: dict[BookKey, RangeSet] = defaultdict(RangeSet)  # delivered in this part
        self.back: dict[BookKey, RangeSet] = defaultdict(RangeSet)
        self._holds: dict[tuple[Key, str], list[Hold]] = defaultdict(list)
        self._legs: dict[tuple[Key, str], list[tuple[int, int, int | None, Hold]]] = defaultdict(list)
        for key, hold in holds:
            owner = (key, hold.held.member)
            self._holds[owner].append(hold)
            self._legs[owner] += [(*leg, hold) for leg in hold.held.legs()]
        for legs in self._legs.values():
            legs.sort(key=itemgetter(0))

    def leg(self, delivery: Delivered) -> tuple[Hold | None, int | None, int | None]:
        """Return the interval of a delivery, and start and position of its leg; None without one."""
        legs = self._legs.get((delivery.key, delivery.member), [])
        place = bisect_right(legs, delivery.mono_us, key=itemgetter(0)) - 1
        if place < 0:
            return None, None, None
        started_us, position, until_us, hold = legs[place]
        if until_us is not None and delivery.mono_us > until_us:
            return None, None, None
        return hold, started_us, position

    def commit(self, commit: Committed) -> None:
        for hold in self._holds.get((commit.key, commit.member), ()):
            until_us = hold.held.excused_us
            if hold.held.began.us <= commit.mono_us and (until_us is None or commit.mono_us <= until_us):
                hold.committed = commit.offset

    def repeat(self, name: BookKey, again: tuple[int, int]) -> None:
        for earlier in self.fresh[name].missing(*again):
            self.back[name].add(*earlier)


_COMMIT, _DELIVERY, _EXCUSE = range(3)  # in this order, if they are at the same time


def _excuses(key: Key, hold: Hold) -> Iterator[tuple[int, int, tuple[BookKey, Hold, int | None]]]:
    """Iterate over what allows records to come once more, and was not applied yet."""
    held, name = hold.held, (*key, hold.held.era)
    for at_us, position in held.seeks[hold.seeks :]:
        if at_us > held.began.us:
            yield at_us, _EXCUSE, (name, hold, position)
    hold.seeks = len(held.seeks)
    if held.excused_us is not None and not hold.is_excused:
        hold.is_excused = True
        yield held.excused_us, _EXCUSE, (name, hold, None)


def doubtful(run: str, stretch: Stretch, each: Delivered) -> tuple[Any, ...]:
    """Return the row of the table `doubtful` of a delivery in a suspect stretch."""
    *key, era = stretch.book
    offsets = (each.mono_us, each.block, each.row, each.begin, each.end)
    return run, *key, stretch.member, era, *offsets, stretch.started_us, stretch.position, stretch.bucket


def bucket_of(at_us: int) -> int:
    """Return the time bucket, as Spark's `div` does."""
    return at_us // BUCKET_US if at_us >= 0 else -(-at_us // BUCKET_US)


def _shift(edges: Counter[int], begin: int, end: int) -> None:
    """Add a range to edges; those where nothing changes are left out."""
    if begin >= end:
        return
    for offset, change in ((begin, 1), (end, -1)):
        if edges[offset] + change:
            edges[offset] += change
        else:
            edges.pop(offset, None)
