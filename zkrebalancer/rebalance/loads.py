"""Lag, rates and racks of a group's partitions, for the strategies that weigh them.

They are read at an interval, not when a plan is needed, so that no plan waits for Kafka while a partition has no owner.
A rate needs two readings. Until rates are known, for example after a failover, nothing moves for balance alone, because
unknown loads would look even. If the group has weights (the rates expected at this time of the week), they replace
measured rates from the first reading on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from zkrebalancer.assignment.columns import Offsets
from zkrebalancer.assignment.loads import Deferred, Rates, expected_or, lag_of, rate_of
from zkrebalancer.assignment.model import Problem, Racks
from zkrebalancer.rebalance import facts
from zkrebalancer.rebalance.effects import LoadsRead, ReadLoads
from zkrebalancer.rebalance.scheduler import PartScheduler
from zkrebalancer.rebalance.view import GroupView

LOAD_INTERVAL_US = 60_000_000
FIRST_INTERVAL_US = 5_000_000  # to the second reading
MAX_SHARE_OF_TIME = 4  # after a slow reading, the pause is at least this many times as long


class Loads:
    """Lag and rates of one group."""

    def __init__(
        self, scheduler: PartScheduler, view: GroupView, weighing: frozenset[str], report: Callable[[facts.Fact], None]
    ) -> None:
        """Know nothing yet. `weighing`: strategies for which `ReadLoads` will be performed."""
        self._scheduler = scheduler
        self._view = view
        self._weighing = weighing
        self._report = report
        self._counts: Mapping[str, int] = {}  # topic of the last problem -> number of partitions
        self._is_reading = False
        self._asked_us = 0
        self._read_us = 0
        self._ends: Mapping[str, Offsets] = {}
        self._error: str | None = None
        self._refused: str | None = None
        self.lag: Mapping[str, Offsets] = {}
        self.rate: Mapping[str, Rates] = {}
        self.racks = Racks()

    @property
    def are_known(self) -> bool:
        """Whether there are rates; lag alone says little about future load."""
        return bool(self.rate)

    def weigh(self, problem: Problem) -> Problem:
        """Add the known loads to the problem of a new plan; start reading, unless that is in progress."""
        self._counts = problem.topics
        if not self._is_reading and not self._scheduler.has_timer("loads"):
            self._read()
        options = dict(problem.options)
        if not self.are_known:
            options["max_moves_per_rebalance"] = 0
        return replace(problem, lag=self.lag, rate=self.rate, racks=self.racks, options=options)

    def _read(self) -> None:
        if self._view.settings.strategy not in self._weighing or not self._counts:
            return  # the next plan starts again
        self._is_reading, self._asked_us = True, self._scheduler.now.mono_us
        self._scheduler.do(ReadLoads(self._view.group, dict(self._counts)))

    def handle(self, read: LoadsRead) -> None:
        """Keep what was read, and schedule the next reading."""
        now_us = self._scheduler.now.mono_us
        self._is_reading = False
        interval_us = LOAD_INTERVAL_US
        if read.error is not None:
            if read.error != self._error:  # reading is retried, but an error is logged once
                self._scheduler.warn(f"lag and rates are not known: {read.error}")
        else:
            self._warn_of_refused(read.refused)
            was_known = self.are_known
            self._keep(read)
            if self.are_known and not was_known:
                self._report(facts.Changed("loads-known"))
            interval_us = LOAD_INTERVAL_US if self.are_known else FIRST_INTERVAL_US
        self._error = read.error
        rest_us = MAX_SHARE_OF_TIME * (now_us - self._asked_us)
        self._scheduler.wake("loads", now_us + max(interval_us, rest_us), self._read)

    def _warn_of_refused(self, refused: str | None) -> None:
        """Log once that weights cannot be used; rates are measured instead."""
        if refused is not None and refused != self._refused:
            self._scheduler.warn(f"its weights are not used: {refused}")
        self._refused = refused

    def _keep(self, read: LoadsRead) -> None:
        elapsed_s = (read.taken_us - self._read_us) / 1e6
        known = self._ends if elapsed_s > 0 else {}
        ends = read.ends

        def rate(topic: str) -> Rates:
            measured = rate_of(known.get(topic, ends[topic][:0]), ends[topic], elapsed_s)
            return expected_or(measured, read.expected.get(topic, ()))

        self.lag = Deferred(list(ends), lambda topic: lag_of(ends[topic], read.committed[topic]))
        self.rate = Deferred([topic for topic in ends if topic in known or topic in read.expected], rate)
        self._ends, self._read_us, self.racks = read.ends, read.taken_us, read.racks
