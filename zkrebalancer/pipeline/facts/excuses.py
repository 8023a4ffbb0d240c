"""Intervals that a crash ended: their records from the committed offset on may be delivered once more.

An interval is excused if its member's session ended before the member stopped, or if the member stopped because its
session was lost. It is also excused if the member stopped and was found dead before the partition started again: the
member then died between its stop and its acknowledgement.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.observe.partition_history import CLOSED, LOST
from zkrebalancer.pipeline.facts.ownership import ENDED, OWNER, RESTARTED, member_ends, null
from zkrebalancer.pipeline.schema import ORDER, PARTITION

INTERVAL = (*OWNER, "started_us")


def excuses(events: DataFrame, intervals: DataFrame, starts: DataFrame) -> DataFrame:
    """Return (run, group, topic, partition, member, started_us, excused_us, committed): the excused intervals.

    `committed` is the last offset committed in the interval up to `excused_us`, or its position if there was none.
    """
    at_once = intervals.where(F.col("ended_by").isin(ENDED, LOST)).select(
        *INTERVAL, F.col("ended_us").alias("excused_us")
    )
    excused = at_once.unionByName(_stopped_before_death(events, intervals, starts))
    excused = excused.join(intervals.select(*INTERVAL, "position"), list(INTERVAL))
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


def _stopped_before_death(events: DataFrame, intervals: DataFrame, starts: DataFrame) -> DataFrame:
    """Return the stops followed by their member's death, as (*INTERVAL, excused_us)."""
    deaths = member_ends(events, starts).withColumn("what", F.lit("ended"))
    departures = member_ends(events.where(F.col("reason") != CLOSED), starts, "member_left")
    found_dead = deaths.unionByName(departures.withColumn("what", F.lit("left")))
    found_dead = found_dead.select(*OWNER, F.struct(*ORDER).alias("at"), "what", null("bigint", "started_us"))
    turns = _ownership_events(events, intervals)
    window = Window.partitionBy(*PARTITION).orderBy("at").rowsBetween(Window.unboundedPreceding, -1)
    turn = F.struct("what", "member", "started_us")
    is_turn = F.col("what").isin("started", "stopped", "closed", "deleted")
    is_stopped = F.col("turn.member") == F.col("member")
    # A member that closed ended its own session, so only its being found dead is evidence of a crash.
    may_be = F.when(F.col("what") == "ended", F.col("turn.what") == "stopped").when(
        F.col("what") == "left", F.col("turn.what").isin("stopped", "closed")
    )
    return (
        turns.unionByName(found_dead)
        .withColumn("turn", F.last(F.when(is_turn, turn), ignorenulls=True).over(window))
        .where(~is_turn & is_stopped & may_be)
        .groupBy(*OWNER, F.col("turn.started_us").alias("started_us"))
        .agg(F.min("at.mono_us").alias("excused_us"))
    )


def _ownership_events(events: DataFrame, intervals: DataFrame) -> DataFrame:
    """Return the events that decide whether a stop can be excused: starts, stops of intervals, topic deletions."""
    started = intervals.select(*OWNER, F.col("began").alias("at"), F.lit("started").alias("what"), "started_us")
    what = F.when(F.col("ended_by") == CLOSED, F.lit("closed")).otherwise(F.lit("stopped"))
    ended = intervals.where(~F.col("ended_by").isin(ENDED, LOST, RESTARTED))
    stopped = ended.select(*OWNER, F.col("ceased").alias("at"), what.alias("what"), "started_us")
    deletions = events.where(F.col("kind") == "topic_deleted").select("run", "topic", F.struct(*ORDER).alias("at"))
    deleted = intervals.select(*PARTITION).distinct().join(deletions, ["run", "topic"])
    deleted = deleted.select(
        *PARTITION, null("string", "member"), "at", F.lit("deleted").alias("what"), null("bigint", "started_us")
    )
    return started.unionByName(stopped).unionByName(deleted)
