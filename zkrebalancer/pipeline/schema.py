"""Events as columns, and what makes a line one that cannot be judged.

`EVENT` has every key of `docs/events.md`, all of them optional; which of them a kind needs is what `observe.reading`
asks, so the plain checker and this pipeline refuse the same lines. A row says where it came from: `run`, `file`, and
`block` and `row`, which order the lines of a file.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from zkrebalancer.observe.reading import KEYS

REJECTED = "rejected"  # the kind under which a line that cannot be judged is kept
NOT_JSON = "not a JSON object"
OTHER = "other"  # the kind of all events that no fact rests on
ORDER = ("mono_us", "file", "block", "row")  # that of the plain checker: by time, then by file and line
PARTITION = ("run", "group", "topic", "partition")

_TEXTS = (
    "host process group cause_id trigger mode command_id option member topic reason outcome name target protocol "
    "versions settings machine role"
)
_LONGS = (
    "ts_us mono_us generation member_count partition_count moved_count plan_us first_offset last_offset count offset "
    "settled_us pause_us_max epoch brokerid members seed number cpu_us rss_bytes requests bytes_in bytes_out gap_ms "
    "busy_us own_us processors"
)
_LISTS = {
    "partitions": ArrayType(IntegerType()),
    "positions": ArrayType(LongType()),
    "late_members": ArrayType(StringType()),
    "delays_us": ArrayType(LongType()),
}
EVENT = StructType(
    [StructField(name, StringType()) for name in _TEXTS.split()]
    + [StructField(name, LongType()) for name in _LONGS.split()]
    + [StructField("partition", IntegerType())]
    + [StructField(name, kind) for name, kind in _LISTS.items()]
)
WITH_KIND = StructType([*EVENT.fields, StructField("kind", StringType())])
PLACE = StructType(
    [
        StructField("run", StringType()),
        StructField("file", StringType()),
        StructField("block", LongType()),
        StructField("row", LongType()),
    ]
)
STORED = StructType(
    [
        *PLACE.fields,
        *EVENT.fields,
        StructField("text", StringType()),
        StructField("flaw", StringType()),
        StructField("kind", StringType()),
    ]
)
NOT_OF_THE_CHECKER: dict[str, tuple[str, ...]] = {  # kinds that only facts need
    "scenario": ("name",),
    "command_sent": ("group", "generation", "cause_id"),
    "command_acked": ("group", "generation", "cause_id"),
}
NEEDED: dict[str, tuple[str, ...]] = {kind: tuple(keys) for kind, keys in KEYS.items()} | NOT_OF_THE_CHECKER


def flaw() -> Column:
    """Return what is wrong with a parsed line as text, null if it can be judged."""
    is_nothing = F.col("kind").isNull() & F.col("mono_us").isNull()
    by_kind = F.when(is_nothing, F.lit(NOT_JSON)).when(
        F.col("kind").isNull() | F.col("mono_us").isNull(), F.lit("kind or mono_us is missing or of another type")
    )
    for kind, keys in NEEDED.items():
        by_kind = by_kind.when(F.col("kind") == kind, F.coalesce(*_flaws(keys), F.lit(None).cast("string")))
    return by_kind


def _flaws(keys: tuple[str, ...]) -> list[Column]:
    found = [F.when(F.col(key).isNull(), F.lit(f"{key} is missing or of another type")) for key in keys]
    if "positions" in keys:
        is_unequal = F.size("partitions") != F.size("positions")
        has_hole = [F.exists(name, lambda number: number.isNull()) for name in ("partitions", "positions")]
        bad = reduce(Column.__or__, has_hole, is_unequal)
        found.append(F.when(bad, F.lit("partitions and positions are not integers of equal number")))
    if "first_offset" in keys:
        is_range = (F.col("first_offset") >= 0) & (F.col("first_offset") <= F.col("last_offset"))
        found.append(F.when(~is_range, F.lit("first_offset and last_offset are no range")))
    return found
