"""Places the events of several hosts on one clock, with bounds that are proofs, not estimates.

Each boot of each host has a monotonic clock. They differ by an offset, and drift. Known are pairs of a cause on one
clock and its effect on another: the effect was later. Each pair bounds the offset at one moment. Between moments, the
offset changes by at most MAX_DRIFT, whatever the drift is and however it changes. At any moment the offset thus lies
between a lower and an upper bound, and an event between two times of the clock chosen as reference. Without any pair,
wall clocks give a guess without a bound. Why no line is fitted: `docs/decisions/0039-several-clocks.md`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

MAX_DRIFT = 1_000  # two clocks drift apart by at most 1 us in so many: each is slewed by 500 ppm, if chrony is set so
BEFORE_ALL_US = -(1 << 63)
GUESS_US = 1_000  # wall clocks differ by more; so a guess seldom changes with new events
Moment = tuple[int, int]  # a time of the second clock, and a bound of (its time - the first clock's) then
Pairs = dict[tuple[str, str], list[tuple[int, int]]]  # by the clocks of cause and effect: their times


@dataclass(frozen=True, slots=True)
class Placed:
    """A moment on the reference clock: between `earliest_us` and `latest_us` (None: unknown), about at `at_us`."""

    at_us: int
    earliest_us: int | None
    latest_us: int | None

    def is_before(self, other: Placed) -> bool:
        """Whether this moment was certainly not after the other."""
        return self.latest_us is not None and other.earliest_us is not None and self.latest_us <= other.earliest_us

    @property
    def error_us(self) -> int | None:
        """The longest distance of the true moment from `at_us`, None if it is unbounded."""
        if self.earliest_us is None or self.latest_us is None:
            return None
        return max(self.at_us - self.earliest_us, self.latest_us - self.at_us)


@dataclass(slots=True)
class Evidence:
    """What is known of the clocks: pairs of cause and effect, and differences to wall clocks."""

    pairs: Pairs = field(default_factory=dict)
    wall_us: dict[str, int] = field(default_factory=dict)  # wall clock - monotonic clock
    events: Counter[str] = field(default_factory=Counter)  # by clock

    def add(self, cause: tuple[str, int], effect: tuple[str, int]) -> None:
        """Add a cause and its effect, each with its clock and time; a pair of one clock says nothing."""
        if cause[0] != effect[0]:
            self.pairs.setdefault((cause[0], effect[0]), []).append((cause[1], effect[1]))

    def note(self, clock: str, mono_us: int, wall_us: int | None, count: int = 1) -> None:
        """Count events; of the differences to the wall clock, the least counts: events are written after they are."""
        self.events[clock] += count
        if wall_us is not None:
            self.wall_us[clock] = min(self.wall_us.get(clock, wall_us - mono_us), wall_us - mono_us)


class Envelope:
    """The tightest bounds at any moment that follow from bounds at single ones; those that say nothing are left out."""

    def __init__(self, bounds: Iterable[Moment] = (), *, is_upper: bool) -> None:
        """`is_upper`: the bounds are upper ones, else lower ones."""
        self.sign = 1 if is_upper else -1
        self.times: list[int] = []
        self.values: list[int] = []  # the bounds, times `sign`: the least is the tightest
        for at_us, bound_us in bounds:
            self.add(at_us, bound_us)

    def add(self, at_us: int, bound_us: int) -> int | None:
        """Add a bound; return from which moment on others may be tighter now, None: they stay what they are."""
        value, known = self.sign * bound_us, self._at(at_us)
        if known is not None and known <= value:
            return None
        begin = end = bisect_left(self.times, at_us)
        while begin and value + _drift(at_us - self.times[begin - 1]) <= self.values[begin - 1]:
            begin -= 1
        while end < len(self.times) and value + _drift(self.times[end] - at_us) <= self.values[end]:
            end += 1
        since_us = BEFORE_ALL_US
        if begin:
            left_us, left = self.times[begin - 1], self.values[begin - 1]
            span = range(left_us, at_us + 1)
            gains = bisect_left(span, 1, key=lambda us: left + _drift(us - left_us) - value - _drift(at_us - us))
            since_us = span[gains]
        self.times[begin:end], self.values[begin:end] = [at_us], [value]
        return since_us

    def at(self, time_us: int) -> int | None:
        """Return the bound at a moment, None if there is none at all."""
        found = self._at(time_us)
        return None if found is None else self.sign * found

    def _at(self, time_us: int) -> int | None:
        index = bisect_right(self.times, time_us)
        around = [each for each in (index - 1, index) if 0 <= each < len(self.times)]
        return min((self.values[each] + _drift(time_us - self.times[each]) for each in around), default=None)


def _drift(span_us: int) -> int:
    """Return by how much an offset may change in this time, rounded up."""
    return -(-abs(span_us) // MAX_DRIFT)


@dataclass(frozen=True, slots=True)
class Relation:
    """One clock beside another: bounds of its offset, and a guess of it."""

    parent: str
    upper: Envelope
    lower: Envelope
    guess_us: int

    @property
    def is_contradictory(self) -> bool:
        """Whether a lower bound exceeds an upper one: a clock stood still or jumped, or an event is false."""
        for time_us in (*self.upper.times, *self.lower.times):
            upper, lower = self.upper.at(time_us), self.lower.at(time_us)
            if upper is not None and lower is not None and lower > upper:
                return True
        return False

    @property
    def looseness(self) -> tuple[int, int]:
        """How little is known: the number of sides without a bound, and the median distance of the bounds."""
        missing = (not self.upper.times) + (not self.lower.times)
        widths = sorted((self.upper.at(at) or 0) - (self.lower.at(at) or 0) for at in self.upper.times)
        return missing, 0 if missing or not widths else widths[len(widths) // 2]

    def guess(self, time_us: int) -> int:
        """Return about when a moment of this clock is on its parent's."""
        upper, lower = self.upper.at(time_us), self.lower.at(time_us)
        if upper is not None and lower is not None:
            return time_us - (upper + lower) // 2
        offset = self.guess_us if upper is None else min(self.guess_us, upper)
        return time_us - (offset if lower is None else max(offset, lower))


