"""How often each offset was produced and delivered: lost, delivered or duplicated.

Offset ranges are summed as edges: +1 where a range begins, -1 where it ends. Summing by offset cancels the edges of
adjacent ranges and spreads even a hot partition over all tasks; a few true boundaries per partition remain. The counts
are constant between two boundaries: due but delivered 0 times means lost, delivered twice means duplicated.

There are as many produced ranges as `produced` events, so contiguous ones are merged first (`joined`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.deliveries import BOOK, OWNER
from zkrebalancer.pipeline.facts.eras import with_era
from zkrebalancer.pipeline.schema import PARTITION

PIECE_OFFSETS = 65_536  # produced ranges are merged within pieces of this size


def segments(
    events: DataFrame, intervals: DataFrame, legs: DataFrame, stretches: DataFrame, deletions: DataFrame
) -> DataFrame:
    """Return (run, group, topic, partition, era, begin, end, due, given): how often [begin, end) was due and delivered.

    `due` is 0 before the first position at which the group started the partition, and for offsets that were not
    delivered because a consumer was repositioned beyond them.
    """
    firsts = intervals.groupBy(*BOOK).agg(F.min_by("position", "began").alias("from"))
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
    """Return (*BOOK, begin, end): the offsets that a consumer skipped when it was repositioned."""
    held = stretches.where(F.col("started_us").isNotNull())
    ends = held.groupBy(*OWNER, "started_us").agg(F.max("end").alias("end"))
    in_interval = Window.partitionBy(*OWNER, "held_us").orderBy("started_us")
    return (
        legs.join(ends, [*OWNER, "started_us"], "left")
        .withColumn("begin", F.lag(F.greatest("position", "end")).over(in_interval))
        .where(F.col("begin") < F.col("position"))
        .select(*BOOK, "begin", F.col("position").alias("end"))
    )


def joined(ranges: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Merge ranges that tile a piece of PIECE_OFFSETS; return (*keys, begin, end), other pieces unchanged.

    Ranges tile a piece if their lengths add up to its span and, at every offset inside the span, an even number of
    ranges begins or ends: the depth is then odd everywhere, and with that total length it can only be 1. Evenness is
    tested by the XOR of the hashes of all ends (Zobrist hashing); a false match has a chance of 2^-64 per piece.
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
    broken = pieces.where(~is_tiled).select(*keys, "piece")  # at most one per PIECE_OFFSETS
    whole = pieces.where(is_tiled).select(*keys, "begin", "end")
    return whole.unionByName(rows.join(broken, [*keys, "piece"], "left_semi").select(*keys, "begin", "end"))


def edges(ranges: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Return (*keys, offset, change): by how much the depth of the ranges [begin, end) changes at an offset."""
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
    """Return (*BOOK, offset, one column per depth): the change of the depth `name`, and 0 for the other depths."""
    values = {each: F.col("change") if each == name else F.lit(0) for each in changes}
    return changes[name].select(*BOOK, "offset", *[value.cast("bigint").alias(each) for each, value in values.items()])
