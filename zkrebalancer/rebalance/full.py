"""Consumers whose record of what they were given is full: what does not fit into its node, they are not given.

The record has at least one entry for each topic (`ownership.encode_given`). A share that cannot be recorded would fail
for ever, and an eager group would stop everything for each try. So a plan gives such a consumer what fits.
"""

from __future__ import annotations

from collections.abc import Collection

from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Create, Refusal
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.rebalance.plan import Share
from zkrebalancer.rebalance.refusals import REFUSED_US
from zkrebalancer.rebalance.scheduler import PartScheduler
from zkrebalancer.rebalance.view import GroupView

SAID_AGAIN_US = REFUSED_US // 2  # so that it stays among the obstacles
ENTRY_BYTES = len('"":[[,]],')


class Full:
    """Notes whose record is full, and publishes that as an obstacle."""

    def __init__(self, scheduler: PartScheduler, view: GroupView) -> None:
        """Know of none."""
        self._scheduler = scheduler
        self._view = view

    def note(self, consumer: str) -> None:
        """Note that nothing more fits into the record of a consumer."""
        view = self._view
        known = view.full.get(consumer)
        given = view.members[consumer].given or {}
        view.full[consumer] = len(ownership.encode_given(given.keys(), is_coarse=True))
        if known is None:
            self._scheduler.warn(
                f"consumer {consumer} gets no more partitions: what it may own does not fit into"
                f" {paths.given(view.group, consumer)}; the rest of its share has no owner"
            )
        self._say(consumer)

    def adopt(self) -> None:
        """After the group was read again, go on publishing."""
        for consumer in self._view.full:
            self._say(consumer)

    def _say(self, consumer: str) -> None:
        view, now_us = self._view, self._scheduler.now.mono_us
        if consumer in view.full and consumer in view.members:
            self._scheduler.note_refused(Create(paths.given(view.group, consumer)), Refusal.TOO_LARGE)
            self._scheduler.wake(("full", consumer), now_us + SAID_AGAIN_US, self._say, consumer)
        else:
            view.full.pop(consumer, None)


def fitting(view: GroupView, consumer: str, share: Share) -> Share:
    """Return what fits of a share, first what is held; forget that the record is full if all of it fits."""
    if consumer not in view.full:
        return share
    held = view.held_by(consumer)
    result = {tp: thread for tp, thread in share.items() if tp in held}
    left = view.full[consumer] - len(ownership.encode_given(result.keys(), is_coarse=True))
    topics = {topic for topic, _number in result}
    for tp in sorted(share.keys() - result.keys()):
        left -= _bytes_of(tp, topics)
        if left < 0:
            return result
        topics.add(tp[0])
        result[tp] = share[tp]
    del view.full[consumer]
    return share


def _bytes_of(partition: TopicPartition, topics: Collection[str]) -> int:
    """Return by how much a partition may lengthen a record with these topics."""
    topic, number = partition
    return 2 * len(str(number)) + (0 if topic in topics else len(topic) + ENTRY_BYTES)
