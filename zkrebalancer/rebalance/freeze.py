"""Ends a freeze at the time that its operator has set.

The leader's clock decides. While it leads, it measures the time that is left with its monotonic clock, so that a step
of the wall clock changes nothing; the next leader looks at its own wall clock.
"""

from __future__ import annotations

from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Content, Done, Get, Reply, SetContent
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.rebalance.scheduler import PartScheduler
from zkrebalancer.rebalance.view import GroupView


class Freeze:
    """Watches the freeze of one group."""

    def __init__(self, scheduler: PartScheduler, view: GroupView) -> None:
        """Know no freeze."""
        self._scheduler = scheduler
        self._view = view
        self._until_ms: int | None = None  # None: no freeze that ends
        self._until_us = 0  # the same on the monotonic clock, kept when the group is read anew

    def look(self) -> None:
        """After the settings were read, wait until the freeze is over."""
        known, now = self._view.settings, self._scheduler.now
        if not known.thaws:
            self._until_ms = None
            self._scheduler.cancel_wake("freeze")
            return
        if known.frozen_until_ms != self._until_ms:
            left_ms = max(0, known.frozen_until_ms - now.epoch_ms)
            self._until_ms, self._until_us = known.frozen_until_ms, now.mono_us + left_ms * 1_000
        self._scheduler.wake("freeze", self._until_us, self._read)

    def _read(self) -> None:
        self._scheduler.ask(Get(paths.group(self._view.group)), self._end)

    def _end(self, reply: Reply) -> None:
        """End the freeze, unless the settings have changed meanwhile: then they are read and checked again."""
        if not isinstance(reply, Content):
            return
        try:
            known = settings.decode(reply.content)
        except NodeContentError:
            return  # logged when it was read; a change makes it readable
        if known.thaws and known.frozen_until_ms == self._until_ms:
            write = SetContent(paths.group(self._view.group), settings.thawed(reply.content), reply.stat.version)
            self._scheduler.write([write], self._ended)

    def _ended(self, reply: Reply) -> None:
        if isinstance(reply, Done):
            self._scheduler.warn("the freeze is over, as it was set to be")
