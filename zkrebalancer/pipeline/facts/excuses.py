"""Intervals that a crash ended: their records from the committed offset on may be delivered once more."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.deliveries import OWNER
from zkrebalancer.pipeline.schema import ORDER

INTERVAL = (*OWNER, "started_us")


def excuses(events: DataFrame, excused: DataFrame) -> DataFrame:
    """Return (run, group, topic, partition, member, started_us, excused_us, committed): the `excused` intervals.

    `committed` is the last offset committed in the interval up to `excused_us`, or its position if there was none.
    """
    commits = events.where(F.col("kind") == "committed").select(*OWNER, "offset", F.struct(*ORDER).alias("at"))
    in_time = (F.col("at.mono_us") >= F.col("started_us")) & (F.col("at.mono_us") <= F.col("excused_us"))
    last = (
        commits.join(excused.drop("position"), list(OWNER))
        .where(in_time)
        .groupBy(*INTERVAL)
        .agg(F.max_by("offset", "at").alias("committed"))
    )
    committed = F.coalesce("committed", "position").alias("committed")
    return excused.join(last, list(INTERVAL), "left").select(*INTERVAL, "excused_us", committed)
