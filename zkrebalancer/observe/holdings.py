"""Who owned a partition, and when: intervals of ownership, and what lies between them: overlaps, gaps, moves.

An interval ends with its member's next stop, the end of its membership, or its own next start. A crash excuses that
records of an interval come once more: if the member's session ended before it stopped, if it stopped because its
session was lost, or if it was found dead after its stop and before the next start (it died before its acknowledgement).
A partition's intervals are judged when nothing that is still to come can change them, so only open ones and the last
ones are remembered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from zkrebalancer.observe.partition_history import CLOSED, LOST

FOREVER_US = (1 << 63) - 1
ENDED = "ended"  # the member's membership ended without a stop
RESTARTED = "restarted"  # the member started a partition that it already owned

Order = tuple[int, str, int, int]  # time, then file, block and row


@dataclass(frozen=True, slots=True)
class Moment:
    """When an event was: its place in the order of events, and by how much it may have been earlier or later."""

    at: Order
    early_us: int = 0
    late_us: int = 0
    clock: tuple[str, str] | None = None  # host and boot, whose own events are in order; None: unknown

    @property
    def us(self) -> int:
        """The time."""
        return self.at[0]

    def may_be_before(self, other: Moment) -> bool:
        """Whether this moment may have been before one that comes earlier in the order of events."""
        return not self.is_of_clock(other) and self.us - self.early_us < other.us + other.late_us

    def is_of_clock(self, other: Moment) -> bool:
        """Whether both are known to be times of one clock."""
        return self.clock is not None and self.clock == other.clock


NEVER = Moment((FOREVER_US, "", 0, 0))


@dataclass(slots=True)
class Held:
    """One interval; `seeks` are the moments and positions at which its consumer was repositioned."""

    member: str
    generation: int | None
    cause_id: str | None
    position: int
    began: Moment
    era: int
    ceased: Moment | None = None
    ended_by: str | None = None
    until_us: int | None = None  # `ended_us`, or just before the member's next start if that is earlier
    seeks: list[tuple[int, int]] = field(default_factory=list)
    excused_us: int | None = None  # when a crash excused it

    @property
    def ended_us(self) -> int | None:
        """When it ended; None: it is open."""
        return None if self.ceased is None else self.ceased.us

    def legs(self) -> Iterator[tuple[int, int, int | None]]:
        """Iterate over (started_us, position, until_us) of the parts between which the consumer was repositioned."""
        starts = sorted([(self.began.us, self.position), *self.seeks], key=lambda each: each[0])
        following = [at_us - 1 for at_us, _position in starts[1:]]
        for (at_us, position), next_us in zip(starts, [*following, None], strict=True):
            ends = [each for each in (self.until_us, next_us) if each is not None]
            yield at_us, position, min(ends, default=None)


@dataclass(frozen=True, slots=True)
class Judged:
    """An interval and `other`, the earlier interval of the same partition that ends last; None for the first one."""

    held: Held
    other: Held | None
    previous: str | None  # the member that started before

    @property
    def _other_ended(self) -> Moment:
        return self.other.ceased or NEVER if self.other is not None else NEVER

    @property
    def gap_began_us(self) -> int | None:
        """When the time without an owner began that this interval ended; None: there was none."""
        began_us = self._other_ended.us
        return began_us if self.other is not None and began_us <= self.held.began.us else None

    @property
    def overlap(self) -> tuple[int | None, bool] | None:
        """Until when (None: to the last event) two members owned the partition, and whether that is certain."""
        if self.other is None or self.other.member == self.held.member:
            return None
        end, began = self._other_ended, self.held.began
        excess_us = end.us - began.us
        if excess_us <= 0 and not began.may_be_before(end):
            return None
        until_us = min(end.us, NEVER.us if self.held.ended_us is None else self.held.ended_us)
        if self.other.ceased is None:  # both had it, unless this interval was over before the other one began
            known = (began, self.held.ceased or NEVER)
            is_certain = not all(moment.may_be_before(self.other.began) for moment in known)
        else:
            is_far = excess_us >= _sum_us(began.late_us, end.early_us)
            is_certain = excess_us > 0 and (is_far or began.is_of_clock(end))
        return until_us if until_us < FOREVER_US else None, is_certain


@dataclass(slots=True)
class Holdings:
    """The intervals of one partition in one group; add events in order of time."""

    _open: dict[str, Held] = field(default_factory=dict)  # by member
    _waiting: list[Held] = field(default_factory=list)  # not judged yet, in order of their starts
    _last: dict[str, Held] = field(default_factory=dict)  # of those, the last one of each member
    _lasting: Held | None = None  # of those that were judged, the one that ends last
    _previous: str | None = None
    _stopped: Held | None = None  # the last one that ended with a stop, until the next start

    def start(self, held: Held) -> list[Judged]:
        """Begin an interval; return those that can be judged by now."""
        before = self._last.get(held.member)
        if held.member in self._open:
            self.close(held.member, held.began, RESTARTED)
        if before is not None and before.until_us is not None:
            before.until_us = min(before.until_us, held.began.us - 1)
        now_us = held.began.us
        is_over = all(each.ceased is not None and each.ceased.us < now_us for each in self._waiting)
        judged = self._judge() if is_over else []
        self._stopped = None
        self._waiting.append(held)
        self._open[held.member] = self._last[held.member] = held
        return judged

    def close(self, member: str, moment: Moment, reason: str) -> None:
        """End the member's interval; has no effect if it has ended already."""
        held = self._open.pop(member, None)
        if held is not None:
            held.ceased, held.ended_by, held.until_us = moment, reason, moment.us
            if reason in {ENDED, LOST}:
                held.excused_us = moment.us
            elif reason != RESTARTED:
                self._stopped = held

    def find_dead(self, member: str, moment: Moment, *, is_said: bool) -> None:
        """Excuse the last stop if the member died after it.

        `is_said`: the coordinator says that the member left without closing. Otherwise its session ended, which after
        a stop with the reason CLOSED is no evidence of a crash: the member did that itself.
        """
        held = self._stopped
        if held is not None and held.member == member and (is_said or held.ended_by != CLOSED):
            held.excused_us = moment.us if held.excused_us is None else held.excused_us

    def delete_topic(self) -> None:
        """Forget the last stop: its records are gone."""
        self._stopped = None

    def seek(self, member: str, moment: Moment, position: int, era: int, *, begins: bool = False) -> None:
        """Reposition the member's consumer, unless its topic was deleted since it started.

        `begins`: if the position of the start was unknown, this is it.
        """
        held = self._open.get(member)
        if held is None or held.era != era:
            return
        if begins and held.position < 0 and not held.seeks:
            held.position = position
        else:
            held.seeks.append((moment.us, position))

    @property
    def unjudged(self) -> Sequence[Held]:
        """The intervals that may still change, in order of their starts."""
        return self._waiting

    def finish(self) -> tuple[list[Judged], Held | None]:
        """Return the intervals that are left, and the last one if the partition has no owner; call it at the end."""
        judged, lasting = self._judge(), self._lasting
        return judged, None if lasting is None or lasting.ceased is None else lasting

    def _judge(self) -> list[Judged]:
        judged = []
        for held in self._waiting:
            judged.append(Judged(held, self._lasting, self._previous))
            self._previous = held.member
            if self._lasting is None or _lasts(held) > _lasts(self._lasting):
                self._lasting = held
        self._waiting, self._last = [], {}
        return judged


def era_of(deleted_us: Sequence[int], at_us: int) -> int:
    """Return how often a topic had been deleted before a time; `deleted_us` is ascending."""
    return bisect_left(deleted_us, at_us)


def _lasts(held: Held) -> tuple[int, str, int, int]:
    end = held.ceased or NEVER
    return end.us, held.member, end.early_us, end.late_us


def _sum_us(one: int, other: int) -> int:
    """Add two bounds, either of which may be FOREVER_US."""
    return min(one + other, FOREVER_US)
