"""The effect of each step of an experiment: time to settle, time without an owner, partitions moved.

A window runs from one `step` event to the next; the definitions are those of `observe.measures`. A run has few steps,
so windows are joined by run to any rows that have a time.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.schema import FOREVER_US, ORDER, PARTITION

END = "end"
STEP = ("run", "step")


def windows(events: DataFrame) -> DataFrame:
    """Return (run, step, name, target, cause_id, from_us, to_us, unsettled_ms); `step` is a number.

    The last window is open.
    """
    by_run = Window.partitionBy("run").orderBy(*ORDER)
    return (
        events.where(F.col("kind") == "step")
        .select(
            "run",
            F.col("number").alias("step"),
            "name",
            "target",
            "cause_id",
            F.col("mono_us").alias("from_us"),
            F.lead("mono_us").over(by_run).alias("to_us"),
            F.lead("unsettled_ms").over(by_run).alias("unsettled_ms"),
        )
        .where(F.col("name") != END)
    )


def with_step(rows: DataFrame, windows: DataFrame, at: str = "mono_us") -> DataFrame:
    """Add `step`, the number of the window that contains `at`; null outside all windows."""
    spans = windows.select("run", "step", "from_us", "to_us")
    is_within = (F.col("from_us") <= F.col(at)) & (F.col("to_us").isNull() | (F.col(at) < F.col("to_us")))
    of_run = rows.withColumnRenamed("run", "run_of_row")
    joined = of_run.join(spans, (F.col("run_of_row") == F.col("run")) & is_within, "left")
    return joined.select(F.col("run_of_row").alias("run"), *[name for name in rows.columns if name != "run"], "step")


def steps(events: DataFrame, windows: DataFrame, intervals: DataFrame, gaps: DataFrame) -> DataFrame:
    """Return the windows, each with its effect.

    Columns: those of `windows`, settled_ms, first_record_ms, unowned_partition_ms, moved, moved_least,
    stopped_needlessly. `settled_ms` runs to the last start or end of an interval, `first_record_ms` to the first record
    that a partition delivered to the member that it went to, null if there is none; the others are sums over
    partitions. `unsettled_ms` is the time that the group was given, if it did not settle; then it counts as both times.
    """
    owners = owners_around(windows, intervals)
    changes = _last_changes(windows, intervals)
    figures = windows
    firsts = _first_records(events, windows, owners)
    for found in (changes, firsts, _unowned(windows, intervals, gaps), _moves(owners), _least_moves(owners)):
        figures = figures.join(found, list(STEP), "left")
    figures = figures.join(_needless_stops(windows, intervals, owners), list(STEP), "left")
    counts = ("unowned_partition_ms", "moved", "moved_least", "stopped_needlessly")
    settled = F.greatest(F.coalesce("changed_us", "from_us") - F.col("from_us"), F.lit(0)) / 1_000
    first_record = (F.col("first_us") - F.col("from_us")) / 1_000
    return figures.select(
        *windows.columns,
        F.coalesce("unsettled_ms", settled).alias("settled_ms"),
        F.coalesce(first_record, "unsettled_ms").alias("first_record_ms"),
        *[F.coalesce(name, F.lit(0)).alias(name) for name in counts],
    )


def owners_around(windows: DataFrame, intervals: DataFrame) -> DataFrame:
    """Return (run, step, target, group, topic, partition, before, after): the owners at both ends of each window."""
    until = F.coalesce("to_us", F.lit(FOREVER_US))
    pairs = intervals.join(windows.select(*STEP, "target", "from_us", until.alias("to_us")), "run")

    def owner_at(at: str) -> Column:
        is_held = (F.col("started_us") <= F.col(at)) & (F.col("ended_us").isNull() | (F.col("ended_us") > F.col(at)))
        return F.max_by(F.when(is_held, F.col("member")), F.when(is_held, F.col("began")))

    keys = ["step", "target", *PARTITION]
    return pairs.groupBy(*keys).agg(owner_at("from_us").alias("before"), owner_at("to_us").alias("after"))


def _first_records(events: DataFrame, windows: DataFrame, owners: DataFrame) -> DataFrame:
    """Return (run, step, first_us): when a record of a partition first came to the member that the step gave it to."""
    went = owners.where(F.col("after").isNotNull() & ~F.col("before").eqNullSafe(F.col("after")))
    delivered = with_step(events.where(F.col("kind") == "delivered"), windows)
    came = delivered.select(*PARTITION, "step", "mono_us", F.col("member").alias("after"))
    return came.join(went, [*PARTITION, "step", "after"]).groupBy(*STEP).agg(F.min("mono_us").alias("first_us"))


def _moves(owners: DataFrame) -> DataFrame:
    moved = F.coalesce(F.col("before") != F.col("after"), F.lit(col=False)).cast("bigint")
    return owners.groupBy(*STEP).agg(F.sum(moved).alias("moved"))


def _least_moves(owners: DataFrame) -> DataFrame:
    """Return (run, step, moved_least): the fewest moves after which the owners' counts differ by at most one."""
    present = owners.where(F.col("before").isNotNull() & F.col("after").isNotNull())
    totals = present.groupBy(*STEP).agg(F.count("*").alias("partitions"))
    members = owners.where(F.col("after").isNotNull()).select(*STEP, F.col("after").alias("member")).distinct()
    kept = present.groupBy(*STEP, F.col("before").alias("member")).agg(F.count("*").alias("kept"))
    by_step = Window.partitionBy(*STEP)
    counts = members.join(kept, [*STEP, "member"], "left").join(totals, list(STEP))
    held = F.coalesce("kept", F.lit(0))
    counts = counts.withColumn("kept", held).withColumn("members", F.count("*").over(by_step))
    rank = F.row_number().over(by_step.orderBy(F.desc("kept"), "member"))
    quota = F.expr("partitions div members") + F.when(rank <= F.expr("partitions % members"), 1).otherwise(0)
    surplus = F.sum(F.greatest(F.col("kept") - F.col("quota"), F.lit(0)))
    orphans = F.max("partitions") - F.sum("kept")
    return counts.withColumn("quota", quota).groupBy(*STEP).agg((surplus + orphans).alias("moved_least"))


