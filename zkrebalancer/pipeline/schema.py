"""The columns of events, and the checks of lines.

`COMMON` and `REST` have every key of `docs/reference/events.md`, all optional. Each kind requires what
`observe.reading` requires, so the plain checker and this pipeline reject the same lines. `run`, `file`, `block` and
`row` say where a row came from; `block` and `row` order the lines of a file.

Parsing and storing a column costs time for every line, even if it is empty, and most lines are of the BULK kinds, which
have few keys. So only the COMMON keys have columns of their own. The others are nested in one column, `rest`, which is
not parsed for BULK kinds.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from zkrebalancer.observe.reading import KEYS, MAX_NUMBER

REJECTED = "rejected"  # the kind of a line that is invalid
NOT_JSON = "not a JSON object"
OTHER = "other"  # the kind of all events that no fact uses
ORDER = ("mono_us", "file", "block", "row")  # as in the plain checker: by time, then file and line
PARTITION = ("run", "group", "topic", "partition")

FOREVER_US = (1 << 63) - 1
BOUNDS = ("early_us", "late_us")  # by how much an event may have been earlier, or later, than its `mono_us`
BULK = ("produced", "delivered", "committed")
COMMON = StructType(
    [
        StructField(name, StringType())
        for name in ("host", "boot", "process", "group", "cause_id", "topic", "member", "kind")
    ]
    + [StructField(name, LongType()) for name in ("ts_us", "mono_us", "generation")]
    + [StructField(name, LongType()) for name in ("first_offset", "last_offset", "count", "offset", "sent_us")]
    + [StructField("partition", IntegerType()), StructField("delays_us", ArrayType(LongType()))]
)
_TEXTS = "trigger mode strategy command_id option reason outcome name target protocol versions settings machine role"
_LONGS = (
    "member_count partition_count moved_count plan_us settled_us pause_us_max epoch brokerid members seed number "
    "cpu_us rss_bytes requests bytes_in bytes_out gap_ms busy_us own_us processors dropped_count "
    "unsettled_ms asked_us session_timeout_ms"
)
_LISTS = {
    "partitions": ArrayType(IntegerType()),
    "positions": ArrayType(LongType()),
    "late_members": ArrayType(StringType()),
}
REST = StructType(
    [StructField(name, StringType()) for name in _TEXTS.split()]
    + [StructField(name, LongType()) for name in _LONGS.split()]
    + [StructField(name, kind) for name, kind in _LISTS.items()]
)
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
        *[field for field in COMMON.fields if field.name != "kind"],
        StructField("rest", REST),
        StructField("text", StringType()),
        StructField("flaw", StringType()),
        StructField("kind", StringType()),
    ]
)
NOT_OF_THE_CHECKER: dict[str, tuple[str, ...]] = {  # kinds that the checker does not read
    "scenario": ("name",),
    "command_sent": ("group", "generation", "cause_id"),
    "command_acked": ("group", "generation", "cause_id"),
    "events_dropped": ("dropped_count",),
}
NEEDED: dict[str, tuple[str, ...]] = {kind: tuple(keys) for kind, keys in KEYS.items()} | NOT_OF_THE_CHECKER


def flaw() -> Column:
    """Return why a parsed line (columns COMMON and `rest`) is invalid, as text; null if it is valid."""
    is_nothing = F.col("kind").isNull() & F.col("mono_us").isNull()
    by_kind = F.when(is_nothing, F.lit(NOT_JSON)).when(
        F.col("kind").isNull() | F.col("mono_us").isNull(), F.lit("kind or mono_us is missing or of another type")
    )
    by_kind = by_kind.when(~F.col("mono_us").between(-MAX_NUMBER, MAX_NUMBER), F.lit("mono_us is out of range"))
    for kind in (*BULK, *(kind for kind in NEEDED if kind not in BULK)):
        by_kind = by_kind.when(F.col("kind") == kind, F.coalesce(*_flaws(NEEDED[kind]), F.lit(None).cast("string")))
    return by_kind


def _flaws(keys: tuple[str, ...]) -> list[Column]:
    column = {key: F.col(key if key in COMMON.names else f"rest.{key}") for key in keys}
    found = [F.when(column[key].isNull(), F.lit(f"{key} is missing or of another type")) for key in keys]
    if "positions" in keys:
        lists = (column["partitions"], column["positions"])
        is_unequal = F.size(lists[0]) != F.size(lists[1])
        has_hole = [F.exists(each, lambda number: number.isNull()) for each in lists]
        bad = reduce(Column.__or__, has_hole, is_unequal)
        found.append(F.when(bad, F.lit("partitions and positions are not integers of equal number")))
    if "first_offset" in keys:
        is_range = (F.col("first_offset") >= 0) & F.col("last_offset").between(F.col("first_offset"), MAX_NUMBER)
        found.append(F.when(~is_range, F.lit("first_offset and last_offset are not a range")))
    return found