class Alignment:
    """Every clock beside the reference."""

    def __init__(self, reference: str, relations: dict[str, Relation], contradictions: Sequence[str] = ()) -> None:
        """`relations`: of every other clock to a clock that is nearer to the reference."""
        self.reference = reference
        self.relations = relations
        self.contradictions = tuple(contradictions)

    def place(self, clock: str, time_us: int) -> Placed:
        """Return a moment of a clock on the reference."""
        earliest = self._moved(clock, time_us, lambda relation: relation.upper)
        latest = self._moved(clock, time_us, lambda relation: relation.lower)
        if earliest is not None and latest is not None:
            return Placed((earliest + latest) // 2, earliest, latest)
        relation = self.relations[clock]  # the reference is its own bounds
        return Placed(self.place(relation.parent, relation.guess(time_us)).at_us, earliest, latest)

    def _moved(self, clock: str, time_us: int, bound: Callable[[Relation], Envelope]) -> int | None:
        """Move a time along one kind of bounds to the reference; None: one of them is unknown."""
        while clock != self.reference:
            relation = self.relations[clock]
            offset = bound(relation).at(time_us)
            if offset is None:
                return None
            clock, time_us = relation.parent, time_us - offset
        return time_us


class Bounds:
    """The bounds on the offsets of each two clocks, from the causes and effects so far."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._above: dict[tuple[str, str], Envelope] = {}  # by parent and clock
        self._below: dict[tuple[str, str], Envelope] = {}

    def add(self, pairs: Mapping[tuple[str, str], Iterable[tuple[int, int]]]) -> dict[tuple[str, str], int]:
        """Add causes and effects; return by parent and clock from which time of the clock on bounds are tighter now.

        A cause there and its effect here bound the offset from above, and the reverse from below.
        """
        since: dict[tuple[str, str], int] = {}
        for (one, other), times in pairs.items():
            above = self._above.setdefault((one, other), Envelope(is_upper=True))
            below = self._below.setdefault((other, one), Envelope(is_upper=False))
            for cause, effect in times:
                since_us = (above.add(effect, effect - cause), below.add(cause, cause - effect))
                for clocks, at_us in zip(((one, other), (other, one)), since_us, strict=True):
                    if at_us is not None:
                        since[clocks] = min(at_us, since.get(clocks, at_us))
        return since

    def relation(self, parent: str, clock: str, guess_us: int) -> Relation:
        """Relate a clock to another."""
        above = self._above.get((parent, clock)) or Envelope(is_upper=True)
        below = self._below.get((parent, clock)) or Envelope(is_upper=False)
        return Relation(parent, above, below, guess_us)


def align(evidence: Evidence, bounds: Bounds | None = None) -> Alignment:
    """Relate all clocks to the one with the most events, each over the clocks about which most is known.

    Clocks whose numbers of events have equally many binary digits count as equal: so a run that goes on seldom changes
    the one to which all others are related. `bounds`: those of all causes and effects, if `evidence` has not all.
    """
    if bounds is None:
        bounds = Bounds()
        bounds.add(evidence.pairs)
    reference = min(evidence.events, key=lambda clock: (-evidence.events[clock].bit_length(), clock))
    relations: dict[str, Relation] = {}
    contradictions = []
    far = sorted(set(evidence.events) - {reference})
    candidates = {(clock, reference): _candidate(evidence, bounds, reference, clock) for clock in far}
    while far:
        (clock, parent), (_looseness, relation) = min(candidates.items(), key=lambda item: (item[1][0], item[0]))
        if relation.is_contradictory:
            contradictions.append(f"the clocks of {clock} and {parent} contradict each other: one has jumped")
            relation = Relation(parent, Envelope(is_upper=True), Envelope(is_upper=False), relation.guess_us)
        relations[clock] = relation
        far.remove(clock)
        candidates = {pair: each for pair, each in candidates.items() if pair[0] != clock}
        candidates |= {(other, clock): _candidate(evidence, bounds, clock, other) for other in far}
    return Alignment(reference, relations, contradictions)


def _candidate(evidence: Evidence, bounds: Bounds, parent: str, clock: str) -> tuple[tuple[int, int], Relation]:
    guess_us = (evidence.wall_us.get(parent, 0) - evidence.wall_us.get(clock, 0)) // GUESS_US * GUESS_US
    relation = bounds.relation(parent, clock, guess_us)
    return relation.looseness, relation
