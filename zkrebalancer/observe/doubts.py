"""Which orders of events are not known, because clocks of several hosts can be aligned only within bounds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

from zkrebalancer.observe.clocks import Placed
from zkrebalancer.observe.partition_history import CLOSED
from zkrebalancer.observe.reading import Event
from zkrebalancer.protocol.fields import TopicPartition

EARLIEST, LATEST, CLOCK = "earliest_us", "latest_us", "clock"  # keys that alignment adds to an event
_LISTS = frozenset({"fetcher_started", "fetcher_stopped", "repositioned"})
_OF_MEMBERS = frozenset({"ownership_ended", "member_left"})
KINDS = _LISTS | _OF_MEMBERS | {"topic_deleted"}  # what changes an owner, or what it may read

Change = tuple[int, str, Placed]  # about when, by which clock


def placed(event: Event) -> Placed:
    """Return when an aligned event was."""
    return Placed(event["mono_us"], event[EARLIEST], event[LATEST])


@dataclass(slots=True)
class Doubts:
    """The changes of owners of a run, by group and partition."""

    _changes: dict[tuple[str, TopicPartition], list[Change]] = field(default_factory=dict)
    _started: dict[tuple[str, str], set[TopicPartition]] = field(default_factory=dict)  # by group and member
    _leaving: set[tuple[str, str]] = field(default_factory=set)  # members that stopped to leave
    _later: list[Event] = field(default_factory=list)  # which concern partitions that are not all known yet
    widest_us: int | None = 0  # the largest error of a change; None: unbounded

    def add(self, event: Event) -> None:
        """Add an aligned event of KINDS."""
        if event["kind"] in _LISTS:
            partitions = [(event["topic"], number) for number in event["partitions"]]
            if event["kind"] == "fetcher_stopped" and event["reason"] == CLOSED:
                self._leaving.add((event["group"], event["member"]))
            if event["kind"] == "fetcher_started":
                self._started.setdefault((event["group"], event["member"]), set()).update(partitions)
            self._insert(event, [(event["group"], partition) for partition in partitions])
        else:
            self._later.append(event)

    def finish(self) -> None:
        """Resolve what concerns all partitions of a member or a topic; call it after the last event."""
        later, self._later = self._later, []
        for event in later:
            if event["kind"] == "topic_deleted":
                self._insert(event, [key for key in self._changes if key[1][0] == event["topic"]])
            elif event["kind"] == "ownership_ended" or self._takes_back(event):
                group = event["group"]
                self._insert(event, [(group, each) for each in self._started.get((group, event["member"]), ())])

    def _takes_back(self, left: Event) -> bool:
        """Whether a member that stopped to leave was found dead; else nothing changes that had not changed before."""
        return left["reason"] != CLOSED and (left["group"], left["member"]) in self._leaving

    def _insert(self, event: Event, keys: list[tuple[str, TopicPartition]]) -> None:
        moment = placed(event)
        error_us = moment.error_us
        if self.widest_us is not None:
            self.widest_us = None if error_us is None else max(self.widest_us, error_us)
        for key in keys:
            change = (moment.at_us, event[CLOCK], moment)
            insort(self._changes.setdefault(key, []), change, key=lambda each: each[:2])

    def concern(self, event: Event, partition: TopicPartition) -> bool:
        """Whether a change that another clock saw may have been before or after this event of the partition."""
        changes, moment = self._changes.get((event["group"], partition), []), placed(event)
        error_us = moment.error_us
        if self.widest_us is not None and error_us is not None:
            reach_us = self.widest_us + error_us
            begin = bisect_left(changes, moment.at_us - reach_us, key=lambda each: each[0])
            end = bisect_right(changes, moment.at_us + reach_us, key=lambda each: each[0])
            changes = changes[begin:end]
        return any(
            clock != event[CLOCK] and not moment.is_before(change) and not change.is_before(moment)
            for _at_us, clock, change in changes
        )
