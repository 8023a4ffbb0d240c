"""Builds the events of a run by hand: one group, one event per millisecond."""

from __future__ import annotations

from zkrebalancer.observe.checker import Verdict, judge
from zkrebalancer.observe.reading import Event, find_flaw


class History:
    """A fluent builder: each method appends one event and returns the history."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, kind: str, **fields: object) -> History:
        at_us = 1_000 * (len(self.events) + 1)
        common: Event = {"mono_us": at_us, "kind": kind, "group": "g", "generation": 1, "cause_id": "c"}
        self.events.append({**common, **fields})
        assert find_flaw(self.events[-1]) is None
        return self

    def produced(self, first: int, last: int, partition: int = 0) -> History:
        return self.add("produced", group=None, topic="t", partition=partition, first_offset=first, last_offset=last)

    def started(self, member: str, position: int, generation: int = 1, partition: int = 0) -> History:
        fields = {"topic": "t", "partitions": [partition], "positions": [position]}
        return self.add("fetcher_started", member=member, generation=generation, **fields)

    def stopped(self, member: str, position: int, reason: str = "revoked", partition: int = 0) -> History:
        fields = {"topic": "t", "partitions": [partition], "positions": [position]}
        return self.add("fetcher_stopped", member=member, reason=reason, **fields)

    def repositioned(self, member: str, position: int, partition: int = 0, reason: str = "seek") -> History:
        fields = {"topic": "t", "partitions": [partition], "positions": [position]}
        return self.add("repositioned", member=member, reason=reason, **fields)

    def out_of_range(self, member: str, offset: int, earliest: int, latest: int) -> History:
        fields = {"topic": "t", "partition": 0, "offset": offset, "earliest": earliest, "latest": latest}
        return self.add("offset_out_of_range", member=member, **fields)

    def delivered(self, member: str, first: int, last: int, partition: int = 0, generation: int | None = 1) -> History:
        fields = {"topic": "t", "partition": partition, "first_offset": first, "last_offset": last}
        return self.add("delivered", generation=generation, member=member, count=last - first + 1, **fields)

    def committed(self, member: str, offset: int, partition: int = 0) -> History:
        return self.add("committed", member=member, topic="t", partition=partition, offset=offset)

    def ended(self, member: str, reason: str = "expired") -> History:
        return self.add("ownership_ended", member=member, reason=reason)

    def left(self, member: str, reason: str) -> History:
        return self.add("member_left", member=member, reason=reason)

    def requested(self, cause_id: str, trigger: str) -> History:
        return self.add("rebalance_requested", cause_id=cause_id, trigger=trigger)

    def planned(self, generation: int, cause_id: str, partitions: int = 1) -> History:
        numbers = {"member_count": 2, "partition_count": partitions, "moved_count": 1, "plan_us": 9}
        return self.add("rebalance_planned", generation=generation, cause_id=cause_id, mode="eager", **numbers)

    def finished(self, generation: int, cause_id: str, outcome: str = "finished") -> History:
        numbers = {"settled_us": 31_000, "pause_us_max": 1, "moved_count": 1}
        return self.add("rebalance_finished", generation=generation, cause_id=cause_id, outcome=outcome, **numbers)

    def verdict(self) -> Verdict:
        return judge(self.events)


def moved() -> History:
    """Return a run of ten records: five delivered to a, five to b after a clean move."""
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).committed("a", 5).stopped("a", 5)
    return history.started("b", 5, generation=2).delivered("b", 5, 9)
