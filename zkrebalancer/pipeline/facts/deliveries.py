"""Each delivery with the hold that it fell into, and the stretches that deliveries form.

A stretch is a sequence of deliveries in one hold of which each begins where the one before it ended. Where all goes
well a hold is one stretch, however many records it has, so all that follows works on a few rows.

One partition may have nearly all deliveries of a topic. No window here is over a partition: stretches end with the time
bucket of BUCKET_US that they began in, so a hot partition's deliveries are spread over as many tasks as there are
buckets, and stretches of two buckets that touch are joined by arithmetic (`coverage`).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.ownership import HOLDER
from zkrebalancer.pipeline.schema import PARTITION

BUCKET_US = 10_000_000
# The most selective first: they are compared in this order when rows are sorted.
_STRETCH = ("bucket", "partition", "started_us", "topic", "group", "member", "run", "era")


def eras(events: DataFrame) -> DataFrame:
    """Return (run, topic, deleted_us): when each topic was deleted, ascending; what has its name later is another."""
    deletions = events.where(F.col("kind") == "topic_deleted").groupBy("run", "topic")
    return deletions.agg(F.sort_array(F.collect_list("mono_us")).alias("deleted_us"))


def with_era(rows: DataFrame, deletions: DataFrame, at: str = "mono_us") -> DataFrame:
    """Add `era`: how often the row's topic had been deleted before `at`."""
    return rows.join(deletions, ["run", "topic"], "left").withColumn("era", _era(F.col(at))).drop("deleted_us")


def _era(at: Column) -> Column:
    past = F.filter("deleted_us", lambda deleted: deleted < at)
    return F.when(F.col("deleted_us").isNull(), F.lit(0)).otherwise(F.size(past))


def held_deliveries(events: DataFrame, intervals: DataFrame, deletions: DataFrame) -> DataFrame:
    """Return (run, group, topic, partition, member, era, mono_us, block, row, begin, end, started_us, position).

    [begin, end) are offsets; `started_us` and `position` are those of the hold, null if the consumer had none. What a
    consumer was given of a topic that had been deleted since it started is left out.
    """
    begun = with_era(intervals, deletions, "started_us")
    hold = F.struct("started_us", "ended_us", "position", F.col("era").alias("hold_era"))
    holds = begun.groupBy(*HOLDER).agg(F.sort_array(F.collect_list(hold)).alias("holds"))
    delivered = with_era(events.where(F.col("kind") == "delivered"), deletions).select(
        *HOLDER,
        "era",
        "mono_us",
        "block",
        "row",
        F.col("first_offset").alias("begin"),
        (F.col("last_offset") + 1).alias("end"),
    )
    return (
        delivered.join(holds, list(HOLDER), "left")
        .withColumn(
            "hold", F.try_element_at(F.filter("holds", lambda hold: _is_open(hold, F.col("mono_us"))), F.lit(-1))
        )
        .where(F.col("hold").isNull() | (F.col("hold.hold_era") == F.col("era")))
        .select(*delivered.columns, "hold.started_us", "hold.position")
    )


def _is_open(hold: Column, at: Column) -> Column:
    return (hold["started_us"] <= at) & (hold["ended_us"].isNull() | (at <= hold["ended_us"]))


def stretches(deliveries: DataFrame) -> DataFrame:
    """Return (*_STRETCH, position, begin, end, began, last, events).

    `events` is how many deliveries it has; `began` and `last` are the order of its first and last one, (mono_us, block,
    row).
    """
    rows = deliveries.withColumn("bucket", F.expr(f"mono_us div {BUCKET_US}"))
    window = Window.partitionBy(*_STRETCH).orderBy("mono_us", "block", "row")
    is_joined = F.coalesce(F.lag("end").over(window) == F.col("begin"), F.lit(col=False))
    number = F.sum(F.when(is_joined, 0).otherwise(1)).over(window.rowsBetween(Window.unboundedPreceding, 0))
    at = F.struct("mono_us", "block", "row")
    return (
        rows.withColumn("stretch", number)
        .groupBy(*_STRETCH, "stretch")
        .agg(
            F.min("begin").alias("begin"),
            F.max("end").alias("end"),
            F.min(at).alias("began"),
            F.max(at).alias("last"),
            F.first("position").alias("position"),
            F.count("*").alias("events"),
        )
        .drop("stretch")
    )


def out_of_order(stretches: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return (run, group, topic, partition, out_of_order): deliveries that begin below what their hold had reached.

    A stretch that lies below it altogether counts with all its deliveries, one above it with none; only for one that
    crosses it are its deliveries looked at again.
    """
    in_hold = Window.partitionBy(*HOLDER, "started_us", "era").orderBy("began")
    before = F.max("end").over(in_hold.rowsBetween(Window.unboundedPreceding, -1))
    late = (
        stretches.where(F.col("started_us").isNotNull())
        .withColumn("reached", F.greatest("position", before))
        .where(F.col("begin") < F.col("reached"))
    )
    below = late.where(F.col("end") <= F.col("reached")).select(*PARTITION, F.col("events").alias("late"))
    crossing = late.where(F.col("end") > F.col("reached")).select(*HOLDER, "started_us", "began", "last", "reached")
    at = F.struct("mono_us", "block", "row")
    looked_at = (
        deliveries.join(F.broadcast(crossing), [*HOLDER, "started_us"])
        .where((at >= F.col("began")) & (at <= F.col("last")) & (F.col("begin") < F.col("reached")))
        .select(*PARTITION, F.lit(1).cast("bigint").alias("late"))
    )
    return below.unionByName(looked_at).groupBy(*PARTITION).agg(F.sum("late").alias("out_of_order"))
