"""Ends a pause of starts that is no longer renewed, because `reset-offsets` was killed or lost its connection.

A reset renews its pause with every transaction, by changing `paused_by`. Its later writes fail, because they check the
version of the settings.
"""

from __future__ import annotations

from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Content, Done, Get, Reply, SetContent
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.rebalance.scheduler import PartScheduler
from zkrebalancer.rebalance.view import GroupView

PAUSE_LIMIT_US = 60_000_000  # a reset asks Kafka for 30 s at most between two renewals


class Pause:
    """Watches the pause of one group."""

    def __init__(self, scheduler: PartScheduler, view: GroupView) -> None:
        """Know no pause."""
        self._scheduler = scheduler
        self._view = view
        self._by: str | None = None  # None: starts are not paused
        self._until_us = 0  # kept when the group is read anew

    def look(self) -> None:
        """After the settings were read, wait until the pause is renewed or too old."""
        known = self._view.settings
        if not known.starts_paused:
            self._by = None
            self._scheduler.cancel_wake("pause")
            return
        if known.paused_by != self._by:
            self._by, self._until_us = known.paused_by, self._scheduler.now.mono_us + PAUSE_LIMIT_US
        self._scheduler.wake("pause", self._until_us, self._read)

    def _read(self) -> None:
        self._scheduler.ask(Get(paths.group(self._view.group)), self._end)

    def _end(self, reply: Reply) -> None:
        """End the pause, unless the settings have changed meanwhile: then they are read and checked again."""
        if not isinstance(reply, Content):
            return
        try:
            known = settings.decode(reply.content)
        except NodeContentError:
            return  # logged when it was read; a change makes it readable
        if known.starts_paused and known.paused_by == self._by:
            write = SetContent(paths.group(self._view.group), settings.resumed(reply.content), reply.stat.version)
            self._scheduler.write([write], self._ended)

    def _ended(self, reply: Reply) -> None:
        if isinstance(reply, Done):
            self._scheduler.warn(
                f"starts were paused by a reset that has made no progress for {PAUSE_LIMIT_US // 10**6} s"
            )
