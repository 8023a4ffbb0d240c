"""Requests about the offsets of a group, handled one after the other, in the order in which they were allowed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

import gevent

from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.kafka_protocol.codec import Fields
from zkrebalancer.runtime import clock

MAX_WAITING = 10_000  # requests of one group
LONGEST_WAIT_S = 5.0  # in line: whoever asked gives up after 8 s (`LONGEST_HOLD_S`), and the answer takes time, too
Outcome = Fields | ErrorCode
WhenAnswered = Callable[[Outcome], None]
_Request = tuple[Callable[[], Outcome], WhenAnswered, int]


class OffsetStore(Protocol):
    """The store of the offsets of a gateway's groups."""

    def send(self, group: str, name: str, fields: Fields, when_answered: WhenAnswered) -> None:
        """Handle a request (`name` and `fields` are Kafka's); `when_answered` gets the answer's fields, or an error."""

    def coordinator_error(self, group: str) -> ErrorCode:
        """Return why the group's offsets cannot be stored; NONE if they can. May wait."""

    def may_be_elsewhere(self, group: str) -> bool:
        """Whether the group has, or may have, members that another coordinator serves. May wait."""

    def was_elsewhere(self, group: str) -> bool:
        """Whether the group had such members a moment ago."""

    def without_members(self, is_served: Callable[[str], bool]) -> Collection[str]:
        """Return groups that have offsets and no member that another coordinator serves; may wait.

        Only those for which `is_served`, which must not wait. Raises OSError, ZooKeeperUnavailableError.
        """

    def watch(self) -> None:
        """Keep `was_elsewhere` up to date, for ever; a greenlet of its own."""


class Lanes:
    """One lane for each group that has requests."""

    def __init__(self) -> None:
        """Start without requests."""
        self._lanes: dict[str, deque[_Request]] = {}

    def send(self, group: str, handle: Callable[[], Outcome], when_answered: WhenAnswered) -> None:
        """Call `handle`, which may wait, after the earlier ones of its group; `when_answered` gets what it returns.

        After LONGEST_WAIT_S it gets an error instead, without a call. Else, if clients ask for more than can be told in
        time, all answers are for those that have given up, and they ask again, for ever.
        """
        until_us = clock.steady_us() + int(LONGEST_WAIT_S * 1e6)
        lane = self._lanes.get(group)
        if lane is not None and len(lane) >= MAX_WAITING:
            when_answered(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        if lane is None:
            self._lanes[group] = deque([(handle, when_answered, until_us)])
            gevent.spawn(self._work, group)
        else:
            lane.append((handle, when_answered, until_us))

    def _work(self, group: str) -> None:
        """Handle waiting requests. If a bug makes one fail, its client gets an error, and the next ones continue."""
        lane = self._lanes[group]
        try:
            while lane:
                handle, when_answered, until_us = lane.popleft()
                outcome: Outcome = ErrorCode.UNKNOWN_SERVER_ERROR
                try:
                    is_late = clock.steady_us() > until_us
                    outcome = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_late else handle()
                finally:
                    when_answered(outcome)
        finally:
            if lane:
                gevent.spawn(self._work, group)
            else:
                del self._lanes[group]
