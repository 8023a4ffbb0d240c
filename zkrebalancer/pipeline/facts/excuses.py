"""Holds that ended by a crash: what they were given at or above the committed offset may be given once more.

A hold is excused when its consumer's session ends before it stopped, or it stopped because its session was lost. So is
one whose consumer stopped and is then found dead before anybody started the partition anew: it died between its stop
and its acknowledgement.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.observe.partition_history import CLOSED, LOST
from zkrebalancer.pipeline.facts.ownership import ENDED, HOLDER, RESTARTED, member_ends
from zkrebalancer.pipeline.schema import ORDER, PARTITION

HOLD = (*HOLDER, "started_us")


def excuses(events: DataFrame, intervals: DataFrame, starts: DataFrame) -> DataFrame:
    """Return (run, group, topic, partition, member, started_us, excused_us, committed): the excused holds.

    `committed` is the last offset committed for the hold before `excused_us`, its position if there was none.
    """
    at_once = intervals.where(F.col("ended_by").isin(ENDED, LOST)).select(*HOLD, F.col("ended_us").alias("excused_us"))
    excused = at_once.unionByName(_forgiven(events, intervals, starts))
    excused = excused.join(intervals.select(*HOLD, "position"), list(HOLD))
    commits = events.where(F.col("kind") == "committed").select(*HOLDER, "offset", F.struct(*ORDER).alias("at"))
    in_time = (F.col("at.mono_us") >= F.col("started_us")) & (F.col("at.mono_us") <= F.col("excused_us"))
    last = (
        commits.join(excused.drop("position"), list(HOLDER))
        .where(in_time)
        .groupBy(*HOLD)
        .agg(F.max_by("offset", "at").alias("committed"))
    )
    committed = F.coalesce("committed", "position").alias("committed")
    return excused.join(last, list(HOLD), "left").select(*HOLD, "excused_us", committed)


def _forgiven(events: DataFrame, intervals: DataFrame, starts: DataFrame) -> DataFrame:
    """Return the stops that count as none, as (*HOLD, excused_us)."""
    deaths = member_ends(events, starts).withColumn("what", F.lit("ended"))
    departures = member_ends(events.where(F.col("reason") != CLOSED), starts, "member_left")
    found_dead = deaths.unionByName(departures.withColumn("what", F.lit("left")))
    found_dead = found_dead.select(*HOLDER, F.struct(*ORDER).alias("at"), "what", _null("bigint", "started_us"))
    turns = _turns(events, intervals)
    window = Window.partitionBy(*PARTITION).orderBy("at").rowsBetween(Window.unboundedPreceding, -1)
    turn = F.struct("what", "member", "started_us")
    is_turn = F.col("what").isin("started", "stopped", "closed", "deleted")
    is_stopped = F.col("turn.member") == F.col("member")
    # One that closed wished to leave, so the end of its session says nothing; that it was found dead does.
    may_be = F.when(F.col("what") == "ended", F.col("turn.what") == "stopped").when(
        F.col("what") == "left", F.col("turn.what").isin("stopped", "closed")
    )
    return (
        turns.unionByName(found_dead)
        .withColumn("turn", F.last(F.when(is_turn, turn), ignorenulls=True).over(window))
        .where(~is_turn & is_stopped & may_be)
        .groupBy(*HOLDER, F.col("turn.started_us").alias("started_us"))
        .agg(F.min("at.mono_us").alias("excused_us"))
    )


def _turns(events: DataFrame, intervals: DataFrame) -> DataFrame:
    """Return what decides whether a stop can still be forgiven: starts, stops that ended a hold, deleted topics."""
    started = intervals.select(*HOLDER, F.col("began").alias("at"), F.lit("started").alias("what"), "started_us")
    what = F.when(F.col("ended_by") == CLOSED, F.lit("closed")).otherwise(F.lit("stopped"))
    ended = intervals.where(~F.col("ended_by").isin(ENDED, LOST, RESTARTED))
    stopped = ended.select(*HOLDER, F.col("ceased").alias("at"), what.alias("what"), "started_us")
    deletions = events.where(F.col("kind") == "topic_deleted").select("run", "topic", F.struct(*ORDER).alias("at"))
    deleted = intervals.select(*PARTITION).distinct().join(deletions, ["run", "topic"])
    deleted = deleted.select(
        *PARTITION, _null("string", "member"), "at", F.lit("deleted").alias("what"), _null("bigint", "started_us")
    )
    return started.unionByName(stopped).unionByName(deleted)


def _null(kind: str, name: str) -> Column:
    return F.lit(None).cast(kind).alias(name)
