"""Changes of ownership between two intervals of a partition: overlaps, gaps without an owner, moves."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.ownership import null
from zkrebalancer.pipeline.schema import FOREVER_US, PARTITION

END_BOUNDS = ("end_early_us", "end_late_us")


def _with_previous_owner(intervals: DataFrame) -> DataFrame:
    """Add `other`, the earlier interval that ends last: its `ended_us` (FOREVER_US if it is open) and `member`.

    Its end certainly was before this start if earlier by `order_us`, and after it if later by `reverse_us`.
    """
    lasting = F.struct(F.coalesce("ended_us", F.lit(FOREVER_US)).alias("ended_us"), "member", *END_BOUNDS)
    earlier = Window.partitionBy(*PARTITION).orderBy("began").rowsBetween(Window.unboundedPreceding, -1)
    with_other = intervals.withColumn("other", F.max(lasting).over(earlier))
    order_us = _sum_us("start_early_us", "other.end_late_us")
    return with_other.withColumns({"order_us": order_us, "reverse_us": _sum_us("start_late_us", "other.end_early_us")})


def _sum_us(one: str, other: str) -> Column:
    """Add two bounds, either of which may be FOREVER_US."""
    both = (F.col(one), F.coalesce(other, F.lit(0)))
    return F.when(F.greatest(*both) < FOREVER_US, F.try_add(*both)).otherwise(F.lit(FOREVER_US))


def overlaps(intervals: DataFrame) -> DataFrame:
    """Return (run, group, topic, partition, member, other, began_us, ended_us, is_certain): times with two owners.

    `ended_us` is null if both still owned the partition at the last event. A member does not overlap with itself.
    `is_certain` is false if the bounds of several hosts' clocks admit that there was none; then a row may also begin
    after it ends: what was recorded admits an overlap.
    """
    until = F.least(F.coalesce("ended_us", F.lit(FOREVER_US)), F.col("other.ended_us"))
    return (
        _with_previous_owner(intervals)
        .withColumn("excess_us", F.col("other.ended_us") - F.col("started_us"))
        .where(F.col("other.member") != F.col("member"))
        .where((F.col("excess_us") > 0) | (-F.col("excess_us") < F.col("order_us")))
        .select(
            *PARTITION,
            "member",
            F.col("other.member").alias("other"),
            F.col("started_us").alias("began_us"),
            F.when(until < FOREVER_US, until).alias("ended_us"),
            ((F.col("excess_us") > 0) & (F.col("excess_us") >= F.col("reverse_us"))).alias("is_certain"),
        )
    )


def gaps(intervals: DataFrame) -> DataFrame:
    """Return the times in which a partition had no owner; the time before its first start is not a gap.

    Columns: run, group, topic, partition, began_us, ended_us, member, previous, generation, cause_id. `member` is the
    next owner and `previous` the last one; `member` and `ended_us` are null if no member started the partition again.
    """
    columns = ["began_us", "ended_us", "member", "previous", "generation", "cause_id"]
    closed = (
        _with_previous_owner(intervals)
        .where(F.col("other.ended_us") <= F.col("started_us"))
        .select(
            *PARTITION,
            F.col("other.ended_us").alias("began_us"),
            F.col("started_us").alias("ended_us"),
            "member",
            F.col("other.member").alias("previous"),
            "generation",
            "cause_id",
        )
    )
    last = F.max(F.struct(F.coalesce("ended_us", F.lit(FOREVER_US)).alias("ended_us"), "member")).alias("last")
    unfinished = (
        intervals.groupBy(*PARTITION)
        .agg(last)
        .where(F.col("last.ended_us") < FOREVER_US)
        .select(
            *PARTITION,
            F.col("last.ended_us").alias("began_us"),
            null("bigint", "ended_us"),
            null("string", "member"),
            F.col("last.member").alias("previous"),
            null("bigint", "generation"),
            null("string", "cause_id"),
        )
    )
    return closed.unionByName(unfinished).select(*PARTITION, *columns)


def moves(intervals: DataFrame) -> DataFrame:
    """Return every start of a partition but its first.

    Columns: run, group, topic, partition, at_us, member, previous, is_moved, generation, cause_id; `is_moved` is false
    if the partition returned to its previous owner.
    """
    previous = F.lag("member").over(Window.partitionBy(*PARTITION).orderBy("began"))
    return (
        intervals.withColumn("previous", previous)
        .where(F.col("previous").isNotNull())
        .select(
            *PARTITION,
            F.col("started_us").alias("at_us"),
            "member",
            "previous",
            (F.col("member") != F.col("previous")).alias("is_moved"),
            "generation",
            "cause_id",
        )
    )
