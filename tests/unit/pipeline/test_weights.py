from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.weights import (
    SAME_AS_NOW,
    TooLittleHistoryError,
    back_test,
    history,
    learn,
)
from zkrebalancer.protocol.weights import ALWAYS, DAY, HOUR_S

FIRST_HOUR = 1_000 * DAY  # of the epoch
COLUMNS = "kind string, group string, ts_us long, topic string, partition int, first_offset long, last_offset long"
HalfHours = Callable[[int, int], int]  # partition and hour -> records in each half of it


def events(spark: SparkSession, hours: int, records: HalfHours, kind: str = "produced", group: str = "g") -> DataFrame:
    """Two partitions with two events an hour, and one more event in the hours before and after, which are not whole."""
    rows = []
    for partition in (0, 1):
        for half in range(-1, 2 * hours + 1):
            count = records(partition, half // 2)
            ts_us = (2 * FIRST_HOUR + half) * HOUR_S * 500_000 + 1
            if count:
                rows.append((kind, group, ts_us, "t", partition, 100, 99 + count))
    return spark.createDataFrame(rows, COLUMNS)


def by_day(partition: int, hour: int) -> int:
    """Partition 0 is busy in the evening, partition 1 always alike."""
    return 3_600 if partition == 0 and hour % DAY >= 18 else 900


def test_only_whole_hours_count_and_an_hour_without_records_is_zero(spark: SparkSession) -> None:
    past = history(events(spark, 5, lambda partition, hour: 0 if (partition, hour) == (1, 2) else 1_800))
    assert (past.first, past.cut, past.last) == (FIRST_HOUR, FIRST_HOUR + 4, FIRST_HOUR + 5)
    rates = {(row["partition"], row["hour"] - FIRST_HOUR): row["rate"] for row in past.rates.collect()}
    assert rates == {(p, h): 0.0 if (p, h) == (1, 2) else 1.0 for p in (0, 1) for h in range(5)}


def test_a_daily_rhythm_is_found_and_beats_same_as_now(spark: SparkSession) -> None:
    past = history(events(spark, 4 * DAY, by_day))
    errors = back_test(past)
    assert [error.model for error in errors] == ["hour of the day", "mean", SAME_AS_NOW]
    assert errors[0].mean_per_s == 0
    assert errors[-1].mean_per_s == pytest.approx(2 * 1.5 / (2 * DAY))  # wrong twice a day, in one of two partitions
    chosen, weights = learn(past, errors)
    assert (chosen.slot_count, weights.slot_count) == (DAY, DAY)
    assert weights.at((FIRST_HOUR + 20) * HOUR_S) == {"t": [2.0, 0.5]}
    assert weights.at((FIRST_HOUR + 2) * HOUR_S) == {"t": [0.5, 0.5]}


def test_a_short_history_has_no_rhythm_and_same_as_now_may_win(spark: SparkSession) -> None:
    errors = back_test(history(events(spark, 8, lambda _partition, hour: 100 if hour < 4 else 200)))
    assert [error.slot_count for error in errors] == [ALWAYS, None]
    assert errors[0].mean_per_s > errors[1].mean_per_s == 0


def test_where_nothing_tells_what_was_produced_a_groups_deliveries_count(spark: SparkSession) -> None:
    of_two = events(spark, 5, lambda *_: 1_800, "delivered").unionByName(
        events(spark, 5, lambda *_: 900, "delivered", group="other")
    )
    for group, rate in (("g", 1.0), ("other", 0.5), (None, 1.5)):
        past = history(of_two, group)
        assert (past.source, {row["rate"] for row in past.rates.collect()}) == ("delivered", {rate})


def commits(spark: SparkSession, *found: tuple[float, int], group: str = "g") -> DataFrame:
    """Offsets of a partition that were committed so many hours after FIRST_HOUR; that of another one never grows."""
    rows = [("committed", group, at_us(hour), "t", 0, offset) for hour, offset in found]
    rows += [("committed", group, at_us(hour), "t", 1, 5) for hour in (0.0, 4.0)]
    return spark.createDataFrame(
        rows, "kind string, group string, ts_us long, topic string, partition int, offset long"
    )


def at_us(hour: float) -> int:
    return round((FIRST_HOUR + hour) * HOUR_S * 1_000_000)


def records(events: DataFrame, group: str | None = "g") -> dict[int, list[float]]:
    """Return partition -> records of each hour."""
    past = history(events, group)
    assert past.source == "committed"
    found: dict[int, list[float]] = {}
    for row in past.rates.orderBy("partition", "hour").collect():
        found.setdefault(row["partition"], []).append(round(row["rate"] * HOUR_S, 6))
    return found


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # The first offset tells nothing; an hour's end cuts what came in between two commits.
        ([(0.0, 1_000), (0.5, 1_050), (1.5, 1_150), (4.0, 1_150)], [100, 50, 0, 0]),
        # A restarted consumer begins at what was committed, and reads something twice.
        ([(0.0, 0), (0.5, 60), (0.75, 40), (1.0, 100), (2.0, 200)], [100, 100, 0, 0]),
        # A rewind to the beginning: nothing is counted until something new is read.
        ([(0.0, 0), (1.0, 500), (1.1, 0), (1.5, 400), (2.0, 500), (3.0, 560)], [500, 0, 60, 0]),
        # Nobody read for three hours, and then all that had come in.
        ([(0.0, 0), (0.5, 50), (3.5, 350), (4.0, 400)], [100, 100, 100, 100]),
        # Two commits of one moment.
        ([(0.5, 0), (0.5, 30)], [30, 0, 0, 0]),
    ],
)
def test_where_nothing_tells_of_records_committed_offsets_do_as_far_as_they_grow(
    spark: SparkSession, found: list[tuple[float, int]], expected: list[float]
) -> None:
    told = records(commits(spark, *found))
    assert told == {0: expected}, "where an offset never grew, the coordinator measures the rate"


def test_committed_offsets_are_those_of_the_group_that_is_asked_for(spark: SparkSession) -> None:
    of_two = commits(spark, (0.0, 0), (1.0, 100)).unionByName(commits(spark, (0.0, 0), (1.0, 10), group="other"))
    for group, first_hour in (("g", 100), ("other", 10), (None, 110)):
        assert records(of_two, group)[0][0] == first_hour


def test_too_little_history_is_said(spark: SparkSession) -> None:
    with pytest.raises(TooLittleHistoryError, match="3 whole hours of produced events, 4 are needed"):
        history(events(spark, 3, lambda *_: 1))
    with pytest.raises(TooLittleHistoryError, match="no event tells of records"):
        history(events(spark, 3, lambda *_: 0))
    with pytest.raises(TooLittleHistoryError, match="no offset grows in the committed events"):
        history(commits(spark))  # of a group that nobody sends anything
    undated = events(spark, 5, lambda *_: 1).withColumn("ts_us", F.lit(None).cast("bigint"))
    with pytest.raises(TooLittleHistoryError, match="no event tells of records"):
        history(undated)
