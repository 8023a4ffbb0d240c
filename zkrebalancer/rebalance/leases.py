"""Waits for the leases of evicted consumers: an eviction record holds their partitions for so long, then it is removed.

A record that cannot be removed holds nothing after the lease either. If a right is missing, the removal is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Delete, Refusal, Refused, Reply
from zkrebalancer.protocol.ownership import EvictionRecord
from zkrebalancer.protocol.registration import MAX_LEASE_MS
from zkrebalancer.rebalance import facts
from zkrebalancer.rebalance.scheduler import ANY, RACES, PartScheduler, pause_us
from zkrebalancer.rebalance.view import GroupView

UNKNOWN_LEASE_MS = MAX_LEASE_MS  # of a consumer whose registration cannot be read
CLOCK_DRIFT_ALLOWANCE = 100  # leases are extended by 1/100, by which the speeds of two hosts' clocks may differ
WORK_OF_ONE = 2  # units of `scheduler.MAX_WORK_PER_STEP`


class Leases:
    """The eviction records of one group."""

    def __init__(self, scheduler: PartScheduler, view: GroupView, report: Callable[[facts.Fact], None]) -> None:
        """Set no timer yet."""
        self._scheduler = scheduler
        self._view = view
        self._report = report
        self._seen: dict[str, tuple[EvictionRecord | None, int]] = {}  # evicted -> its record, end of the wait
        self._staying: set[str] = set()  # evicted consumers whose leases are over and whose records cannot be removed

    def adopt(self) -> Iterator[int]:
        """After loading, await the lease of each evicted consumer; yield the work, because there may be thousands."""
        self._seen = {consumer: seen for consumer, seen in self._seen.items() if consumer in self._view.evicted}
        self._staying &= self._view.evicted.keys()
        for consumer, record in list(self._view.evicted.items()):
            if consumer in self._view.evicted:
                self._await_lease(consumer, record)
                yield WORK_OF_ONE

    def begin(self, consumer: str, record: EvictionRecord | None) -> None:
        """Wait for the lease of a consumer that was evicted just now; None: its record cannot be read."""
        self._staying.discard(consumer)
        self._await_lease(consumer, record)

    def _await_lease(self, consumer: str, record: EvictionRecord | None) -> None:
        """Wait one whole lease from when this leader first saw the eviction record.

        A later reading does not restart the wait, or leases would never end while connections keep breaking.
        """
        seen, over_us = self._seen.get(consumer, (None, 0))
        if consumer not in self._seen or seen != record:
            over_us = self._scheduler.now.mono_us + lease_wait_us(record.lease_ms if record else None)
            self._seen[consumer] = record, over_us
        self._scheduler.wake(("lease", consumer), over_us, self._lease_over, consumer)

    def _lease_over(self, consumer: str, tries: int = 0) -> None:
        if consumer not in self._staying:
            generation = self._view.generation
            self._scheduler.emit("ownership_ended", generation, None, member=consumer, reason="evicted")
        delete = Delete(paths.evicted(self._view.group, consumer))
        self._scheduler.write([delete], self._record_removed, consumer, tries, expected=ANY)

    def _record_removed(self, reply: Reply, consumer: str, tries: int) -> None:
        """Free what it held, even if its record stays: a foreign node is below it, or a right is missing."""
        was_held = consumer in self._view.evicted
        self._view.evicted.pop(consumer, None)
        if isinstance(reply, Refused) and reply.refusal is not Refusal.NO_NODE:
            self._staying.add(consumer)
            if reply.refusal in RACES:
                path = paths.evicted(self._view.group, consumer)
                self._scheduler.complain(path, f"the eviction record of {consumer} stays: {reply.refusal.value}")
            else:
                at_us = self._scheduler.now.mono_us + pause_us(tries)
                self._scheduler.wake(("lease", consumer), at_us, self._lease_over, consumer, tries + 1)
        else:
            self._staying.discard(consumer)
            self._seen.pop(consumer, None)
        if was_held:
            self._report(facts.LeaseOver(self._view.refresh(consumer)))


def lease_wait_us(known_ms: int | None) -> int:
    """Return how long to wait until a lease that may just have begun is over; `known_ms`: its length, if known."""
    wait_us = 1_000 * (UNKNOWN_LEASE_MS if known_ms is None else known_ms)
    return wait_us + wait_us // CLOCK_DRIFT_ALLOWANCE


def longest_wait_us(view: GroupView, now_us: int) -> int:
    """Return how long to wait until no present or former member of a group can have a lease.

    This includes members that seem dead: if the whole group is deleted, all members seem dead.
    """
    registrations = [member.registration for member in view.members.values()]
    leases = [*(known.lease_ms if known else None for known in registrations)]
    leases += [record.lease_ms if record else None for record in view.evicted.values()]
    return max([view.lease_until_us - now_us, *map(lease_wait_us, leases)])
