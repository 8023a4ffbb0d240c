"""Reports once, as an event, who changed a group's settings, or asked for something by writing them."""

from __future__ import annotations

from zkrebalancer.protocol import last_change
from zkrebalancer.protocol.calls import Content
from zkrebalancer.protocol.last_change import LastChange
from zkrebalancer.rebalance.deletions import Deletions
from zkrebalancer.rebalance.scheduler import PartScheduler
from zkrebalancer.rebalance.view import GroupView


class Authors:
    """Watches the last change of one group."""

    def __init__(self, scheduler: PartScheduler, view: GroupView, deletions: Deletions) -> None:
        """Start without a known change."""
        self._deletions = deletions
        self._created_zxid = 0  # of the group's node when it was last read
        self._scheduler = scheduler
        self._view = view
        self._is_first = True
        self._known: LastChange | None = None  # the last one that was reported, or that is older than this leadership

    def adopt(self, *, is_new_group: bool) -> None:
        """After the group was read: a change from before this leadership is not reported, as a former leader did that.

        A group that was created again between two readings was deleted before.
        """
        if self._created_zxid not in {0, self._view.created_zxid}:
            self._deletions.report(self._view.group, self._created_zxid)
        self._created_zxid = self._view.created_zxid
        if self._is_first and not is_new_group:
            self._known = self._view.last_change
        self._is_first = False
        self._report()

    def note(self, read: Content) -> LastChange | None:
        """After the settings were read again, report a change that is new; return who wrote them."""
        self._view.last_change = last_change.read(read.content, read.stat.version)
        self._report()
        return self._view.last_change

    def _report(self) -> None:
        change = self._view.last_change
        if change is None or change == self._known:
            return
        self._known = change
        named = (self._view.generation, None)
        self._scheduler.emit("operator_changed", *named, by=change.by, at_ms=change.at_ms, what=change.what)
