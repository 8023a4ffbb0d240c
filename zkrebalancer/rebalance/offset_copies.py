"""Removes copies of deleted offsets that are too old or too many (`protocol/offset_copy.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from zkrebalancer.protocol import offset_copy, paths
from zkrebalancer.protocol.calls import Children, Delete, Done, ListChildren, Refusal, Refused, Reply
from zkrebalancer.rebalance.scheduler import PartScheduler

FIRST_LOOK_US = 60_000_000  # after a group was read, because its members are more urgent
LOOK_INTERVAL_US = 86_400_000_000  # while there are copies
MAX_REMOVED = 500  # in one transaction


class OffsetCopies:
    """The copies of one group."""

    def __init__(self, scheduler: PartScheduler, group: str) -> None:
        """Schedule nothing yet."""
        self._scheduler = scheduler
        self._group = group
        self._may_exist = True  # until a list has none
        self._next_look_us = 0
        self._is_removing = False

    def adopt(self) -> None:
        """Set the timer again, which was dropped when the reading of the group began."""
        self._is_removing = False
        if self._may_exist:
            spread_us = crc32(self._group.encode()) % FIRST_LOOK_US  # 10,000 groups are read at about the same time
            earliest_us = self._scheduler.now.mono_us + FIRST_LOOK_US + spread_us
            self._scheduler.wake("copies", max(self._next_look_us, earliest_us), self.look)

    def look(self) -> None:
        """List the copies, because a new one was made, or one may be too old by now."""
        self._scheduler.ask(ListChildren(paths.deleted_offsets(self._group)), self._listed)

    def _listed(self, reply: Reply) -> None:
        names = reply.names if isinstance(reply, Children) else ()
        if not self._is_removing:
            self._remove(offset_copy.superfluous(names, self._scheduler.now.epoch_ms))
        self._may_exist = bool(names)
        if names:
            self._next_look_us = self._scheduler.now.mono_us + LOOK_INTERVAL_US
            self._scheduler.wake("copies", self._next_look_us, self.look)

    def _remove(self, names: Sequence[str]) -> None:
        operations = [Delete(paths.deleted_offsets(self._group, name)) for name in names[:MAX_REMOVED]]
        count = self._scheduler.fitting(operations)
        self._is_removing = count > 0
        if count:
            self._scheduler.write(operations[:count], self._removed, names, count)

    def _removed(self, reply: Reply, names: Sequence[str], count: int) -> None:
        """Continue with the rest, without a copy that has foreign nodes below it.

        If somebody else has removed copies, wait for the next list.
        """
        self._is_removing = False
        if isinstance(reply, Done):
            self._remove(names[count:])
        elif isinstance(reply, Refused) and reply.refusal is Refusal.NOT_EMPTY and reply.index is not None:
            self._scheduler.note_refused(Delete(paths.deleted_offsets(self._group, names[reply.index])), reply.refusal)
            self._remove([*names[: reply.index], *names[reply.index + 1 :]])
