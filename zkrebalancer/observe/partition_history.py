"""The history of one partition in one group: its owners and its delivered records.

A consumer owns a partition from `fetcher_started` to the next `fetcher_stopped`, or to its `ownership_ended`.

Some records may be delivered once more:
- after an end without a stop: those that the consumer received at or above its committed offset;
- after a stop with the reason `lost`: the same, since the consumer could not commit any more;
- after a stop whose consumer is found dead before the next start: the same, since it died before its acknowledgement;
- after `repositioned` (a seek or a reset): those from the new position on. Records that it skips are not lost.

A position below 0 is unknown. If Kafka says later where the partition begins, that counts as the position of the start.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zkrebalancer.observe.ranges import RangeSet

LOST = "lost"
CLOSED = "closed"  # reason of a stop and of a departure after a clean close


@dataclass(slots=True)
class Interval:
    """One ownership of the partition by a consumer; `position` is the next offset that is in order."""

    member: str
    started_us: int
    position: int
    committed: int
    delivered: RangeSet = field(default_factory=RangeSet)
    is_stale: bool = False  # the topic was deleted meanwhile


@dataclass(frozen=True, slots=True)
class Delivery:
    """The judgement on one delivery; ranges of offsets are half-open."""

    is_owned: bool  # by the consumer that received it
    is_in_order: bool
    is_latest: bool  # no delivery before had a higher generation
    repeated: list[tuple[int, int]]  # delivered before
    forbidden: list[tuple[int, int]]  # the part of `repeated` that must not be delivered again

    @property
    def is_faultless(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.is_owned and self.is_in_order and self.is_latest and not self.forbidden


@dataclass(slots=True)
class PartitionHistory:
    """A partition's ownership intervals and deliveries; add events in order of time."""

    first_position: int | None = None  # where the group began to read: of the first start whose position is known
    intervals: dict[str, Interval] = field(default_factory=dict)  # open ones, by consumer
    delivered: RangeSet = field(default_factory=RangeSet)
    stopped: Interval | None = None  # the last one that ended with a stop, until the next start
    stopped_to_leave: bool = False  # whether that stop had the reason `closed`
    released_us: int | None = None  # when it lost its last owner; None while it has one, or never had one
    generation: int | None = None  # the highest of a delivery
    skipped: RangeSet = field(default_factory=RangeSet)  # need not be delivered
    _repeatable: RangeSet = field(default_factory=RangeSet)  # may be delivered once more

    def start(self, member: str, at_us: int, position: int) -> tuple[list[Interval], int | None]:
        """Begin an interval; return those still open, and the microseconds without an owner (None: not known)."""
        still_open = list(self.intervals.values())
        pause_us = None if self.released_us is None else at_us - self.released_us
        self.intervals[member] = Interval(member, at_us, position, position)
        self.stopped = self.released_us = None
        self._note_first(position)
        return still_open, pause_us

    def begin(self, member: str, position: int) -> bool:
        """Set the position of the consumer's start, if that was unknown; return whether it was."""
        interval = self.intervals.get(member)
        if interval is None or interval.is_stale or interval.position >= 0:
            return False
        interval.position = interval.committed = position
        self._note_first(position)
        return True

    def stop(self, member: str, at_us: int, reason: str) -> None:
        """End the consumer's interval with a stop; has no effect if it has ended already."""
        interval = self._close(member, at_us)
        if interval is not None and reason == LOST:
            self._allow_repeats(interval)
        elif interval is not None:
            self.stopped, self.stopped_to_leave = interval, reason == CLOSED

    def end(self, member: str, at_us: int) -> None:
        """End the consumer's interval because its session ended: it died, was evicted, or closed."""
        interval = self._close(member, at_us)
        if interval is not None:
            self._allow_repeats(interval)
        elif not self.stopped_to_leave:
            self.revert_stop(member)  # it died between its stop and its ack

    def revert_stop(self, member: str) -> None:
        """Ignore the consumer's last stop, unless another consumer has started since."""
        if self.stopped is not None and self.stopped.member == member:
            self._allow_repeats(self.stopped)
            self.stopped = None

    def commit(self, member: str, offset: int) -> None:
        """Add a committed offset, which may also follow the consumer's stop."""
        interval = self.intervals.get(member, self.stopped)
        if interval is not None and interval.member == member:
            interval.committed = offset

    def reposition(self, member: str, position: int) -> None:
        """Move the consumer's position, as a seek or a reset did."""
        interval = self.intervals.get(member)
        if interval is None or interval.is_stale:
            return
        if interval.position < position:
            self.skipped.add(interval.position, position)
        for begin, end in self.delivered.at_or_above(position):
            self._repeatable.add(begin, end)
        interval.position = position

    def deliver(self, member: str, begin: int, end: int, generation: int | None = None) -> Delivery:
        """Add the delivery of [begin, end) to the application, and judge it."""
        interval = self.intervals.get(member)
        if interval is not None and interval.is_stale:
            return Delivery(is_owned=True, is_in_order=True, is_latest=True, repeated=[], forbidden=[])
        repeated = self.delivered.common(begin, end)
        forbidden = [gap for part in repeated for gap in self._repeatable.missing(*part)]
        self._repeatable.discard(begin, end)
        self.delivered.add(begin, end)
        is_in_order = interval is None or begin >= interval.position
        if interval is not None:
            interval.position = max(interval.position, end)
            interval.delivered.add(begin, end)
        is_latest = generation is None or self.generation is None or generation >= self.generation
        if generation is not None and is_latest:
            self.generation = generation
        return Delivery(interval is not None, is_in_order, is_latest, repeated, forbidden)

    def forget_records(self) -> None:
        """Forget all records, because the topic was deleted; deliveries to its current owners are no longer judged."""
        self.first_position, self.stopped, self.generation = None, None, None
        self.delivered, self._repeatable, self.skipped = RangeSet(), RangeSet(), RangeSet()
        for interval in self.intervals.values():
            interval.is_stale, interval.delivered = True, RangeSet()

    def _note_first(self, position: int) -> None:
        if self.first_position is None or self.first_position < 0:
            self.first_position = position

    def _close(self, member: str, at_us: int) -> Interval | None:
        interval = self.intervals.pop(member, None)
        if interval is not None and not self.intervals:
            self.released_us = at_us
        return interval

    def _allow_repeats(self, interval: Interval) -> None:
        for begin, end in interval.delivered.at_or_above(interval.committed):
            self._repeatable.add(begin, end)
