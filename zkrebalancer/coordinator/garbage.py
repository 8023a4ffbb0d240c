"""When Python looks for garbage in a coordinator's process: rarely, and never while many groups are read."""

from __future__ import annotations

import gc

import gevent.event

from zkrebalancer.protocol.calls import RepliedAll
from zkrebalancer.rebalance.all_shards import AllShards
from zkrebalancer.rebalance.effects import Event

MANY_GROUPS = 100  # that wait to be read
NEVER = 2**31 - 1  # of younger collections


class Garbage:
    """The collections of one process.

    A full collection examines every partition of every group, which takes 0.2 s for half a million: it runs when `all`
    is called. The frequent ones, of what is new, examine each new object twice. While a new leader reads its groups,
    nearly all that is new stays, so that they cost a tenth of the time and find nothing.
    """

    def __init__(self, shards: AllShards) -> None:
        """Change nothing yet."""
        self._shards = shards
        self._is_off = False
        self.due = gevent.event.Event()  # set when a leadership has ended
        self._is_urgent = False

    def begin(self) -> None:
        """Leave full collections out."""
        gc.set_threshold(*gc.get_threshold()[:2], NEVER)

    def resigned(self) -> None:
        """Note that a leadership has ended: its groups refer to each other's parts in cycles, which only `all` frees.

        If this process leads no other shard, `look` does that before as many groups are read again: both would need
        twice the memory. Otherwise the groups of other shards would wait; the caller should wait until nothing moves.
        """
        self.due.set()
        self._is_urgent = all(one.leadership is None for one in self._shards.machines)

    @property
    def has_rubbish(self) -> bool:
        """Whether a machine still has data of an ended leadership, which `all` could not free."""
        return any(one.has_rubbish for one in self._shards.machines)

    def look(self, event: Event) -> None:
        """After an event: collect nothing while many groups wait to be read; what is new then only `all` examines."""
        if self._is_urgent and not self.has_rubbish:
            self.all()
        if not (self._is_off or isinstance(event, RepliedAll)):
            return  # groups are read with many reads at once; there may be hundreds of shards to look at
        is_reading = any(len(one.groups_to_load) > MANY_GROUPS for one in self._shards.machines)
        if is_reading is self._is_off:
            return
        self._is_off = is_reading
        if is_reading:
            gc.disable()
        else:
            gc.freeze()  # otherwise the next collection would examine it in one go
            gc.enable()

    def all(self) -> None:
        """Collect everything."""
        self.due.clear()
        self._is_urgent = False
        gc.unfreeze()
        gc.collect()
