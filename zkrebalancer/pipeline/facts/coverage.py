"""How often each offset was produced and delivered: what `of_partition` needs, and what it makes of it.

There are as many produced ranges as `produced` events, so contiguous ones are merged first (`joined`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts import fates, of_partition
from zkrebalancer.pipeline.facts.eras import with_era
from zkrebalancer.pipeline.facts.one_pass import one_pass
from zkrebalancer.pipeline.schema import PARTITION

PIECE_OFFSETS = 65_536  # produced ranges are merged within pieces of this size
Tables = AbstractContextManager[Callable[[str], DataFrame]]


def tables_of_partitions(
    events: DataFrame, intervals: DataFrame, legs: DataFrame, stretches: DataFrame, deletions: DataFrame
) -> Tables:
    """Give a function from the name of a table in `of_partition.SCHEMAS` to the table."""
    log = ("run", "topic", "partition", "era")
    produced = with_era(events.where(F.col("kind") == "produced"), deletions).select(
        *log, F.col("first_offset").alias("begin"), (F.col("last_offset") + 1).alias("end")
    )
    rows = (
        _of_kind(joined(produced, log), of_partition.PRODUCED),
        _of_kind(intervals.select(*PARTITION, "era", "position", F.col("began").alias("since")), of_partition.INTERVAL),
        _of_kind(legs, of_partition.LEG),
        _of_kind(stretches, of_partition.STRETCH),
    )
    return one_pass(_all(rows), of_partition.KEY, (), of_partition.SCHEMAS, of_partition.PartitionFacts)


def delivery(
    segments: DataFrame, doubtful: DataFrame, excuses: DataFrame, legs: DataFrame, stretches: DataFrame
) -> Tables:
    """Give a function that returns the table `delivery` for its name.

    Columns: run, group, topic, partition; in records: produced, delivered, lost, duplicated, duplicated_outside_crash;
    in deliveries: out_of_order and unheld, those to a member that did not own the partition.
    """
    at = F.struct("mono_us", "block", "row").alias("at")
    rows = (
        _of_kind(segments, fates.SEGMENT),
        _of_kind(doubtful.select(*PARTITION, "era", "member", "started_us", "begin", "end", at), fates.SINGLE),
        _of_kind(excuses.withColumnRenamed("started_us", "held_us"), fates.EXCUSE),
        _of_kind(legs, fates.LEG),
        _of_kind(stretches, fates.STRETCH),
    )
    return one_pass(_all(rows), PARTITION, (), fates.SCHEMAS, fates.Fates)


def _of_kind(rows: DataFrame, what: str) -> DataFrame:
    return rows.withColumn("what", F.lit(what))


def _all(frames: tuple[DataFrame, ...]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


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
