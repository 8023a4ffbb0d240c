"""Places the events of several hosts on one clock, with bounds that are proofs, not estimates.

Each boot of each host has a monotonic clock. They differ by an offset, and drift. Known are pairs of a cause on one
clock and its effect on another: the effect was later. Each pair bounds the offset at one moment. Between moments, the
offset changes by at most MAX_DRIFT, whatever the drift is and however it changes. At any moment the offset thus lies
between a lower and an upper bound, and an event between two times of the clock chosen as reference. Without any pair,
wall clocks give a guess without a bound. Why no line is fitted: `docs/decisions/0039-several-clocks.md`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

MAX_DRIFT = 1_000  # two clocks drift apart by at most 1 us in so many: each is slewed by at most 500 ppm
Moment = tuple[int, int]  # a time of the second clock, and a bound of (its time - the first clock's) then


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

    pairs: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)  # clocks of cause, effect: times
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
    """The tightest bounds at any moment that follow from bounds at single ones."""

    def __init__(self, bounds: Iterable[Moment], *, is_upper: bool) -> None:
        """`is_upper`: the bounds are upper ones, else lower ones."""
        self._sign = 1 if is_upper else -1
        least: dict[int, int] = {}
        for at_us, bound_us in bounds:
            value = self._sign * bound_us
            least[at_us] = min(least.get(at_us, value), value)
        self.times = sorted(least)
        self._values = [least[at_us] for at_us in self.times]
        for order in (range(1, len(self.times)), range(len(self.times) - 2, -1, -1)):
            for index in order:
                beside = index - 1 if order.step > 0 else index + 1
                reached = self._values[beside] + _drift(self.times[index] - self.times[beside])
                self._values[index] = min(self._values[index], reached)

    def at(self, time_us: int) -> int | None:
        """Return the bound at a moment, None if there is none at all."""
        index = bisect_right(self.times, time_us)
        around = [each for each in (index - 1, index) if 0 <= each < len(self.times)]
        found = [self._values[each] + _drift(time_us - self.times[each]) for each in around]
        return self._sign * min(found) if found else None


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


def align(evidence: Evidence) -> Alignment:
    """Relate all clocks to the one with the most events, each over the clocks about which most is known."""
    reference = min(evidence.events, key=lambda clock: (-evidence.events[clock], clock))
    relations: dict[str, Relation] = {}
    contradictions = []
    near, far = [reference], sorted(set(evidence.events) - {reference})
    candidates = {(clock, reference): _relation(evidence, reference, clock) for clock in far}
    while far:
        (clock, parent), relation = min(candidates.items(), key=lambda item: (item[1].looseness, item[0]))
        if relation.is_contradictory:
            contradictions.append(f"the clocks of {clock} and {parent} contradict each other: one has jumped")
            relation = Relation(parent, Envelope((), is_upper=True), Envelope((), is_upper=False), relation.guess_us)
        relations[clock] = relation
        near.append(clock)
        far.remove(clock)
        candidates = {pair: each for pair, each in candidates.items() if pair[0] != clock}
        candidates |= {(other, clock): _relation(evidence, clock, other) for other in far}
    return Alignment(reference, relations, contradictions)


def _relation(evidence: Evidence, parent: str, clock: str) -> Relation:
    """Relate a clock to another; a cause there and its effect here bound the offset from above, and the reverse."""
    above = [(effect, effect - cause) for cause, effect in evidence.pairs.get((parent, clock), ())]
    below = [(cause, cause - effect) for cause, effect in evidence.pairs.get((clock, parent), ())]
    guess_us = evidence.wall_us.get(parent, 0) - evidence.wall_us.get(clock, 0)
    return Relation(parent, Envelope(above, is_upper=True), Envelope(below, is_upper=False), guess_us)
