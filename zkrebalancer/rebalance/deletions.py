"""Reports, as an event, that a group was deleted, and by whom, if the deletion names its user."""

from __future__ import annotations

from zkrebalancer.protocol import last_change, paths
from zkrebalancer.protocol.calls import Content, Get, Reply
from zkrebalancer.rebalance.effects import EventField
from zkrebalancer.rebalance.scheduler import ANY, Scheduler

OWNER = "/deleted-groups"  # no group has such a name


class Deletions:
    """Looks at what outlives a deleted group: the mark of the groups that were served."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Report for groups of this coordinator."""
        self._scheduler = scheduler

    def report(self, group: str, created_zxid: int) -> None:
        """Report that the group which this transaction has created is gone; 0: the group was never read."""
        call = Get(paths.served(group))
        part = self._scheduler.part(OWNER)
        part.ask(call, self._read, group, created_zxid, expected=ANY, whatever_comes=True)

    def _read(self, reply: Reply, group: str, created_zxid: int) -> None:
        change = last_change.read_deletion(reply.content, created_zxid) if isinstance(reply, Content) else None
        who: dict[str, EventField] = {} if change is None else {"by": change.by, "at_ms": change.at_ms}
        self._scheduler.part(OWNER, group).emit("group_deleted", None, None, **who)
