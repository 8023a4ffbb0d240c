"""What a group was to be given of each partition, and what it was given: lost, delivered, doubled.

Ranges of offsets are summed as edges: +1 where one begins, -1 where one ends. Edges of ranges that touch cancel out
when they are summed by offset, which no partition, however hot, puts into one task; what is left are the true
boundaries, a few for each partition. Between two of them the depth is constant: 0 given of what was due is lost, 2 is
doubled.

Produced ranges are as many as events, so those that tile a piece of their partition become one before that (`joined`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.deliveries import BOOK
from zkrebalancer.pipeline.facts.eras import with_era
from zkrebalancer.pipeline.facts.ownership import HOLDER
from zkrebalancer.pipeline.schema import ORDER, PARTITION

PIECE_OFFSETS = 65_536


def segments(
    events: DataFrame, starts: DataFrame, legs: DataFrame, stretches: DataFrame, deletions: DataFrame
) -> DataFrame:
    """Return (run, group, topic, partition, era, begin, end, due, given): offsets, and how often each of them was.

    `due` counts from the first position at which the group started the partition; it is 0 before, and where a consumer
    was repositioned over what was given to nobody.
    """
    firsts = with_era(starts, deletions).groupBy(*BOOK).agg(F.min_by("position", F.struct(*ORDER)).alias("from"))
    log = ("run", "topic", "partition", "era")
    produced = with_era(events.where(F.col("kind") == "produced"), deletions).select(
        *log, F.col("first_offset").alias("begin"), (F.col("last_offset") + 1).alias("end")
    )
    changes = {
        "open": firsts.select(*BOOK, F.col("from").alias("offset"), F.lit(1).alias("change")),
        "due": edges(joined(produced, log), log).join(firsts, list(log)),
        "given": edges(stretches, BOOK),
        "passed": edges(passed_over(legs, stretches), BOOK),
    }
    steps = reduce(DataFrame.unionByName, [_of_depth(name, changes) for name in changes])
    window = Window.partitionBy(*BOOK).orderBy("offset")
    so_far = window.rowsBetween(Window.unboundedPreceding, 0)
    depths = steps.groupBy(*BOOK, "offset").agg(*[F.sum(name).alias(name) for name in changes])
    depths = depths.select(
        *BOOK,
        F.col("offset").alias("begin"),
        F.lead("offset").over(window).alias("end"),
        *[F.sum(name).over(so_far).alias(name) for name in changes],
    )
    is_passed_over = (F.col("given") == 0) & (F.col("passed") > 0)
    due = F.when(is_passed_over, F.lit(0)).otherwise(F.col("due") * F.col("open"))
    found = depths.select(*BOOK, "begin", "end", due.alias("due"), "given")
    return found.where(F.col("end").isNotNull() & ((F.col("due") > 0) | (F.col("given") > 0)))


def passed_over(legs: DataFrame, stretches: DataFrame) -> DataFrame:
    """Return (*BOOK, begin, end): what lies between where a consumer was and where it was repositioned to."""
    held = stretches.where(F.col("started_us").isNotNull())
    ends = held.groupBy(*HOLDER, "started_us").agg(F.max("end").alias("end"))
    in_hold = Window.partitionBy(*HOLDER, "held_us").orderBy("started_us")
    return (
        legs.join(ends, [*HOLDER, "started_us"], "left")
        .withColumn("begin", F.lag(F.greatest("position", "end")).over(in_hold))
        .where(F.col("begin") < F.col("position"))
        .select(*BOOK, "begin", F.col("position").alias("end"))
    )


def joined(ranges: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Return ranges of the same depths as (*keys, begin, end); those that tile a piece of the offsets are one.

    They do if they are together as long as what they span, and at each offset between its ends an even number of them
    begins or ends: then the depth is odd everywhere, so nowhere more than one. The latter is asked of the exclusive or
    of all their hashes, after Zobrist, which another set of ranges would meet once in 2^64 pieces. What does not tile
    its piece is left as it is.
    """
    rows = ranges.withColumn("piece", F.expr(f"begin div {PIECE_OFFSETS}"))
    parity = F.bit_xor(F.xxhash64("begin").bitwiseXOR(F.xxhash64("end")))
    pieces = rows.groupBy(*keys, "piece").agg(
        F.min("begin").alias("begin"),
        F.max("end").alias("end"),
        F.sum(F.col("end") - F.col("begin")).alias("length"),
        parity.alias("parity"),
    )
    is_span = F.col("length") == F.col("end") - F.col("begin")
    is_tiled = is_span & (F.col("parity") == F.xxhash64("begin").bitwiseXOR(F.xxhash64("end")))
    broken = F.broadcast(pieces.where(~is_tiled).select(*keys, "piece"))  # at most one for so many offsets
    whole = pieces.where(is_tiled).select(*keys, "begin", "end")
    return whole.unionByName(rows.join(broken, [*keys, "piece"], "left_semi").select(*keys, "begin", "end"))


def edges(ranges: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Return (*keys, offset, change): where the depth of the ranges [begin, end) changes, and by how much."""
    both = F.array(
        F.struct(F.col("begin").alias("offset"), F.lit(1).alias("change")),
        F.struct(F.col("end").alias("offset"), F.lit(-1).alias("change")),
    )
    split = ranges.select(*keys, F.inline(both))
    return split.groupBy(*keys, "offset").agg(F.sum("change").alias("change")).where(F.col("change") != 0)


def coverage(segments: DataFrame) -> DataFrame:
    """Return (run, group, topic, partition, produced, delivered, lost, duplicated), in records."""
    size = F.col("end") - F.col("begin")
    is_due, times = F.col("due") > 0, F.col("given")

    def total(condition: Column, records: Column = size) -> Column:
        return F.sum(F.when(condition, records).otherwise(0))

    return segments.groupBy(*PARTITION).agg(
        total(is_due).alias("produced"),
        total(times > 0).alias("delivered"),
        total(is_due & (times == 0)).alias("lost"),
        total(times > 1, size * (times - 1)).alias("duplicated"),
    )


def _of_depth(name: str, changes: Mapping[str, DataFrame]) -> DataFrame:
    """Return (*BOOK, offset, …): by how much the depth `name` changes at each offset, and 0 for every other one."""
    values = {each: F.col("change") if each == name else F.lit(0) for each in changes}
    return changes[name].select(*BOOK, "offset", *[value.cast("bigint").alias(each) for each, value in values.items()])
