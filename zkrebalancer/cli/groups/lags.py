"""Lag and its verdicts: columns of `groups describe --offsets --bootstrap`, and the worst one for `groups list`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click
import gevent

from zkrebalancer.observe import inspection
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.operations import group_lag
from zkrebalancer.operations.group_lag import PartitionLag
from zkrebalancer.operations.lag_verdict import Verdict, worst
from zkrebalancer.operations.lag_watch import DEFAULT_WINDOW_S, MIN_WINDOW_S, READINGS, LagWatch
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.zk import BlockingZk

MAX_GROUPS = 200  # whose lag one command reads
_BOOT_MS = clock.boot_ms()
verdict_option = click.option(
    "--verdict",
    "window_s",
    metavar="[S]",
    type=click.IntRange(min=MIN_WINDOW_S, max=3_600),
    is_flag=False,
    flag_value=DEFAULT_WINDOW_S,
    help="With --bootstrap, read several times over S seconds, and judge each lag: OK, WARN, STALL, STOP or REWIND."
    f"  [default: {DEFAULT_WINDOW_S}]",
)


class TooManyGroupsError(RebalancerError):
    """Reading the lag of all of them would take too long, and too much of Kafka."""


@dataclass(frozen=True, slots=True)
class Lags:
    """The lag of each partition; as time, in seconds, and the verdicts, if they were asked for. None: unknown."""

    lag: Mapping[TopicPartition, PartitionLag]
    times: Mapping[TopicPartition, float | None] | None = None
    verdicts: Mapping[TopicPartition, Verdict | None] | None = None

    def of(self, partition: TopicPartition) -> dict[str, object]:
        """Return what was asked for beyond the lag itself."""
        times = {} if self.times is None else {"lag_s": self.times[partition]}
        verdict = None if self.verdicts is None else self.verdicts[partition]
        judged = {} if self.verdicts is None else {"verdict": None if verdict is None else verdict.value}
        return {**times, **judged}

    @property
    def all_times(self) -> list[float | None] | None:
        """The lag of each partition as time, None if it was not asked for."""
        return None if self.times is None else list(self.times.values())

    @property
    def worst(self) -> str | None:
        """The worst verdict of all partitions."""
        found = worst((self.verdicts or {}).values())
        return None if found is None else found.value


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for: lag as time; verdicts by readings over `window_s` seconds, None for none."""

    with_times: bool
    window_s: int | None
    is_watched: bool


class LagReader:
    """Reads the lag of one group, again and again if it is watched."""

    def __init__(self, zk: BlockingZk, kafka: Mapping[str, str], wanted: Wanted) -> None:
        """Start without readings; verdicts of a watched group are shown as soon as they are known."""
        self._zk, self._kafka, self._wanted = zk, kafka, wanted
        self._seen = None if wanted.window_s is None else LagWatch(wanted.window_s)

    def read(self, report: GroupReport) -> Lags:
        """Read the lag for a report that has its offsets; raises KafkaOffsetsError, and what reading a group raises."""
        window_s = self._wanted.window_s
        if self._seen is not None and window_s is not None and not self._wanted.is_watched:
            for _ in range(READINGS - 1):
                earlier = inspection.read_group(self._zk, report.name)
                inspection.read_offsets(self._zk, earlier)
                self._seen.note(earlier, group_lag.read_lag(earlier, self._kafka), _steady_ms())
                gevent.sleep(window_s / (READINGS - 1))
            inspection.read_offsets(self._zk, report)
        lag = group_lag.read_lag(report, self._kafka)
        times = group_lag.read_lag_times(lag, self._kafka, clock.epoch_ms()) if self._wanted.with_times else None
        if self._seen is None:
            return Lags(lag, times)
        self._seen.note(report, lag, _steady_ms())
        return Lags(lag, times, self._seen.verdicts(self._kafka))


def read_worst(
    zk: BlockingZk, kafka: Mapping[str, str], reports: Sequence[GroupReport], window_s: int
) -> dict[str, str | None]:
    """Return group -> its worst verdict, None if none is known; raises as `LagReader.read`, TooManyGroupsError."""
    if len(reports) > MAX_GROUPS:
        raise TooManyGroupsError(f"--verdict reads at most {MAX_GROUPS} groups, there are {len(reports)}")
    seen = {report.name: LagWatch(window_s) for report in reports}
    for number in range(READINGS):
        for report in reports:
            inspection.read_offsets(zk, report)
            seen[report.name].note(report, group_lag.read_lag(report, kafka), _steady_ms())
        if number < READINGS - 1:
            gevent.sleep(window_s / (READINGS - 1))
    found = {name: worst(watch.verdicts(kafka).values()) for name, watch in seen.items()}
    return {name: None if verdict is None else verdict.value for name, verdict in found.items()}


def _steady_ms() -> int:
    """Return the time since the epoch by a clock that never jumps: a window would last as long as the jump."""
    return _BOOT_MS + clock.steady_us() // 1_000
