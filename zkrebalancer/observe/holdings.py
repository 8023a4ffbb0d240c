"""One partition in one group: who holds it, and what was delivered of it.

A consumer holds a partition from `fetcher_started` to the next `fetcher_stopped` or to its `ownership_ended`. If it
ended without a stop, what it was given may be given once more, from its committed offset on. A stop with the reason
`lost` is none: nothing could be committed any more. Neither is one whose consumer is found dead before anybody starts
anew: it wrote the stop down, and died before the acknowledgement. A consumer that goes on elsewhere because its
application or Kafka says so (`repositioned`) may be given once more what lies above, and need not be given what it
passes over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zkrebalancer.observe.ranges import RangeSet

LOST = "lost"
CLOSED = "closed"  # the reason of a stop, and of a departure, in good order


@dataclass(slots=True)
class Interval:
    """A consumer's hold on the partition; `position` is the next offset that is in order."""

    member: str
    started_us: int
    position: int
    committed: int
    delivered: RangeSet = field(default_factory=RangeSet)
    is_stale: bool = False  # its topic was deleted meanwhile


@dataclass(frozen=True, slots=True)
class Delivery:
    """What was wrong with one delivery; the ranges are half-open, and empty lists are good."""

    is_held: bool
    is_in_order: bool
    again: list[tuple[int, int]]
    unexcused: list[tuple[int, int]]


@dataclass(slots=True)
class Holdings:
    """A partition's intervals and deliveries, fed in the order of time."""

    first_position: int | None = None  # where the group began to read
    intervals: dict[str, Interval] = field(default_factory=dict)
    delivered: RangeSet = field(default_factory=RangeSet)
    stopped: Interval | None = None  # the last orderly end, while nobody has started since
    stopped_to_leave: bool = False  # whether that end was the consumer's own wish
    released_us: int | None = None  # since when nobody holds it
    passed_over: RangeSet = field(default_factory=RangeSet)  # need not be delivered
    _excused: RangeSet = field(default_factory=RangeSet)  # may be delivered once more

    def start(self, member: str, at_us: int, position: int) -> tuple[list[Interval], int | None]:
        """Begin an interval; return those that are still open, and for how long nobody held the partition."""
        still_open = list(self.intervals.values())
        pause_us = None if self.released_us is None else at_us - self.released_us
        self.intervals[member] = Interval(member, at_us, position, position)
        self.stopped = self.released_us = None
        if self.first_position is None:
            self.first_position = position
        return still_open, pause_us

    def stop(self, member: str, at_us: int, reason: str) -> None:
        """End an interval because the consumer says so; a stop of one that has ended changes nothing."""
        interval = self._close(member, at_us)
        if interval is not None and reason == LOST:
            self._excuse(interval)
        elif interval is not None:
            self.stopped, self.stopped_to_leave = interval, reason == CLOSED

    def end(self, member: str, at_us: int) -> None:
        """End an interval because the session is over: the consumer is dead or evicted, or has left in good order."""
        interval = self._close(member, at_us)
        if interval is not None:
            self._excuse(interval)
        elif not self.stopped_to_leave:
            self.forgive_stop(member)  # it died between its stop and its ack

    def forgive_stop(self, member: str) -> None:
        """Take a consumer's stop for none: it was found dead, and nobody has started since."""
        if self.stopped is not None and self.stopped.member == member:
            self._excuse(self.stopped)
            self.stopped = None

    def commit(self, member: str, offset: int) -> None:
        """Note a stored offset; one that arrives after the stop counts too."""
        interval = self.intervals.get(member, self.stopped)
        if interval is not None and interval.member == member:
            interval.committed = offset

    def reposition(self, member: str, position: int) -> None:
        """Note that a consumer goes on at another offset, because its application or Kafka wants it to."""
        interval = self.intervals.get(member)
        if interval is None or interval.is_stale:
            return
        if interval.position < position:
            self.passed_over.add(interval.position, position)
        for begin, end in self.delivered.at_or_above(position):
            self._excused.add(begin, end)
        interval.position = position

    def deliver(self, member: str, begin: int, end: int) -> Delivery:
        """Note that [begin, end) was returned to the application."""
        interval = self.intervals.get(member)
        if interval is not None and interval.is_stale:
            return Delivery(is_held=True, is_in_order=True, again=[], unexcused=[])
        again = self.delivered.common(begin, end)
        unexcused = [gap for part in again for gap in self._excused.missing(*part)]
        self._excused.discard(begin, end)
        self.delivered.add(begin, end)
        is_in_order = interval is None or begin >= interval.position
        if interval is not None:
            interval.position = max(interval.position, end)
            interval.delivered.add(begin, end)
        return Delivery(interval is not None, is_in_order, again, unexcused)

    def forget_records(self) -> None:
        """Begin anew: the topic was deleted. Who holds it still has to stop; what it is given meanwhile counts not."""
        self.first_position, self.stopped = None, None
        self.delivered, self._excused, self.passed_over = RangeSet(), RangeSet(), RangeSet()
        for interval in self.intervals.values():
            interval.is_stale, interval.delivered = True, RangeSet()

    def _close(self, member: str, at_us: int) -> Interval | None:
        interval = self.intervals.pop(member, None)
        if interval is not None and not self.intervals:
            self.released_us = at_us
        return interval

    def _excuse(self, interval: Interval) -> None:
        for begin, end in interval.delivered.at_or_above(interval.committed):
            self._excused.add(begin, end)
