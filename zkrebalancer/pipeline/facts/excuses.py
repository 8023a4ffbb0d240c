"""Intervals that a crash ended: their records from the committed offset on may be delivered once more."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.deliveries import OWNER
from zkrebalancer.pipeline.schema import ORDER

INTERVAL = (*OWNER, "started_us")


def excused(intervals: DataFrame) -> DataFrame:
    """Return (run, group, topic, partition, member, started_us, excused_us, position) of the excused intervals."""
    return intervals.where(F.col("excused_us").isNotNull()).select(*INTERVAL, "excused_us", "position")


def last_commits(events: DataFrame, excused: DataFrame) -> DataFrame:
    """Return (run, group, topic, partition, member, started_us, committed): the last commit in excused intervals."""
    commits = events.where(F.col("kind") == "committed").select(*OWNER, "offset", F.struct(*ORDER).alias("at"))
    in_time = (F.col("at.mono_us") >= F.col("started_us")) & (F.col("at.mono_us") <= F.col("excused_us"))
    of_intervals = commits.join(excused.drop("position"), list(OWNER)).where(in_time)
    return of_intervals.groupBy(*INTERVAL).agg(F.max_by("offset", "at").alias("committed"))
