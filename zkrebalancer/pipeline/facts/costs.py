"""The cost of each process in each step: sampled CPU time and memory, counted requests and bytes.

Counters never fall while a process lives. A counter that falls has restarted from zero.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.steps import with_step
from zkrebalancer.pipeline.schema import ORDER

PROCESS = ("run", "role", "target")


def costs(events: DataFrame, windows: DataFrame) -> DataFrame:
    """Return (run, step, role, target, cpu_ms, rss_bytes_max, requests, bytes); null where nothing was measured."""
    rows = events.where(F.col("kind").isin("sampled", "counted"))
    one_process = Window.partitionBy(*PROCESS, "kind").orderBy(*ORDER)  # one row per second

    def growth(total: Column) -> Column:
        before = F.lag(total).over(one_process)
        return F.when(before.isNull(), 0).when(total >= before, total - before).otherwise(total)

    grown = rows.select(
        *PROCESS,
        "mono_us",
        "kind",
        "rss_bytes",
        growth(F.col("cpu_us")).alias("cpu_us"),
        growth(F.col("requests")).alias("requests"),
        growth(F.col("bytes_in") + F.col("bytes_out")).alias("bytes"),
    )

    def sum_of(kind: str, name: str) -> Column:
        return F.sum(F.when(F.col("kind") == kind, F.col(name)))

    spent = with_step(grown, windows).groupBy("run", "step", "role", "target")
    return spent.agg(
        (sum_of("sampled", "cpu_us") / 1_000).alias("cpu_ms"),
        F.max("rss_bytes").alias("rss_bytes_max"),
        sum_of("counted", "requests").alias("requests"),
        sum_of("counted", "bytes").alias("bytes"),
    )
