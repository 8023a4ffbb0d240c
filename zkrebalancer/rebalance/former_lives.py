"""A group that is deleted while it has members, and created again, waits for the leases of its former members.

Deleting a group's node deletes all records of what its members own, but each member may return records until its lease
ends. So `/consumers/served/<group>`, outside of the group's own tree, records that some leader has served a group of
this name. A group without a generation is new, and is not served. If this name was served before, the group had a
former life: then it gets its generation only when no member of that life can have a lease. A leader that knew these
members waits for the longest of their leases, any other leader for as long as a lease may last.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from itertools import chain, filterfalse, islice

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Children, Create, Delete, Done, ListChildren, Refusal, Refused, Reply
from zkrebalancer.protocol.shards import WHOLE, Shard
from zkrebalancer.rebalance.leases import lease_wait_us, longest_wait_us
from zkrebalancer.rebalance.scheduler import ANY, FIRST_PAUSE_US, RACES, Scheduler, pause_us
from zkrebalancer.rebalance.view import GroupView

OWNER = "/former-lives"  # no group has such a name
MAX_MARKS_PER_TRANSACTION = 200
WORK_OF_A_LOOK = 10  # units of `scheduler.MAX_WORK_PER_STEP`
FORGOTTEN_US = 3_600_000_000  # longer than any lease; afterwards, generations of a group of this name start anew


class FormerLives:
    """The groups that were ever served, and until when deleted ones have to wait."""

    def __init__(self, scheduler: Scheduler, shard: Shard = WHOLE) -> None:
        """Know nothing before `read`, and then only groups of this shard."""
        self._shard = shard
        self._scheduler = scheduler.part(OWNER)
        self.is_known = False  # whether the marks of served groups are listed, or may not be listed
        self._is_refused = False  # they may not be listed: any group without a generation may have been served
        self._tries = 0  # to list them, in a row
        self._served: dict[str, None] = {}
        self._unmarked: dict[str, None] = {}  # groups that are served and not marked yet
        self._is_marking = False
        self._until_us: dict[str, int] = {}  # end of the wait of groups that are gone, or have no generation yet
        self._present: Collection[str] = ()
        self._gone_us: OrderedDict[str, int] = OrderedDict()  # missing groups -> when their marks are removed
        self._to_look_at: deque[str] = deque()  # groups that may have been created or deleted since their last check

    def read(self) -> None:
        """List the groups that were served: after an election, or a broken connection."""
        self.is_known = self._is_marking = False
        self._scheduler.forget()
        self._is_refused, self._tries = False, 0
        self._gone_us.clear()  # noted again when the groups are listed
        self._list()

    def _list(self) -> None:
        self._scheduler.ask(ListChildren(paths.SERVED), self._listed, expected=ANY)

    def _listed(self, reply: Reply) -> None:
        if isinstance(reply, Children):
            self._served, self.is_known = dict.fromkeys(self._shard.of(reply.names)), True
            self._is_refused, self._tries = False, 0
            for group in [name for name in self._unmarked if name in self._served]:
                del self._unmarked[group]
            self._mark()
        elif isinstance(reply, Refused) and reply.refusal not in RACES:
            self._list_later()
        else:
            self._scheduler.write([Create(paths.SERVED)], self._created, expected=ANY)

    def _created(self, reply: Reply) -> None:
        if isinstance(reply, Refused) and reply.refusal not in RACES:
            self._list_later()
        else:
            self._list()

    def _list_later(self) -> None:
        """Let the groups that have a generation be served meanwhile: they need no mark."""
        self._is_refused = self.is_known = True
        self._scheduler.wake("list", self._scheduler.now.mono_us + pause_us(self._tries), self._list)
        self._tries += 1

    def forget(self) -> None:
        """Forget everything, because the leadership is over."""
        self._scheduler.forget()
        self.is_known = self._is_marking = False
        self._unmarked.clear()
        self._until_us.clear()
        self._to_look_at.clear()
        self._gone_us.clear()

    # A group without a generation -----------------------------------------------------------------------------------

    def wait_us(self, group: str, view: GroupView) -> int:
        """Return how long to wait until a group without a generation may be served.

        `view`: what this leader knew of the group's former life; empty if it knew nothing.
        """
        now_us = self._scheduler.now.mono_us
        if group not in self._until_us:
            unknown_us = lease_wait_us(None) if self.was_served(group) else 0
            self._until_us[group] = now_us + (longest_wait_us(view, now_us) if view.created_zxid else unknown_us)
        return max(0, self._until_us[group] - now_us)

    def was_served(self, group: str) -> bool:
        """Whether a group of this name was served before, or may have been."""
        return group in self._served or self._is_refused

    def begin(self, group: str) -> None:
        """Note that the group has its generation and is served from now on."""
        self._until_us.pop(group, None)
        if group not in self._served:
            self._unmarked[group] = None
            self._scheduler.wake_soon("mark", self._mark)

    def _mark(self) -> None:
        if self._is_marking or self._is_refused:
            return
        names = list(islice(self._unmarked, MAX_MARKS_PER_TRANSACTION))
        creates = [Create(paths.served(name)) for name in names]
        names = names[: self._scheduler.fitting(creates)]
        if names:
            self._is_marking = True
            self._scheduler.write(creates[: len(names)], self._marked, names)

    def _marked(self, reply: Reply, names: list[str]) -> None:
        self._is_marking = False
        if isinstance(reply, Done):
            self._note_marked(names)
        elif isinstance(reply, Refused) and reply.refusal is Refusal.NODE_EXISTS and reply.index is not None:
            self._note_marked([names[reply.index]])
        else:  # another client has deleted the parent node
            self._scheduler.wake("mark", self._scheduler.now.mono_us + FIRST_PAUSE_US, self._list)

    def _note_marked(self, names: list[str]) -> None:
        for name in names:
            self._served[name] = None
            self._unmarked.pop(name, None)
        self._mark()

    # A group that is gone -------------------------------------------------------------------------------------------

    def keep(self, groups: Collection[str]) -> None:
        """Keep the marks of these existing groups (a live collection); remove others' after a while."""
        self._present = groups
        self._to_look_at = deque(chain(self._served, filterfalse(self._served.__contains__, self._until_us)))
        self._look()

    def _look(self) -> None:
        """Check whether groups exist, as many as one step allows."""
        while self._to_look_at and self._scheduler.has_time:
            self._scheduler.spend(WORK_OF_A_LOOK)
            group = self._to_look_at.popleft()
            if group in self._present:
                self._gone_us.pop(group, None)
            elif group in self._served:
                self._until_us.setdefault(group, self._scheduler.now.mono_us + lease_wait_us(None))
                self._gone_us.setdefault(group, self._scheduler.now.mono_us + FORGOTTEN_US)
            else:
                self._until_us.pop(group, None)
        if self._to_look_at:
            self._scheduler.wake_soon("look", self._look)
        self._wake_for_next()

    def _wake_for_next(self) -> None:
        if self._gone_us:
            self._scheduler.wake("gone", next(iter(self._gone_us.values())), self._remove_next)

    def _remove_next(self) -> None:
        """Remove the mark that is due, unless its group exists again."""
        if self._gone_us:
            group, _at_us = self._gone_us.popitem(last=False)
            if group not in self._present:
                self._scheduler.write([Delete(paths.served(group))], self._removed, group, expected=ANY)
        self._wake_for_next()

    def _removed(self, reply: Reply, group: str) -> None:
        if isinstance(reply, Refused) and reply.refusal is not Refusal.NO_NODE:
            self._scheduler.note_refused(Delete(paths.served(group)), reply.refusal)
            if group not in self._present:  # otherwise the mark stays, because it is needed again
                self._gone_us[group] = self._scheduler.now.mono_us + FORGOTTEN_US
                self._wake_for_next()
            return
        self._served.pop(group, None)
        if group in self._present:  # it was created again while its mark was being removed
            self._unmarked[group] = None
            self._scheduler.wake_soon("mark", self._mark)
        else:
            self._until_us.pop(group, None)
