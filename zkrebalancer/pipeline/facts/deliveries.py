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
CHUNK_OFFSETS = 4_096  # ranges are cut here: overlaps become equality joins, and a hot partition is spread
BOOK = (*PARTITION, "era")  # a partition in a group until its topic is deleted
CHUNK = (*BOOK, "chunk")
_OF_LEG = ("started_us", "position")
# Rows are compared in this order when sorted, so the most selective column comes first.
_STRETCH = ("bucket", "partition", "started_us", "topic", "group", "member", "run", "era")


def deliveries_by_leg(events: DataFrame, legs: DataFrame, deletions: DataFrame) -> DataFrame:
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


def suspects(stretches: DataFrame, segments: DataFrame) -> DataFrame:
    """Return (*_STRETCH, began, last): the stretches whose single deliveries must be examined.

    They begin below the highest offset that their leg had reached and end above it, or include offsets that were
    delivered more than once.
    """
    crossing = _late(stretches).where(F.col("end") > F.col("reached"))
    met = meeting_doubled(stretches, segments)
    columns = [*_STRETCH, "began", "last"]
    return crossing.select(*columns).unionByName(met.select(*columns)).distinct()


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


def _late(stretches: DataFrame) -> DataFrame:
    """Return the stretches that begin below `reached`, the highest offset their leg had reached before."""
    in_leg = Window.partitionBy(*OWNER, "started_us", "era").orderBy("began")
    before = F.max("end").over(in_leg.rowsBetween(Window.unboundedPreceding, -1))
    held = stretches.where(F.col("started_us").isNotNull()).withColumn("reached", F.greatest("position", before))
    return held.where(F.col("begin") < F.col("reached"))


def out_of_order(stretches: DataFrame, doubtful: DataFrame) -> DataFrame:
    """Return (run, group, topic, partition, out_of_order): deliveries that begin below what their leg had reached.

    All deliveries of a stretch below that offset count. In a stretch that crosses it, they are examined one by one.
    """
    late = _late(stretches)
    below = late.where(F.col("end") <= F.col("reached")).select(*PARTITION, F.col("events").alias("late"))
    crossing = late.where(F.col("end") > F.col("reached")).select(*OWNER, "started_us", "began", "last", "reached")
    at = F.struct("mono_us", "block", "row")
    looked_at = (
        doubtful.join(crossing, [*OWNER, "started_us"])
        .where((at >= F.col("began")) & (at <= F.col("last")) & (F.col("begin") < F.col("reached")))
        .select(*PARTITION, F.lit(1).cast("bigint").alias("late"))
    )
    return below.unionByName(looked_at).groupBy(*PARTITION).agg(F.sum("late").alias("out_of_order"))


def meeting_doubled(ranges: DataFrame, segments: DataFrame) -> DataFrame:
    """Cut ranges at chunk bounds; return the parts that overlap offsets [from, to) delivered more than once."""
    doubled = _cut(segments.where(F.col("given") > 1).select(*BOOK, "begin", "end"))
    doubled = doubled.select(*CHUNK, F.col("begin").alias("from"), F.col("end").alias("to"))
    meets = (F.col("begin") < F.col("to")) & (F.col("end") > F.col("from"))
    return _cut(ranges).join(doubled, list(CHUNK)).where(meets)


def _cut(ranges: DataFrame) -> DataFrame:
    """Cut the ranges [begin, end) at multiples of CHUNK_OFFSETS; `chunk` is the index of the multiple."""
    chunks = F.sequence(F.expr(f"begin div {CHUNK_OFFSETS}"), F.expr(f"(end - 1) div {CHUNK_OFFSETS}"))
    return (
        ranges.withColumn("chunk", F.explode(chunks))
        .withColumn("begin", F.greatest(F.col("begin"), F.col("chunk") * CHUNK_OFFSETS))
        .withColumn("end", F.least(F.col("end"), (F.col("chunk") + 1) * CHUNK_OFFSETS))
    )
