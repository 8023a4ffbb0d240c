from __future__ import annotations

from collections.abc import Callable, Iterable

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
HalfHours = Callable[[int, int], int]  # (partition, hour) -> records in each half hour


def events(spark: SparkSession, hours: int, records: HalfHours, kind: str = "produced", group: str = "g") -> DataFrame:
    """Return two events per hour in each of two partitions, and one in the incomplete hours before and after."""
    rows = []
    for partition in (0, 1):
        for half in range(-1, 2 * hours + 1):
            count = records(partition, half // 2)
            ts_us = (2 * FIRST_HOUR + half) * HOUR_S * 500_000 + 1
            if count:
                rows.append((kind, group, ts_us, "t", partition, 100, 99 + count))
    return spark.createDataFrame(rows, COLUMNS)


def by_day(partition: int, hour: int) -> int:
    """Partition 0 is busy in the evening, partition 1 has a constant rate."""
    return 3_600 if partition == 0 and hour % DAY >= 18 else 900


def test_only_whole_hours_count_and_empty_hours_are_zero(spark: SparkSession) -> None:
    past = history(events(spark, 5, lambda partition, hour: 0 if (partition, hour) == (1, 2) else 1_800))
    assert (past.first, past.cut, past.last) == (FIRST_HOUR, FIRST_HOUR + 4, FIRST_HOUR + 5)
    rates = {(row["partition"], row["hour"] - FIRST_HOUR): row["rate"] for row in past.rates.collect()}
    assert rates == {(p, h): 0.0 if (p, h) == (1, 2) else 1.0 for p in (0, 1) for h in range(5)}


def test_a_daily_pattern_is_found_and_beats_same_as_now(spark: SparkSession) -> None:
    past = history(events(spark, 4 * DAY, by_day))
    errors = back_test(past)
    assert [error.model for error in errors] == ["hour of the day", "mean", SAME_AS_NOW]
    assert errors[0].mean_per_s == 0
    assert errors[-1].mean_per_s == pytest.approx(2 * 1.5 / (2 * DAY))  # wrong twice a day, in one of two partitions
    chosen, weights = learn(past, errors)
    assert (chosen.slot_count, weights.slot_count) == (DAY, DAY)
    assert weights.at((FIRST_HOUR + 20) * HOUR_S) == {"t": [2.0, 0.5]}
    assert weights.at((FIRST_HOUR + 2) * HOUR_S) == {"t": [0.5, 0.5]}


def test_a_short_history_has_no_pattern_and_same_as_now_may_win(spark: SparkSession) -> None:
    errors = back_test(history(events(spark, 8, lambda _partition, hour: 100 if hour < 4 else 200)))
    assert [error.slot_count for error in errors] == [ALWAYS, None]
    assert errors[0].mean_per_s > errors[1].mean_per_s == 0


def test_without_produced_events_the_groups_deliveries_count(spark: SparkSession) -> None:
    of_two = events(spark, 5, lambda *_: 1_800, "delivered").unionByName(
        events(spark, 5, lambda *_: 900, "delivered", group="other")
    )
    for group, rate in (("other", 0.5), (None, 1.5)):
        past = history(of_two, group)
        assert (past.source, {row["rate"] for row in past.rates.collect()}) == ("delivered", {rate})


# For each topic: the commits of partition 0, as (hour after FIRST_HOUR, offset), and the records of each hour.
COMMITS: dict[str, tuple[list[tuple[float, int]], list[float]]] = {
    # The first offset counts nothing; the end of an hour divides the records between two commits.
    "divided": ([(0.0, 1_000), (0.5, 1_050), (1.5, 1_150), (4.0, 1_150)], [100, 50, 0, 0]),
    # A restarted consumer begins at the committed offset and reads some records twice.
    "restarted": ([(0.0, 0), (0.5, 60), (0.75, 40), (1.0, 100), (2.0, 200)], [100, 100, 0, 0]),
    # A rewind to the beginning: nothing counts until new records are read.
    "rewound": ([(0.0, 0), (1.0, 500), (1.1, 0), (1.5, 400), (2.0, 500), (3.0, 560)], [500, 0, 60, 0]),
    # Three hours without reads, then everything that arrived meanwhile.
    "resumed": ([(0.0, 0), (0.5, 50), (3.5, 350), (4.0, 400)], [100, 100, 100, 100]),
    # Two commits at the same moment.
    "at once": ([(0.5, 0), (0.5, 30)], [30, 0, 0, 0]),
}
OF_ANOTHER_GROUP = [(0.0, 0), (1.0, 10)]


def commits(spark: SparkSession, topics: Iterable[str]) -> DataFrame:
    """Return the COMMITS of these topics, and those of another group; the offset of partition 1 never grows."""
    found = [("g", topic, 0, *commit) for topic in topics for commit in COMMITS[topic][0]]
    found += [("other", "divided", 0, *commit) for commit in OF_ANOTHER_GROUP]
    found += [(group, "divided", 1, hour, 5) for group in ("g", "other") for hour in (0.0, 4.0)]
    rows = [("committed", group, at_us(hour), topic, part, offset) for group, topic, part, hour, offset in found]
    return spark.createDataFrame(
        rows, "kind string, group string, ts_us long, topic string, partition int, offset long"
    )


def at_us(hour: float) -> int:
    return round((FIRST_HOUR + hour) * HOUR_S * 1_000_000)


def records(events: DataFrame, group: str | None) -> dict[tuple[str, int], list[float]]:
    """Return (topic, partition) -> records of each hour."""
    past = history(events, group)
    assert past.source == "committed"
    found: dict[tuple[str, int], list[float]] = {}
    for row in past.rates.orderBy("topic", "partition", "hour").collect():
        found.setdefault((row["topic"], row["partition"]), []).append(round(row["rate"] * HOUR_S, 6))
    return found


def test_without_other_events_growing_committed_offsets_of_the_group_count(spark: SparkSession) -> None:
    expected = {(topic, 0): hours for topic, (_commits, hours) in COMMITS.items()}
    assert records(commits(spark, COMMITS), "g") == expected, "the coordinator measures the rate of partition 1"


def test_without_a_group_the_commits_of_all_groups_count(spark: SparkSession) -> None:
    assert records(commits(spark, ["divided"]), None) == {("divided", 0): [110, 50, 0, 0]}


def test_too_little_history_is_an_error(spark: SparkSession) -> None:
    with pytest.raises(TooLittleHistoryError, match="3 whole hours of produced events; 4 are needed"):
        history(events(spark, 3, lambda *_: 1))
    with pytest.raises(TooLittleHistoryError, match="no event counts records"):
        history(events(spark, 3, lambda *_: 0))
    with pytest.raises(TooLittleHistoryError, match="no offset grows in the committed events"):
        history(commits(spark, []), "g")  # of a group without new records
    undated = events(spark, 5, lambda *_: 1).withColumn("ts_us", F.lit(None).cast("bigint"))
    with pytest.raises(TooLittleHistoryError, match="no event counts records"):
        history(undated)
