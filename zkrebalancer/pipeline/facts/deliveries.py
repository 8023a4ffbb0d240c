"""Deliveries matched to the legs they fall into, and merged into stretches.

A leg is an ownership interval, or its part after its consumer was repositioned (`observe.holdings`). A stretch is a
sequence of deliveries in one leg, each of which begins where the one before it ended. A faultless interval is one leg
and one stretch per time bucket, however many records it has, so later steps work on few rows.

One partition may have nearly all deliveries of a topic, so no window here spans a whole partition. Each stretch ends
with the time bucket of BUCKET_US in which it began: a hot partition becomes as many tasks as there are buckets.
Adjacent stretches of two buckets are joined later (`coverage`).
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.eras import with_era
from zkrebalancer.pipeline.schema import PARTITION

OWNER = (*PARTITION, "member")
BUCKET_US = 10_000_000
_OF_LEG = ("started_us", "position")
# Rows are compared in this order when sorted, so the most selective column comes first.
_STRETCH = ("bucket", "partition", "started_us", "topic", "group", "member", "run", "era")


def deliveries_by_leg(events: DataFrame, legs: DataFrame, deletions: DataFrame | None) -> DataFrame:
    """Return (run, group, topic, partition, member, era, mono_us, block, row, begin, end, started_us, position).

    The offsets are [begin, end); `started_us` and `position` are those of the leg, null if the member owned nothing.
    Deliveries from a topic that was deleted after the member started it are left out.
    """
    of_legs = legs.select(*[F.col(name).alias(f"leg_{name}") for name in (*OWNER, "era", "until_us")], *_OF_LEG)
    delivered = with_era(events.where(F.col("kind") == "delivered"), deletions).select(
        *OWNER,
        "era",
        "mono_us",
        "block",
        "row",
        F.col("first_offset").alias("begin"),
        (F.col("last_offset") + 1).alias("end"),
    )
    is_open = F.col("leg_until_us").isNull() | (F.col("mono_us") <= F.col("leg_until_us"))
    is_in = [F.col(name) == F.col(f"leg_{name}") for name in OWNER]
    is_in += [F.col("started_us") <= F.col("mono_us"), is_open]
    return (
        delivered.join(of_legs, is_in, "left")
        .where(F.col("started_us").isNull() | (F.col("leg_era") == F.col("era")))
        .select(*delivered.columns, *_OF_LEG)
    )


def with_bucket(deliveries: DataFrame) -> DataFrame:
    """Add `bucket`, the time bucket in which stretches end at the latest."""
    return deliveries.withColumn("bucket", F.expr(f"mono_us div {BUCKET_US}"))


def stretches(deliveries: DataFrame) -> DataFrame:
    """Return (*_STRETCH, position, begin, end, began, last, events).

    `events` is the number of deliveries; `began` and `last` are the order (mono_us, block, row) of the first and last.
    """
    rows = with_bucket(deliveries)
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


def doubtful(suspects: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return the deliveries of these stretches, with their `bucket`.

    Suspects are nearly always few, so Spark broadcasts them (it knows their table's size) and moves no delivery.
    """
    here = [F.col(name).alias(f"_{name}") for name in suspects.columns]
    rows = with_bucket(deliveries)
    at = F.struct("mono_us", "block", "row")
    is_of = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in _STRETCH]
    is_of += [at >= F.col("_began"), at <= F.col("_last")]
    return rows.join(suspects.select(*here), is_of, "left_semi")
