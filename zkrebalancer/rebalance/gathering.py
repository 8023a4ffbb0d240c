"""A start waits a moment for its consumer's other partitions that are being released, so that one start carries all.

The members that release them acknowledge their stops one after another. Without the wait, the first acknowledgement
would send a start, and what is released next would wait until the receiver has acknowledged it: two or three rounds.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable

from zkrebalancer.protocol.command import StopFetcher
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.rebalance.effects import Now
from zkrebalancer.rebalance.scheduler import PartScheduler
from zkrebalancer.rebalance.states import MemberState
from zkrebalancer.rebalance.timers import discard
from zkrebalancer.rebalance.view import GroupView, Member

GATHER_US = 20_000  # how long a free partition waits for others, at most
RECENT_MS = 1_000  # a member that has not acknowledged a stop for so long is slow: nothing waits for it


class Gathering:
    """Which consumers wait for others before they get a start, and until when."""

    def __init__(
        self,
        scheduler: PartScheduler,
        view: GroupView,
        candidates: OrderedDict[str, None],
        go_on: Callable[[], None],
    ) -> None:
        """Let nobody wait. `candidates`: gets those that need not wait any more; `go_on` is called if time ends it."""
        self._scheduler = scheduler
        self._view = view
        self._candidates = candidates
        self._go_on = go_on
        self._since_us: dict[str, int] = {}  # receiver -> since when some of what it lacks is free
        self._awaited: dict[str, set[str]] = {}  # receiver that waits -> the members that release what it lacks
        self._receivers: defaultdict[str, set[str]] = defaultdict(set)  # the same, by member
        self._wake_us = 0  # if there is a timer, when it is due

    def reset(self) -> None:
        """Forget everything: the group is read again, and its timers are gone."""
        self._since_us.clear()
        self._awaited.clear()
        self._receivers.clear()

    def freed(self, receiver: str) -> None:
        """Note that a partition became free that a consumer is to get, which may have a command to answer."""
        self._since_us.setdefault(receiver, self._scheduler.now.mono_us)
        if receiver not in self._awaited:
            self._candidates[receiver] = None

    def waits(self, receiver: str, lacking: Iterable[TopicPartition]) -> bool:
        """Return whether a consumer, which could get a start, waits for what it also lacks.

        A new plan asks again: it may wait for other members, but no longer.
        """
        self._forget(receiver)
        now = self._scheduler.now
        until_us = self._since_us.get(receiver, now.mono_us) + GATHER_US
        if until_us <= now.mono_us:
            return False
        awaited = releasing(self._view, lacking, now)
        if not awaited:
            return False
        self._since_us.setdefault(receiver, now.mono_us)
        self._awaited[receiver] = awaited
        for member in awaited:
            self._receivers[member].add(receiver)
        self._wake(until_us)
        return True

    def _wake(self, at_us: int) -> None:
        if not self._scheduler.has_timer("gather") or at_us < self._wake_us:
            self._wake_us = at_us
            self._scheduler.wake("gather", at_us, self._time_is_up)

    def answered(self, member: str) -> None:
        """Note that nobody has to wait for a member's stop any more."""
        for receiver in sorted(self._receivers.pop(member, ())):
            self._awaited[receiver].discard(member)
            if not self._awaited[receiver]:
                self._let_go(receiver)

    def sent(self, receiver: str) -> None:
        """Note that a consumer was sent a start."""
        self._forget(receiver)
        self._since_us.pop(receiver, None)

    def drop(self, consumer: str) -> None:
        """Note that a consumer gets nothing, and that nobody waits for it."""
        self.sent(consumer)
        self.answered(consumer)

    def _forget(self, receiver: str) -> None:
        for member in self._awaited.pop(receiver, ()):
            if receiver in self._receivers.get(member, ()):
                discard(self._receivers, member, receiver)
        if not self._awaited:
            self._scheduler.cancel_wake("gather")

    def _let_go(self, receiver: str) -> None:
        self._forget(receiver)
        self._candidates[receiver] = None

    def _time_is_up(self) -> None:
        """Serve those that have waited long enough, and wake up again for the others."""
        times = {receiver: self._since_us[receiver] + GATHER_US for receiver in self._awaited}
        for receiver in sorted(times):
            if times[receiver] <= self._scheduler.now.mono_us:
                self._let_go(receiver)
        if self._awaited:
            self._wake(min(times[receiver] for receiver in self._awaited))
        self._go_on()


def releasing(view: GroupView, lacking: Iterable[TopicPartition], now: Now) -> set[str]:
    """Return the members that are about to release some of these partitions: they were sent a stop of it recently."""
    found: set[str] = set()
    for partition in lacking:
        holders = view.holders(partition)
        if len(holders) != 1 or holders[0] in found:
            continue
        member = view.members.get(holders[0])
        if member is not None and _is_releasing(member, partition, now):
            found.add(member.consumer)
    return found


def _is_releasing(member: Member, partition: TopicPartition, now: Now) -> bool:
    if member.state is not MemberState.ANSWERING:
        return False
    oldest = member.pending[0]
    stop = oldest.command
    if not isinstance(stop, StopFetcher) or not (stop.partitions is None or partition in stop.partitions):
        return False
    return oldest.node is None or now.epoch_ms - oldest.sent_at_ms < RECENT_MS
