"""The lag of a partition."""

from __future__ import annotations

from typing import cast

import gevent
import pytest
from click.testing import CliRunner

from zkrebalancer.cli.groups import groups, lags
from zkrebalancer.observe import inspection
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.operations import group_lag, lag_watch
from zkrebalancer.operations.group_lag import PartitionLag, read_lag_times
from zkrebalancer.operations.lag_verdict import Verdict
from zkrebalancer.operations.lag_watch import LagWatch
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.rebalance.view import GroupView
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.zk import BlockingZk


@pytest.mark.parametrize(
    ("known", "lag"),
    [
        (PartitionLag(10, None, 15), 5),
        (PartitionLag(10, 12, 15), 3),
        (PartitionLag(None, 12, 15), 3),
        (PartitionLag(20, None, 15), 0),
        (PartitionLag(None, None, 15), None),
        (PartitionLag(10, 10, None), None),
    ],
)
def test_lag_is_counted_from_the_higher_offset(known: PartitionLag, lag: int | None) -> None:
    assert known.lag == lag


def test_lag_times_are_those_of_the_first_unread_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `read_lag_times`, subtract without a limit; return 0 for what is unknown; ask for partitions without lag."""
    asked: list[object] = []

    def read(kafka: object, unread: dict[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        asked.append((kafka, unread))
        return {("t", 0): 7_500, ("t", 1): None, ("t", 2): 12_000}

    monkeypatch.setattr(group_lag, "first_unread_ms", read)
    behind, level, unknown = PartitionLag(10, 12, 15), PartitionLag(15, None, 15), PartitionLag(None, None, 15)
    lag = {("t", number): behind for number in range(4)} | {("t", 4): level, ("t", 5): unknown}
    kafka = {"bootstrap.servers": "b:1"}
    times = read_lag_times(lag, kafka, 10_000)
    assert list(times.values()) == [2.5, 0.0, 0.0, None, 0.0, None]  # the clock of a producer may be ahead
    assert asked == [(kafka, {("t", number): 12 for number in range(4)})]
    assert read_lag_times({("t", 4): level}, kafka, 10_000) == {("t", 4): 0.0}
    assert len(asked) == 1


@pytest.mark.parametrize("option", ["--lag-time", "--verdict"])
def test_lag_time_and_verdicts_need_kafka(option: str) -> None:
    for arguments in ([option], ["--offsets", option]):
        result = CliRunner().invoke(groups, ["describe", "g", "--zookeeper", "z:1", *arguments])
        assert (result.exit_code, f"{option} needs --offsets and --bootstrap" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "arguments", [["--verdict"], ["--bootstrap", "b:1"], ["--verdict", "--bootstrap", "b:1", "--watch"]]
)
def test_a_list_with_verdicts_needs_kafka_and_time(arguments: list[str]) -> None:
    result = CliRunner().invoke(groups, ["list", "--zookeeper", "z:1", *arguments])
    assert (result.exit_code, "--verdict" in result.stderr) == (2, True)


def reading_of(name: str, offset: int, end: int) -> tuple[GroupReport, dict[TopicPartition, PartitionLag]]:
    return GroupReport(name, GroupView(name, {}), []), {("t", 0): PartitionLag(offset, None, end)}


def test_verdicts_follow_from_readings_in_the_window_and_from_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `LagWatch.note`, keep readings for ever; in `LagWatch.verdicts`, do not look for records."""
    found: dict[TopicPartition, int | None] = {("t", 0): -60_000}
    monkeypatch.setattr(lag_watch, "first_unread_ms", lambda _kafka, _unread: found)
    watch = LagWatch(20)
    watch.note(*reading_of("g", 90, 100), 0)
    assert watch.verdicts({}) == {("t", 0): Verdict.STOP}
    watch.note(*reading_of("g", 20, 100), 1_000)
    assert watch.verdicts({}) == {("t", 0): Verdict.REWIND}
    watch.note(*reading_of("g", 20, 100), 15_000)
    watch.note(*reading_of("g", 20, 100), 30_000)  # the first reading no longer counts
    assert watch.verdicts({}) == {("t", 0): Verdict.STOP}
    found["t", 0] = None
    assert watch.verdicts({}) == {("t", 0): Verdict.OK}


