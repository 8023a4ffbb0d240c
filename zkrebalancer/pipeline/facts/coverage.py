"""How often each offset was produced and delivered: what `of_partition` needs, and what it makes of it.

There are as many produced ranges as `produced` events, so contiguous ones are merged first (`joined`).
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts import fates, of_partition
from zkrebalancer.pipeline.facts.eras import with_era
from zkrebalancer.pipeline.facts.one_pass import Pass, union
from zkrebalancer.pipeline.schema import PARTITION

PIECE_OFFSETS = 65_536  # produced ranges are merged within pieces of this size


def tables_of_partitions(
    events: DataFrame, intervals: DataFrame, legs: DataFrame, stretches: DataFrame, deletions: DataFrame | None
) -> Pass:
    """Return the pass over partitions that makes the tables of `of_partition.SCHEMAS`."""
    log = ("run", "topic", "partition", "era")
    produced = with_era(events.where(F.col("kind") == "produced"), deletions).select(
        *log, F.col("first_offset").alias("begin"), (F.col("last_offset") + 1).alias("end")
    )
    rows = (
        (joined(produced, log), of_partition.PRODUCED),
        (intervals.select(*PARTITION, "era", "position", F.col("began").alias("since")), of_partition.INTERVAL),
        (legs, of_partition.LEG),
        (stretches, of_partition.STRETCH),
    )
    return Pass(union(rows), of_partition.KEY, (), of_partition.SCHEMAS, of_partition.PartitionFacts)


def delivery(
    segments: DataFrame,
    doubtful: DataFrame,
    excused: DataFrame,
    commits: DataFrame,
    legs: DataFrame,
    stretches: DataFrame,
) -> Pass:
    """Return the pass over the partitions of groups that makes the tables of `fates.SCHEMAS`."""
    at = F.struct("mono_us", "block", "row").alias("at")
    singles = doubtful.select(*PARTITION, "era", "member", "started_us", "position", "begin", "end", "bucket", at)
    rows = (
        (segments, fates.SEGMENT),
        (singles, fates.SINGLE),
        (excused.withColumnRenamed("started_us", "held_us"), fates.EXCUSE),
        (commits.withColumnRenamed("started_us", "held_us"), fates.COMMIT),
        (legs, fates.LEG),
        (stretches, fates.STRETCH),
    )
    return Pass(union(rows), PARTITION, (), fates.SCHEMAS, fates.Fates)


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
