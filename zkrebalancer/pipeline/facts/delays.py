"""Delays of records, as histograms whose bins are 1 % wide, so that partial counts can be computed anywhere and added.

The counts are exact, however the work was spread; percentiles read from them are at most 1 % off. The consumer measures
each record's delay and writes it into `delays_us` of `delivered`.
"""

from __future__ import annotations

import math

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.steps import with_step

BIN_WIDTH = 1.01
_SCALE = math.log(BIN_WIDTH)
CURVE_US = 1_000_000
SERIES = ("run", "group", "topic", "step")


def delays(events: DataFrame, windows: DataFrame) -> DataFrame:
    """Return (run, group, topic, step, bin, records, max_us): the number of records whose delay falls into each bin.

    Bin b covers BIN_WIDTH^b to BIN_WIDTH^(b+1) microseconds; delays below 1 µs are in bin 0.
    """
    records = with_step(_delivered(events), windows).select(*SERIES, F.explode("delays_us").alias("delay_us"))
    counted = records.groupBy(*SERIES, bin_of_delay())
    return counted.agg(F.count("*").alias("records"), F.max("delay_us").alias("max_us"))


def bin_of_delay() -> Column:
    """Return the column `bin`, the bin of `delay_us`."""
    return F.floor(F.log(F.greatest("delay_us", F.lit(1))) / F.lit(_SCALE)).cast("int").alias("bin")


def delay_figures(delays: DataFrame, keys: tuple[str, ...] = ("run", "group", "step")) -> DataFrame:
    """Return (*keys, records, delay_p50_ms, delay_p99_ms, delay_max_ms); percentiles by nearest rank."""
    bins = delays.groupBy(*keys, "bin").agg(F.sum("records").alias("records"), F.max("max_us").alias("max_us"))
    up_to = F.sum("records").over(Window.partitionBy(*keys).orderBy("bin"))  # one row per bin: fewer than 3,000
    total = F.sum("records").over(Window.partitionBy(*keys))
    bins = bins.withColumn("up_to", up_to).withColumn("total", total)
    middle_us = F.least(F.pow(F.lit(BIN_WIDTH), F.col("bin") + 0.5), F.col("max_us"))

    def percentile_ms(share: float) -> Column:
        return F.min(F.when(F.col("up_to") >= F.col("total") * share, middle_us)) / 1_000

    return bins.groupBy(*keys).agg(
        F.sum("records").alias("records"),
        percentile_ms(0.5).alias("delay_p50_ms"),
        percentile_ms(0.99).alias("delay_p99_ms"),
        (F.max("max_us") / 1_000).alias("delay_max_ms"),
    )


def delay_curve(events: DataFrame, blocks: DataFrame) -> DataFrame:
    """Return (run, group, second, records, mean_ms, max_ms): delays over time; `second` 0 is the run's first."""
    began = blocks.groupBy("run").agg(F.min("began_us").alias("began_us"))
    sums = (
        _delivered(events)
        .join(began, "run")
        .select(
            "run",
            "group",
            F.expr(f"(mono_us - began_us) div {CURVE_US}").alias("second"),
            F.size("delays_us").alias("records"),
            F.aggregate("delays_us", F.lit(0).cast("bigint"), lambda total, delay: total + delay).alias("total_us"),
            F.array_max("delays_us").alias("max_us"),
        )
    )
    records = F.sum("records").alias("records")
    mean_ms = (F.sum("total_us") / F.sum("records") / 1_000).alias("mean_ms")
    return sums.groupBy("run", "group", "second").agg(records, mean_ms, (F.max("max_us") / 1_000).alias("max_ms"))


def _delivered(events: DataFrame) -> DataFrame:
    is_timed = (F.col("kind") == "delivered") & (F.size("delays_us") > 0)
    return events.where(is_timed).select("run", "group", "topic", "mono_us", "delays_us")
