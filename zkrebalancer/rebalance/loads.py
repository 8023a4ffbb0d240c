"""What a group's partitions weigh: lag and rates, and in which racks they are, for strategies that look at it.

They are read at an interval, and not when a plan is needed: nobody waits for Kafka while a partition has no owner. A
rate needs two readings. Until it is known, as after a change of leaders, nothing is moved for the sake of balance: what
a new leader does not know would look like an even load. Where the group has weights, rates that are expected at this
time of the week, these count instead of measured ones, from the first reading on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from zkrebalancer.assignment.columns import Offsets
from zkrebalancer.assignment.loads import Deferred, Rates, expected_or, lag_of, rate_of
from zkrebalancer.assignment.model import Racks
from zkrebalancer.rebalance.effects import LoadsRead, ReadLoads

if TYPE_CHECKING:
    from zkrebalancer.rebalance.group import Group

LOAD_INTERVAL_US = 60_000_000
FIRST_INTERVAL_US = 5_000_000  # to the second reading
MAX_SHARE_OF_TIME = 4  # a reading that takes long is followed by a rest that is so many times as long


class Loads:
    """Lag and rates of one group."""

    def __init__(self, group: Group) -> None:
        """Know nothing yet."""
        self._group = group
        self._is_reading = False
        self._asked_us = 0
        self._taken_us = 0
        self._ends: Mapping[str, Offsets] = {}
        self._error: str | None = None
        self._refused: str | None = None
        self.lag: Mapping[str, Offsets] = {}
        self.rate: Mapping[str, Rates] = {}
        self.racks = Racks()

    @property
    def are_known(self) -> bool:
        """Whether there are rates: lag alone says little about what is to come."""
        return bool(self.rate)

    @property
    def are_wanted(self) -> bool:
        """Whether the group's strategy looks at them, and somebody can read them."""
        return self._group.view.settings.strategy in self._group.leadership.weighing

    def want(self) -> None:
        """A plan is being made: begin to read, if nobody does yet."""
        planned = self._group.desk.is_awake_planned(self._group.name, "loads")
        if self.are_wanted and not self._is_reading and not planned:
            self._read()

    def _read(self) -> None:
        group = self._group
        if not self.are_wanted or not group.planning.counts:
            return  # the next plan begins anew
        self._is_reading, self._asked_us = True, group.desk.now.mono_us
        group.desk.effects.append(ReadLoads(group.name, dict(group.planning.counts)))

    def take(self, read: LoadsRead) -> None:
        """Take what was read, and plan the next reading."""
        desk, now_us = self._group.desk, self._group.desk.now.mono_us
        self._is_reading = False
        interval_us = LOAD_INTERVAL_US
        if read.error is not None:
            if read.error != self._error:  # it is tried again and again, but said once
                desk.warn(f"group {self._group.name}: lag and rates are not known: {read.error}")
        else:
            self._say_refused(read.refused)
            was_known = self.are_known
            self._weigh(read)
            if self.are_known and not was_known:
                self._group.request("loads-known")
            interval_us = LOAD_INTERVAL_US if self.are_known else FIRST_INTERVAL_US
        self._error = read.error
        rest_us = MAX_SHARE_OF_TIME * (now_us - self._asked_us)
        desk.wake(self._group.name, "loads", now_us + max(interval_us, rest_us), self._read)

    def _say_refused(self, refused: str | None) -> None:
        """Say once that weights cannot be used; rates are measured instead."""
        if refused is not None and refused != self._refused:
            self._group.desk.warn(f"group {self._group.name}: its weights are not used: {refused}")
        self._refused = refused

    def _weigh(self, read: LoadsRead) -> None:
        elapsed_s = (read.taken_us - self._taken_us) / 1e6
        known = self._ends if elapsed_s > 0 else {}
        ends = read.ends

        def rate(topic: str) -> Rates:
            measured = rate_of(known.get(topic, ends[topic][:0]), ends[topic], elapsed_s)
            return expected_or(measured, read.expected.get(topic, ()))

        self.lag = Deferred(list(ends), lambda topic: lag_of(ends[topic], read.committed[topic]))
        self.rate = Deferred([topic for topic in ends if topic in known or topic in read.expected], rate)
        self._ends, self._taken_us, self.racks = read.ends, read.taken_us, read.racks