def _needless_stops(windows: DataFrame, intervals: DataFrame, owners: DataFrame) -> DataFrame:
    """Return (run, step, stopped_needlessly): partitions that stopped and went back to the same member."""
    stops = intervals.where(F.col("ceased").isNotNull() & ~F.col("ended_by").isin("ended", "restarted"))
    stops = with_step(stops, windows, "ended_us").select(*PARTITION, "member", "step").distinct()
    back = owners.where((F.col("before") == F.col("after")) & (F.col("before") != F.coalesce("target", F.lit(""))))
    back = back.select("step", *PARTITION, F.col("before").alias("member"))
    found = stops.join(back, ["step", *PARTITION, "member"])
    return found.groupBy(*STEP).agg(F.count("*").alias("stopped_needlessly"))


def _last_changes(windows: DataFrame, intervals: DataFrame) -> DataFrame:
    started = intervals.select("run", F.col("started_us").alias("at_us"))
    ended = intervals.where(F.col("ended_us").isNotNull()).select("run", F.col("ended_us").alias("at_us"))
    changes = with_step(started.unionByName(ended), windows, "at_us")
    return changes.groupBy(*STEP).agg(F.max("at_us").alias("changed_us"))


def _unowned(windows: DataFrame, intervals: DataFrame, gaps: DataFrame) -> DataFrame:
    """Return (run, step, unowned_partition_ms); a new partition is unowned from the start of its window."""
    spans = windows.select(*STEP, "from_us", F.coalesce("to_us", F.col("from_us")).alias("to_us"))
    overlap = F.least(F.coalesce("ended_us", "to_us"), "to_us") - F.greatest("began_us", "from_us")
    within = gaps.select("run", "began_us", "ended_us").join(spans, "run").select(*STEP, overlap.alias("unowned_us"))
    firsts = intervals.groupBy(*PARTITION).agg(F.min("started_us").alias("at_us"))
    inside = (F.col("at_us") >= F.col("from_us")) & (F.col("at_us") < F.col("to_us"))
    new = firsts.join(spans, "run").where(inside).select(*STEP, (F.col("at_us") - F.col("from_us")).alias("unowned_us"))
    found = within.where(F.col("unowned_us") > 0).unionByName(new)
    return found.groupBy(*STEP).agg((F.sum("unowned_us") / 1_000).alias("unowned_partition_ms"))