@pytest.mark.parametrize(
    ("what", "first_ms", "is_owned", "expected"),
    [
        ("a record after a marker, just now", 99_900, True, Verdict.OK),
        ("the same, while nobody owns it for a moment", 99_900, False, Verdict.OK),
        ("almost as old as the window", 80_001, True, Verdict.OK),
        ("as old as the window", 80_000, True, Verdict.STALL),
        ("as old as the window, and nobody owns it", 80_000, False, Verdict.STOP),
        ("written after the reading", 100_500, True, Verdict.OK),
        ("a producer's clock that is far ahead", 900_000, True, Verdict.STALL),
    ],
)
def test_a_record_has_the_window_to_be_read(
    monkeypatch: pytest.MonkeyPatch, what: str, first_ms: int, is_owned: bool, expected: Verdict
) -> None:
    """In `LagWatch.verdicts`, ignore the age of the first unread record: a marker before it looks like a stall."""
    monkeypatch.setattr(lag_watch, "first_unread_ms", lambda _kafka, _unread: {("t", 0): first_ms})
    monkeypatch.setattr(GroupReport, "owned", lambda _self: {("t", 0): "c"} if is_owned else {})
    watch = LagWatch(20)
    for at_ms, end in ((80_000, 6), (90_000, 6), (100_000, 8)):
        watch.note(*reading_of("g", 5, end), at_ms)
    assert watch.verdicts({}) == {("t", 0): expected}, what


def test_a_list_names_the_worst_verdict_of_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = {name: reading_of(name, *offsets) for name, offsets in {"a": (5, 5), "b": (5, 9)}.items()}
    monkeypatch.setattr(inspection, "read_offsets", lambda _zk, _report: None)
    monkeypatch.setattr(group_lag, "read_lag", lambda report, _kafka: reports[report.name][1])
    monkeypatch.setattr(lag_watch, "first_unread_ms", lambda _kafka, _unread: {("t", 0): 1})
    monkeypatch.setattr(gevent, "sleep", lambda _s: None)
    zk = cast("BlockingZk", None)
    assert lags.read_worst(zk, {}, [report for report, _lag in reports.values()], 10) == {"a": "OK", "b": "STOP"}
    with pytest.raises(lags.TooManyGroupsError, match="at most 200 groups, there are 201"):
        lags.read_worst(zk, {}, [reports["a"][0]] * 201, 10)


def test_the_newest_reading_before_the_window_counts_and_partitions_that_are_gone_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `LagWatch.note`, drop every reading before the window, or keep partitions that are gone."""
    monkeypatch.setattr(lag_watch, "first_unread_ms", lambda _kafka, _unread: {})
    watch = LagWatch(20)
    watch.note(*reading_of("g", 90, 100), 0)
    watch.note(*reading_of("g", 20, 100), 19_000)
    watch.note(*reading_of("g", 20, 100), 21_000)  # the window begins at 1 s: what was stored then is the first reading
    assert watch.verdicts({}) == {("t", 0): Verdict.REWIND}
    watch.note(reading_of("g", 20, 100)[0], {}, 22_000)
    assert watch.verdicts({}) == {}


@pytest.mark.parametrize("jump_ms", [86_400_000, -86_400_000])
def test_a_window_is_as_long_as_it_is_whatever_the_wall_clock_does(
    monkeypatch: pytest.MonkeyPatch, jump_ms: int
) -> None:
    """In `lags.read_worst`, note the wall clock: after a jump back, the readings span no time."""
    walls_ms, now_us = iter([10**12, 10**12 + jump_ms, 10**12 + jump_ms]), iter([0, 8_000_000, 16_000_000])
    monkeypatch.setattr(clock, "epoch_ms", lambda: next(walls_ms))
    monkeypatch.setattr(clock, "steady_us", lambda: next(now_us))
    monkeypatch.setattr(gevent, "sleep", lambda _seconds: None)
    monkeypatch.setattr(inspection, "read_offsets", lambda _zk, _report: None)
    monkeypatch.setattr(GroupReport, "owned", lambda _self: {("t", 0): "c"})
    report, lag = reading_of("g", 5, 9)
    monkeypatch.setattr(group_lag, "read_lag", lambda _report, _kafka: lag)
    monkeypatch.setattr(lag_watch, "first_unread_ms", lambda _kafka, _unread: {("t", 0): 0})
    assert lags.read_worst(cast("BlockingZk", None), {}, [report], 16) == {"g": Verdict.STALL.value}
