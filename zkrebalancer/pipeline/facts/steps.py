"""The steps of an experiment as windows, from one `step` event to the next.

A run has few steps, so windows are joined by run to any rows that have a time.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.observe.measures import END
from zkrebalancer.pipeline.schema import FOREVER_US, ORDER, PARTITION

STEP = ("run", "step")


def windows(events: DataFrame) -> DataFrame:
    """Return (run, step, name, target, cause_id, from_us, to_us, unsettled_ms); `step` is a number.

    The last window is open.
    """
    by_run = Window.partitionBy("run").orderBy(*ORDER)
    return (
        events.where(F.col("kind") == "step")
        .coalesce(1)  # they are few, and need not be moved
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


def with_step(rows: DataFrame, windows: DataFrame) -> DataFrame:
    """Add `step`, the number of the window that contains `mono_us`; null outside all windows."""
    spans = windows.select("run", "step", "from_us", "to_us")
    at = F.col("mono_us")
    is_within = (F.col("from_us") <= at) & (F.col("to_us").isNull() | (at < F.col("to_us")))
    of_run = rows.withColumnRenamed("run", "run_of_row")
    joined = of_run.join(spans, (F.col("run_of_row") == F.col("run")) & is_within, "left")
    return joined.select(F.col("run_of_row").alias("run"), *[name for name in rows.columns if name != "run"], "step")


def owners_around(windows: DataFrame, intervals: DataFrame) -> DataFrame:
    """Return (run, step, target, group, topic, partition, before, after): the owners at both ends of each window."""
    until = F.coalesce("to_us", F.lit(FOREVER_US))
    pairs = intervals.join(windows.select(*STEP, "target", "from_us", until.alias("to_us")), "run")

    def owner_at(at: str) -> Column:
        is_held = (F.col("started_us") <= F.col(at)) & (F.col("ended_us").isNull() | (F.col("ended_us") > F.col(at)))
        return F.max_by(F.when(is_held, F.col("member")), F.when(is_held, F.col("began")))

    keys = ["step", "target", *PARTITION]
    return pairs.groupBy(*keys).agg(owner_at("from_us").alias("before"), owner_at("to_us").alias("after"))
