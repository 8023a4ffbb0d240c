"""Puts the events of runs of several hosts, or of several boots of one, on one clock per run (`observe.clocks`).

Spark finds these runs, and moves their events. The driver looks at what ties clocks together: all commands, and of
records no more than a `Witness` keeps. Other runs, nearly all, are read as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere
from pyspark.sql.types import LongType, StructField, StructType

from zkrebalancer.observe import hosts
from zkrebalancer.observe.clocks import Alignment, align
from zkrebalancer.observe.hosts import REBOOTED_US, SAMPLED, ClockNames, Witness
from zkrebalancer.pipeline.placing import placed_by
from zkrebalancer.pipeline.schema import BOUNDS

ALIGNED = "aligned"
ENDS = ("ownership_ended", "member_left")
TIES = ("rebalance_planned", "command_sent", "command_acked", "fetcher_started", "fetcher_stopped", *ENDS)
RECORDS = ("produced", "delivered")
TIE_KEYS = (
    *("host", "boot", "ts_us", "mono_us", "kind", "group", "generation", "cause_id", "command_id", "asked_us"),
    *("topic", "partition", "first_offset", "last_offset", "sent_us", "member", "reason"),
)
_BOOT = ("host", "boot", "nearby")
_SAMPLE = ("topic", "partition", "roundest")
_PLACED = StructType([StructField(name, LongType()) for name in ("at_us", *BOUNDS)])
Clocks = tuple[ClockNames, Alignment]


def find_clocks(events: DataFrame, blocks: DataFrame) -> dict[str, Clocks]:
    """Return how to read the clocks of each run that has several; `blocks` are those of the events."""
    of_blocks = blocks.coalesce(1).groupBy("run").agg(F.flatten(F.collect_set("clocks")).alias("clocks"))
    found = of_blocks.where(F.size(F.array_distinct("clocks")) > 1).select("run").collect()
    if not found:
        return {}
    own = events.where(F.col("run").isin(*[row["run"] for row in found]) & F.col("mono_us").isNotNull())
    clocks = own.groupBy("run", *_boot()).agg(F.min(_wall_us()).alias("ts_us")).orderBy("run", *_BOOT)
    of_runs: dict[str, ClockNames] = {}
    for row in clocks.toLocalIterator():
        names = of_runs.setdefault(row["run"], ClockNames())
        names.note({"host": row["host"], "boot": row["boot"], "ts_us": row["ts_us"], "mono_us": 0})
    return {run: (names, _align(events, run, names)) for run, names in of_runs.items() if names.count > 1}


def _align(events: DataFrame, run: str, names: ClockNames) -> Alignment:
    """Align the clocks of one run by the events that tie them, and by the first and the last of each clock."""
    own = events.where((F.col("run") == run) & F.col("mono_us").isNotNull())
    is_record = F.col("kind").isin(*RECORDS)
    ends = own.groupBy(*_boot()).agg(
        F.min_by(F.struct("ts_us", "mono_us"), "mono_us").alias("first"),
        F.max_by(F.struct("ts_us", "mono_us"), "mono_us").alias("last"),
        F.count("*").alias("count"),
        F.count_if(is_record).alias("records"),
    )
    witness, count = Witness(names), 0
    for row in ends.orderBy(*_BOOT).toLocalIterator():
        count += row["records"]
        for at in (row["first"], row["last"]):
            event = {"host": row["host"], "boot": row["boot"], **at.asDict(), "kind": "end"}
            witness.add(event, row["count"])
    for tied in (own.where(F.col("kind").isin(*TIES)), followed(own.where(is_record), count)):
        for row in tied.select(*TIE_KEYS).toLocalIterator():
            witness.add(row.asDict(), 0)
    return align(witness.evidence())


def followed(records: DataFrame, count: int) -> DataFrame:
    """Return those of `count` produced and delivered ranges that a `Witness` of all of them would have kept."""
    digits = "length(bin(if(first_offset > 0, (first_offset - 1) ^ last_offset, last_offset))) - int(first_offset > 0)"
    roundest = F.expr(f"shiftleft(shiftright(last_offset, {digits}), {digits})")
    records = records.withColumn("roundest", roundest).where(F.col("roundest") % SAMPLED == 0)
    stride = SAMPLED
    if count > hosts.MAX_SAMPLES:
        keys = records.where("kind = 'delivered' or sent_us is not null").select("kind", *_SAMPLE).distinct()
        zeros = F.expr("if(roundest = 0, 63, length(bin(roundest)) - length(trim(TRAILING '0' FROM bin(roundest))))")
        found = [tuple(row) for row in keys.groupBy("kind", zeros).count().collect()]
        while stride < hosts.MAX_STRIDE and _most(found, stride) > hosts.MAX_SAMPLES:
            stride *= 2
    return records.where(F.col("roundest") % stride == 0)


def _most(found: Iterable[tuple[str, int, int]], stride: int) -> int:
    """Return of how many records of a kind at most the offset is a multiple; `found`: by kind and power of two."""
    counts = Counter[str]()
    for kind, zeros, count in found:
        counts[kind] += count if 1 << zeros >= stride else 0
    return max(counts.values(), default=0)


def _wall_us() -> Column:
    return F.col("ts_us") - F.col("mono_us")


def _boot() -> list[Column]:
    """Return what tells the boots of a run apart, named as in _BOOT; `ClockNames` has the last word."""
    return [F.col("host"), F.col("boot"), F.floor(_wall_us() / REBOOTED_US).alias("nearby")]


def aligned(events: DataFrame, clocks: Mapping[str, Clocks]) -> DataFrame:
    """Return the events of these runs at times of one clock, with BOUNDS."""
    place = F.arrow_udf(lambda *columns: _place(clocks, columns), _PLACED)  # type: ignore[attr-defined]  # it is new
    found = place("run", "host", "boot", "ts_us", "mono_us")
    moved = events.where(F.col("run").isin(*clocks) & F.col("mono_us").isNotNull()).withColumn("placed", found)
    bounds = {name: F.col(f"placed.{name}") for name in BOUNDS}
    return moved.withColumns({"mono_us": F.col("placed.at_us"), **bounds}).drop("placed")


def on_one_clock(events: DataFrame, blocks: DataFrame, keep: Callable[[str, DataFrame], DataFrame]) -> DataFrame:
    """Return all events, those of runs with several clocks at times of one; `keep` stores a table and reads it back."""
    clocks = find_clocks(events, blocks)
    if not clocks:
        return events
    is_moved = F.col("run").isin(*clocks) & F.col("mono_us").isNotNull()
    return events.where(~is_moved).unionByName(keep(ALIGNED, aligned(events, clocks)))


def _place(clocks: Mapping[str, Clocks], columns: Sequence[pa.Array[Any]]) -> pa.StructArray:
    """Place events, of which `columns` have runs, hosts, boots, times by the wall and by their own clocks."""
    rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
    keys = [row[:3] if row[2] else row for row in rows]  # only events without a boot have to be looked at one by one
    of_key = {key: _clock_of(clocks, row) for key, row in dict(zip(keys, rows, strict=True)).items()}
    times = columns[-1].to_numpy(zero_copy_only=False)
    found = placed_by([of_key[key] for key in keys], times, lambda of: (clocks[of[0]][1], of[1]))
    return pa.StructArray.from_arrays([pa.array(each, pa.int64()) for each in found], names=_PLACED.names)


def _clock_of(clocks: Mapping[str, Clocks], row: tuple[Any, ...]) -> tuple[str, str]:
    run, host, boot, ts_us, mono_us = row
    return run, clocks[run][0].of({"host": host, "boot": boot, "ts_us": ts_us, "mono_us": mono_us})
