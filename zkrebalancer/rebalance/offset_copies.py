"""Removes the oldest copies of deleted offsets if there are too many (`protocol/offset_copy.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.protocol import offset_copy, paths
from zkrebalancer.protocol.calls import Children, Delete, Done, ListChildren, Refusal, Refused, Reply
from zkrebalancer.rebalance.scheduler import PartScheduler

MAX_REMOVED = 500  # in one transaction


class OffsetCopies:
    """The copies of one group."""

    def __init__(self, scheduler: PartScheduler, group: str) -> None:
        """Schedule nothing yet."""
        self._scheduler = scheduler
        self._group = group
        self._is_busy = False  # copies are listed or removed
        self._is_wanted = False  # others were made meanwhile
        self._newest = 0  # number of the last copy that was made

    def reset(self) -> None:
        """Forget what is under way, because the group is read anew; the next copy causes the next look."""
        self._is_busy = self._is_wanted = False

    def look(self, newest: int) -> None:
        """List the copies, because the one with this number was made: once for all that are made until this is done."""
        self._newest = newest
        self._is_wanted = self._is_busy
        if not self._is_busy:
            self._list()

    def _list(self) -> None:
        self._is_busy, self._is_wanted = True, False
        self._scheduler.ask(ListChildren(paths.deleted_offsets(self._group)), self._listed)

    def _listed(self, reply: Reply) -> None:
        names = reply.names if isinstance(reply, Children) else ()
        self._remove(offset_copy.superfluous(names, self._newest + 1))

    def _remove(self, names: Sequence[str]) -> None:
        operations = [Delete(paths.deleted_offsets(self._group, name)) for name in names[:MAX_REMOVED]]
        count = self._scheduler.fitting(operations)
        if count:
            self._scheduler.write(operations[:count], self._removed, names, count)
            return
        self._is_busy = False
        if self._is_wanted:
            self._list()

    def _removed(self, reply: Reply, names: Sequence[str], count: int) -> None:
        """Continue with the rest, and skip a copy that has foreign nodes below it.

        If another client has removed copies, wait for the next list.
        """
        if isinstance(reply, Done):
            self._remove(names[count:])
        elif isinstance(reply, Refused) and reply.refusal is Refusal.NOT_EMPTY and reply.index is not None:
            self._scheduler.note_refused(Delete(paths.deleted_offsets(self._group, names[reply.index])), reply.refusal)
            self._remove([*names[: reply.index], *names[reply.index + 1 :]])
        else:
            self._remove(())
