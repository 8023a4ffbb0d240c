"""From the facts of many runs to one row per run, and to the delays of records around the changes.

Tables that grow with the events stay in Spark. The driver gets one row per run, a few hundred points per curve, and the
intervals of a few partitions.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from zkrebalancer.observe.measures import BEFORE, REST
from zkrebalancer.pipeline.facts.delays import bin_of_delay, delay_figures
from zkrebalancer.pipeline.facts.steps import STEP, owners_around, with_step
from zkrebalancer.pipeline.schema import FOREVER_US, PARTITION

SLOT_MS = 500
BEFORE_MS, AFTER_MS = 2_000, 60_000  # how far the curves reach before and after a change


def run_measures(tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return one row for each run; null where nothing was measured.

    During the changes: `settled_ms` and `first_record_ms` (medians), the sums `unowned_partition_s`, `moved`,
    `moved_above_least` and `stopped_needlessly`.
    From the first change on: `delay_p50_ms`, `delay_p99_ms`, `delay_max_ms`, `load_peak` (maximum over the steps).
    Over the whole run: `lost`, `duplicated`, `out_of_order`, `overlaps`. What runs cost is in their results.
    """
    steps = tables["steps"]
    changing = steps.where(~F.col("name").isin(BEFORE, REST))
    of_changes = changing.groupBy("run").agg(
        F.percentile("settled_ms", 0.5).alias("settled_ms"),
        F.percentile("first_record_ms", 0.5).alias("first_record_ms"),
        (F.sum("unowned_partition_ms") / 1_000).alias("unowned_partition_s"),
        F.sum("moved").alias("moved"),
        F.sum(F.greatest(F.col("moved") - F.col("moved_least"), F.lit(0))).alias("moved_above_least"),
        F.sum("stopped_needlessly").alias("stopped_needlessly"),
    )
    first = steps.where(F.col("name") != BEFORE).select("run", "step")
    delayed = delay_figures(tables["delays"].join(first, ["run", "step"]), ("run",)).drop("records")
    peaks = load_peaks(tables["events"], tables["intervals"], steps).join(first, list(STEP))
    peak = peaks.groupBy("run").agg(F.max("load_peak").alias("load_peak"))
    judged = tables["runs"].select("run", "lost", "duplicated", "out_of_order", "overlaps")
    row = judged
    for part in (of_changes, delayed, peak):
        row = row.join(part, "run", "left")
    return row


def changes(tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return (run, step, name, settled_ms, first_record_ms, unowned_partition_s), a row for each change of each run."""
    unowned_s = (F.col("unowned_partition_ms") / 1_000).alias("unowned_partition_s")
    rows = tables["steps"].where(~F.col("name").isin(BEFORE, REST)).orderBy("run", "step")
    return rows.select("run", "step", "name", "settled_ms", "first_record_ms", unowned_s)


def load_peaks(events: DataFrame, intervals: DataFrame, steps: DataFrame) -> DataFrame:
    """Return (run, step, load_peak): the highest load over the mean load of all owners at the end of the step.

    The load of a partition is the number of records produced to it during the step.
    """
    size = F.col("last_offset") - F.col("first_offset") + 1
    produced = with_step(events.where(F.col("kind") == "produced"), steps).groupBy(*STEP, "topic", "partition")
    ended = owners_around(steps.where(F.col("to_us").isNotNull()), intervals).where(F.col("after").isNotNull())
    owners = ended.select("step", *PARTITION, F.col("after").alias("member"))
    loaded = owners.join(produced.agg(F.sum(size).alias("records")), [*STEP, "topic", "partition"], "left")
    loads = loaded.groupBy(*STEP, "member").agg(F.sum(F.coalesce("records", F.lit(0))).alias("load"))
    return loads.groupBy(*STEP).agg(F.try_divide(F.max("load"), F.avg("load")).alias("load_peak"))


def delay_around_changes(events: DataFrame, steps: DataFrame, labels: DataFrame) -> DataFrame:
    """Return (label, slot_ms, delay_p50_ms, delay_p99_ms, delay_max_ms) of the records sent around the changes.

    `labels`: (run, label); runs with one label form one curve. `slot_ms` is the time from a change to the sending of a
    record, in steps of SLOT_MS. A record belongs to the last change before it, or else to the first change.
    """
    changes = steps.where(~F.col("name").isin(BEFORE, REST)).join(labels, "run")
    spans = changes.groupBy("run", "label").agg(F.collect_list(F.struct("from_us", "to_us")).alias("spans"))
    delivered = events.where((F.col("kind") == "delivered") & (F.size("delays_us") > 0))
    records = delivered.join(spans, "run").select("label", "spans", "mono_us", F.explode("delays_us").alias("delay_us"))
    sent = F.col("mono_us") - F.col("delay_us")
    around = records.withColumn("since_us", F.explode(F.transform("spans", lambda span: _since(span, sent))))
    slot = F.floor(F.col("since_us") / (SLOT_MS * 1_000)) * SLOT_MS
    bins = around.where(F.col("since_us").isNotNull()).groupBy("label", slot.alias("slot_ms"), bin_of_delay())
    counted = bins.agg(F.count("*").alias("records"), F.max("delay_us").alias("max_us"))
    return delay_figures(counted, ("label", "slot_ms")).drop("records").orderBy("label", "slot_ms")


def _since(span: Column, sent: Column) -> Column:
    since, ends = sent - span["from_us"], F.coalesce(span["to_us"], F.lit(FOREVER_US))
    is_near = (since >= -BEFORE_MS * 1_000) & (since < AFTER_MS * 1_000) & (sent < ends)
    return F.when(is_near, since)


def timelines(intervals: DataFrame, steps: DataFrame, runs: list[str], most: int) -> DataFrame:
    """Return (run, topic, partition, member, from_s, to_s): the intervals of some partitions of these runs.

    A hash picks at most `most` partitions of each run. Seconds count from the first change.
    """
    changes = steps.where(F.col("run").isin(runs) & (F.col("name") != BEFORE))
    first = changes.groupBy("run").agg(F.min("from_us").alias("first_us"), F.max("to_us").alias("last_us"))
    of_runs = intervals.where(F.col("run").isin(runs)).join(first, "run")
    by_hash = Window.partitionBy("run").orderBy(F.xxhash64("topic", "partition"), "topic", "partition")
    partitions = (
        of_runs.select("run", "topic", "partition").distinct().withColumn("place", F.row_number().over(by_hash))
    )
    drawn = partitions.where(F.col("place") <= most).drop("place")
    ended = F.coalesce("ended_us", "last_us")
    return (
        of_runs.join(drawn, ["run", "topic", "partition"])
        .select(
            "run",
            "topic",
            "partition",
            "member",
            ((F.col("started_us") - F.col("first_us")) / 1_000_000).alias("from_s"),
            ((F.least(ended, "last_us") - F.col("first_us")) / 1_000_000).alias("to_s"),
        )
        .orderBy("run", "topic", "partition", "from_s")
    )
