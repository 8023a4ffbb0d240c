"""Ownership intervals: from each start of a fetcher to the first event that ends it.

That event is the member's next stop, the end of its ownership, or its own next start. Starts and stops are few beside
deliveries, so a window over one partition and one member is small.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.eras import with_era
from zkrebalancer.pipeline.schema import BOUNDS, ORDER, PARTITION

ENDED = "ended"  # the member's session ended without a stop
RESTARTED = "restarted"  # the member started a partition that it already owned
OWNER = (*PARTITION, "member")


def starts(events: DataFrame) -> DataFrame:
    """Return one row, with its `position`, for each partition of each `fetcher_started`."""
    return _fetchers(events, "fetcher_started")


def intervals(events: DataFrame, deletions: DataFrame) -> DataFrame:
    """Return (run, group, topic, partition, member, generation, cause_id, started_us, position, ended_us, ended_by).

    `ended_by` is the reason of the stop, ENDED or RESTARTED; it and `ended_us` are null if the partition was owned to
    the last event. Further columns: `began` and `ceased`, the ORDER of the two events; `era`, the topic's at the start;
    `start_early_us`, `start_late_us`, `end_early_us` and `end_late_us`, by how much each may have been earlier or later
    (0 if the run has one clock); `until_us`, the earlier of `ended_us` and just before the member's next start: a
    member's intervals never overlap.
    """
    started = starts(events)
    rows = started.unionByName(_fetchers(events, "fetcher_stopped")).unionByName(member_ends(events, started))
    window = Window.partitionBy(*OWNER).orderBy(*ORDER)
    following = F.lead(F.struct("kind", "reason", F.struct(*ORDER).alias("at"), *BOUNDS)).over(window)
    ended_by = (
        F.when(F.col("next.kind") == "fetcher_stopped", F.col("next.reason"))
        .when(F.col("next.kind") == "ownership_ended", F.lit(ENDED))
        .when(F.col("next.kind") == "fetcher_started", F.lit(RESTARTED))
    )
    by_start = Window.partitionBy(*OWNER).orderBy("began")
    held = (
        rows.withColumn("next", following)
        .where(F.col("kind") == "fetcher_started")
        .select(
            *OWNER,
            "generation",
            "cause_id",
            F.col("mono_us").alias("started_us"),
            "position",
            F.col("next.at.mono_us").alias("ended_us"),
            ended_by.alias("ended_by"),
            F.struct(*ORDER).alias("began"),
            F.col("next.at").alias("ceased"),
            *[F.col(name).alias(f"start_{name}") for name in BOUNDS],
            *[F.coalesce(f"next.{name}", F.lit(0)).alias(f"end_{name}") for name in BOUNDS],
        )
    )
    until_us = F.least("ended_us", F.lead("started_us").over(by_start) - 1)
    return with_era(held.withColumn("until_us", until_us), deletions, "started_us").select(
        *held.columns, "era", "until_us"
    )


def legs(events: DataFrame, intervals: DataFrame, deletions: DataFrame) -> DataFrame:
    """Return the legs of all intervals: a leg ends, and another begins, whenever the consumer is `repositioned`.

    Columns: run, group, topic, partition, member, era, held_us, started_us, position, until_us. `held_us` is the start
    of the interval, `started_us` that of the leg.
    """
    keys = [*OWNER, "era"]
    hold = [F.col("started_us").alias("held_us"), F.col("until_us")]
    whole = intervals.select(*keys, *hold, "started_us", "position")
    seeks = with_era(_fetchers(events, "repositioned"), deletions)
    seeks = seeks.select(*keys, F.struct(*ORDER).alias("at"), "position")
    is_held = (F.col("at") > F.col("began")) & (F.col("ceased").isNull() | (F.col("at") < F.col("ceased")))
    resumed = seeks.join(intervals.select(*keys, *hold, "began", "ceased"), keys).where(is_held)
    resumed = resumed.select(*keys, "held_us", "until_us", F.col("at.mono_us").alias("started_us"), "position")
    next_us = F.lead("started_us").over(Window.partitionBy(*OWNER, "held_us").orderBy("started_us"))
    return whole.unionByName(resumed).withColumn("until_us", F.least("until_us", next_us - 1))


def member_ends(events: DataFrame, started: DataFrame, kind: str = "ownership_ended") -> DataFrame:
    """Return one row for each event of `kind` and each partition that its member ever started."""
    touched = started.select(*OWNER).distinct()
    ends = events.where(F.col("kind") == kind).select("run", "group", "member", *ORDER, "kind", "reason", *BOUNDS)
    return ends.join(touched, ["run", "group", "member"]).select(
        *OWNER,
        *ORDER,
        "kind",
        "reason",
        null("bigint", "generation"),
        null("string", "cause_id"),
        null("bigint", "position"),
        *BOUNDS,
    )


def _fetchers(events: DataFrame, kind: str) -> DataFrame:
    pair = F.explode(F.arrays_zip("partitions", "positions"))
    columns = ["run", "group", "topic", "member", *ORDER, "kind", "reason", "generation", "cause_id", *BOUNDS]
    rows = events.where(F.col("kind") == kind).select(*columns, pair.alias("pair"))
    return rows.select(
        *[name for name in OWNER if name != "partition"],
        F.col("pair.partitions").alias("partition"),
        *ORDER,
        "kind",
        "reason",
        "generation",
        "cause_id",
        F.col("pair.positions").alias("position"),
        *BOUNDS,
    ).select(*OWNER, *ORDER, "kind", "reason", "generation", "cause_id", "position", *BOUNDS)


def null(kind: str, name: str) -> Column:
    """Return a column of nulls of a type."""
    return F.lit(None).cast(kind).alias(name)
