"""Compares a list of names with the known ones, some per step, because ten thousand take milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import islice

from zkrebalancer.rebalance.scheduler import PartScheduler

NAMES_PER_SLICE = 500
WORK_OF_A_SLICE = 300  # units of `scheduler.MAX_WORK_PER_STEP`
_WAKE = "/listing"


class Listing:
    """One comparison at a time; a new list replaces the former one, even if that was compared only in part."""

    def __init__(
        self,
        scheduler: PartScheduler,
        seen: Callable[[list[str]], None],
        missing: Callable[[list[str]], None],
        compared: Callable[[], None] | None = None,
    ) -> None:
        """`seen(names)` gets all listed names, `missing(names)` known ones that are not listed; then `compared()`."""
        self._scheduler = scheduler
        self._seen = seen
        self._missing = missing
        self._compared = compared
        self._known: Collection[str] = ()
        self._listed: set[str] = set()
        self._to_see: Iterator[str] = iter(())
        self._to_miss: Iterator[str] | None = None

    def compare(self, names: tuple[str, ...], known: Collection[str]) -> None:
        """Begin, and do as much as this step allows; the known names may change meanwhile."""
        self._known = known
        self._listed = set()
        self._to_see, self._to_miss = iter(names), None
        self._go_on()

    def stop(self) -> None:
        """Stop comparing, because the list is out of date."""
        self._scheduler.cancel_wake(_WAKE)

    def _go_on(self) -> None:
        while self._compare_slice():
            if not self._scheduler.has_time:
                self._scheduler.wake_soon(_WAKE, self._go_on)
                return
        self.stop()
        if self._compared is not None:
            self._compared()

    def _compare_slice(self) -> bool:
        """Compare some names; return whether there may be more."""
        self._scheduler.spend(WORK_OF_A_SLICE)
        if names := list(islice(self._to_see, NAMES_PER_SLICE)):
            self._listed.update(names)
            self._seen(names)
            return True
        if self._to_miss is None:
            self._to_miss = iter(tuple(self._known))
        known = list(islice(self._to_miss, NAMES_PER_SLICE))
        if missing := [name for name in known if name not in self._listed]:
            self._missing(missing)
        return bool(known)
