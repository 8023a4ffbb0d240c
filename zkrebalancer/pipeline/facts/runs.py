"""One row for each run: its scenario and the fate of its records."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.observe.overview import NEEDS
from zkrebalancer.pipeline.schema import ORDER, PARTITION

_SCENARIO = ("protocol", "members", "seed", "settings", "versions", "machine", "mode")
_SUMS = ("produced", "delivered", "lost", "duplicated", "duplicated_outside_crash", "out_of_order", "unheld")
_LIKE = {"unheld": "duplicated_outside_crash", "unclear": "overlaps"}  # unknown without the same kinds of events


def runs(
    events: DataFrame, blocks: DataFrame, delivery: DataFrame, overlaps: DataFrame, rejects: DataFrame
) -> DataFrame:
    """Return one row for each run.

    Columns: run, events, began_us, ended_us, scenario, protocol, members, seed, settings, versions, machine, mode,
    rejected, torn, events_dropped, produced, delivered, lost, duplicated, duplicated_outside_crash, out_of_order,
    unheld, overlaps, unclear.
    `events_dropped` counts the events that processes could not write; the other columns do not include those.
    Counts of records and deliveries are summed over groups and partitions. `overlaps` counts the partitions that two
    members owned at once, `unclear` those of which the clocks of several hosts leave it open. What was not recorded is
    null, not 0: often only coordinators write events.
    """
    scenarios = events.where(F.col("kind") == "scenario").groupBy("run")
    first = scenarios.agg(F.min_by(F.struct("name", *_SCENARIO), F.struct(*ORDER)).alias("scenario"))
    whole = blocks.groupBy("run").agg(
        F.sum("events").alias("events"),
        F.flatten(F.collect_list("kinds")).alias("kinds"),
        F.min("began_us").alias("began_us"),
        F.max("ended_us").alias("ended_us"),
    )
    records = delivery.groupBy("run").agg(*[F.sum(name).alias(name) for name in _SUMS])
    by_partition = overlaps.groupBy(*PARTITION).agg(F.bool_or("is_certain").alias("is_certain"))
    held_twice = by_partition.groupBy("run").agg(
        F.count_if("is_certain").alias("overlaps"), F.count_if(~F.col("is_certain")).alias("unclear")
    )
    broken = rejects.groupBy("run").agg(
        F.count_if(~F.col("is_torn")).alias("rejected"), F.count_if("is_torn").alias("torn")
    )
    gaps = events.where(F.col("kind") == "events_dropped").groupBy("run")
    dropped = gaps.agg(F.sum("dropped_count").alias("events_dropped"))
    joined = whole
    for found in (first, records, held_twice, broken, dropped):
        joined = joined.join(found, "run", "left")
    return joined.select(
        "run",
        "events",
        "began_us",
        "ended_us",
        F.col("scenario.name").alias("scenario"),
        *[f"scenario.{name}" for name in _SCENARIO],
        *[F.coalesce(name, F.lit(0)).alias(name) for name in ("rejected", "torn", "events_dropped")],
        *[_if_recorded(name) for name in (*_SUMS, "overlaps", "unclear")],
    )


def _if_recorded(name: str) -> Column:
    needed = NEEDS[_LIKE.get(name, name)]
    return F.when(F.forall(F.array(*map(F.lit, needed)), _is_recorded), F.coalesce(name, F.lit(0))).alias(name)


def _is_recorded(kind: Column) -> Column:
    return F.array_contains("kinds", kind)
