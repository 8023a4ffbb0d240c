"""When a group is read again although no watch has fired: ZooKeeper withholds the event from whom may not read then.

After that no watch stands, so only another reading shows what changes. A group that never comes to rest needs it too:
then what is watched is read anew, and its plan and time limits go on.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Content, Get, Reply
from zkrebalancer.rebalance.leadership import Leadership
from zkrebalancer.rebalance.scheduler import PartScheduler
from zkrebalancer.rebalance.view import GroupView

RECONCILE_INTERVAL_US = 300_000_000  # how often a group is read again from ZooKeeper, at least
RECONCILE_SPREAD_US = 75_000_000
RECONCILIATION = "reconciliation"  # the trigger
MAX_LOOK_PAUSE_US = 3_600_000_000


class Reconciling:
    """The timers of one group; a reading of the group drops them."""

    def __init__(
        self,
        name: str,
        scheduler: PartScheduler,
        leadership: Leadership,
        is_in_use: Callable[[], bool],
        list_ids: Callable[[], None],
    ) -> None:
        """Set no timer yet. `is_in_use`: whether the group has members, or had some just now."""
        self._name = name
        self._scheduler = scheduler
        self._queue = leadership.groups_to_load
        self._is_in_use, self._list_ids = is_in_use, list_ids

    def expect(self) -> None:
        """Read the group one interval after it was read before, whatever happens until then."""
        if not self._scheduler.has_timer("reconcile"):
            at_us = self._scheduler.now.mono_us + self._pause_us()
            self._scheduler.wake("reconcile", at_us, self._queue.add, self._name, RECONCILIATION)

    def read_watched(
        self, view: GroupView, settings_read: Callable[[Reply], None], read_members: Callable[[], None]
    ) -> None:
        """Read what is watched, as if each watch had fired."""
        self.expect()
        self._scheduler.ask(Get(paths.group(self._name), watch=True), self._settings_read, view, settings_read)
        read_members()

    def _settings_read(self, reply: Reply, view: GroupView, settings_read: Callable[[Reply], None]) -> None:
        """Leave out what is known: settings that are written unchanged request a rebalance."""
        known = view.created_zxid, view.settings_version
        if not isinstance(reply, Content) or (reply.stat.created_zxid, reply.stat.version) != known:
            settings_read(reply)

    def _pause_us(self) -> int:
        """Return another one for each group, so that groups are not all read again at once."""
        now_us = self._scheduler.now.mono_us
        return RECONCILE_INTERVAL_US - crc32(f"{self._name}/{now_us}".encode()) % RECONCILE_SPREAD_US

    def rest(self, *, is_found_empty: bool) -> None:
        """Read a group again, unless the last reading found it empty; then only list its members, ever more rarely."""
        if self._is_in_use() or not is_found_empty:
            self.expect()
        else:
            self._scheduler.cancel_wake("reconcile")
            self._look_later(self._pause_us())

    def _look_later(self, pause_us: int) -> None:
        self._scheduler.wake("look", self._scheduler.now.mono_us + pause_us, self._look, pause_us)

    def _look(self, pause_us: int) -> None:
        if self._is_in_use():
            self.expect()
        else:
            self._look_later(min(2 * pause_us, MAX_LOOK_PAUSE_US))
            self._list_ids()
