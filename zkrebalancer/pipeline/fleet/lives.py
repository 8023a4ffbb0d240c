"""The life of each member of a fleet: when it came and went, also if no coordinator led at that moment.

A member's name is used once. A coordinator writes when it sees a member come or go, or finds what a dead one left; the
member itself, if its events are there, when it starts partitions and when it closes.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.observe.partition_history import CLOSED

SIGNS = ("fetcher_started", "fetcher_stopped", "delivered", "committed")  # written by the member itself
CRASHES = ("expired", "lost")
LONGEST_SESSION_US = 600_000_000  # assumed of a member whose session was not recorded
_ID = r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"  # what an agent adds to its client's name at each start


def lives_of(events: DataFrame) -> DataFrame:
    """Return a row for each member.

    Columns: `group, member, host` (null without events of its own). `came_us` and `left_us`: when a coordinator saw it
    come and go, or else when it was there first and when it closed. `began_us` and `ended_us`: the first and the last
    known moment. Null ends: it may still be there. `crashed`; `session_us` (null: unknown); `most_us`: the
    same, or LONGEST_SESSION_US. Of one that crashed, `seen_us` is the last sign of life, `silent_us` the time since
    then, at most `most_us`. `is_heard`: there are events of its own; `is_commanded`: it has acknowledged commands.
    """
    seen = _seen(events)
    whole = Window.partitionBy("group")
    gone_us = F.least("left_us", "freed_us", "closed_us")
    # The first known moment of a member that was there before the first event may be its end.
    is_known_before = gone_us.isNull() | (F.col("first_us") < gone_us)
    began_us = F.when(is_known_before, F.col("first_us")).otherwise(F.min("first_us").over(whole))
    is_found_dead = F.col("left_us").isNull() & F.col("closed_us").isNull() & F.col("is_freed_of_dead")
    rows = seen.select(
        *("group", "member", "host", "session_us", "is_heard", "is_commanded"),
        F.coalesce("joined_us", began_us).alias("came_us"),
        F.coalesce(F.least("left_us", "freed_us"), "closed_us").alias("left_us"),
        began_us.alias("began_us"),
        gone_us.alias("ended_us"),
        (F.col("is_said_dead") | is_found_dead).alias("crashed"),
        F.coalesce("session_us", F.lit(LONGEST_SESSION_US)).alias("most_us"),
    )
    found = rows.join(_last_signs(events, rows), ["group", "member"], "left")
    since_us = F.least(F.greatest(F.col("left_us") - F.col("seen_us"), F.lit(0)), "most_us")
    silent_us = F.when(F.col("seen_us").isNotNull(), since_us).otherwise(F.col("session_us"))
    # One that died while no coordinator led was found long after its session was over.
    over_us = F.least("ended_us", F.col("seen_us") + F.col("most_us"))
    ended_us = F.when(F.col("crashed"), over_us).otherwise(F.col("ended_us"))
    return found.withColumns({"silent_us": silent_us, "ended_us": ended_us})


def _seen(events: DataFrame) -> DataFrame:
    at, kind, reason = F.col("mono_us"), F.col("kind"), F.col("reason")
    joined, left, freed = kind == "member_joined", kind == "member_left", kind == "ownership_ended"
    closed = (kind == "fetcher_stopped") & (reason == CLOSED)
    own = kind.isin(*SIGNS)
    is_dead = F.coalesce(reason.isin(*CRASHES), F.lit(col=False))
    by_member = events.where(F.col("group").isNotNull() & F.col("member").isNotNull()).groupBy("group", "member")
    return by_member.agg(
        F.min(at).alias("first_us"),
        F.min(F.when(joined, at)).alias("joined_us"),
        F.min(F.when(left, at)).alias("left_us"),
        F.min(F.when(freed, at)).alias("freed_us"),
        F.min(F.when(closed, at)).alias("closed_us"),
        (F.max(F.when(joined, F.col("session_timeout_ms"))) * 1_000).alias("session_us"),
        F.max(F.when(own, F.col("host"))).alias("host"),
        F.bool_or(left & is_dead).alias("is_said_dead"),
        F.bool_or(freed & is_dead).alias("is_freed_of_dead"),
        F.bool_or(own).alias("is_heard"),
        F.bool_or(kind == "command_acked").alias("is_commanded"),
    )


def _last_signs(events: DataFrame, lives: DataFrame) -> DataFrame:
    """Return (group, member, seen_us) of each member that crashed; events after its end do not count."""
    crashed = lives.where("crashed").select("group", "member", "left_us")
    signs = events.where(F.col("kind").isin(*SIGNS)).select("group", "member", "mono_us")
    before = signs.join(crashed, ["group", "member"]).where(F.col("mono_us") <= F.col("left_us"))
    return before.groupBy("group", "member").agg(F.max("mono_us").alias("seen_us"))


def empty_spells(lives: DataFrame) -> DataFrame:
    """Return (group, empty_us, filled_us): times in which a group had no member, until the next one."""
    came = lives.select("group", F.col("began_us").alias("at_us"), F.lit(1).alias("change"))
    went = lives.where(F.col("ended_us").isNotNull()).select(
        "group", F.col("ended_us").alias("at_us"), F.lit(-1).alias("change")
    )
    in_time = Window.partitionBy("group").orderBy("at_us", F.desc("change"))
    counted = came.unionByName(went).select(
        "group",
        F.col("at_us").alias("empty_us"),
        F.sum("change").over(in_time.rowsBetween(Window.unboundedPreceding, 0)).alias("members"),
        F.lead("at_us").over(in_time).alias("filled_us"),
    )
    is_empty = (F.col("members") == 0) & F.col("filled_us").isNotNull()
    return counted.where(is_empty).select("group", "empty_us", "filled_us")


def steps(events: DataFrame, lives: DataFrame) -> DataFrame:
    """Return (group, at_us, name, client, joins, silent_us, partitions, mode, strategy): each coming and going.

    `client` is null for a member of which no host is known; `silent_us` is null if it crashed and the length of
    its silence is unknown, and 0 if it did not crash. `partitions`, `mode` and `strategy` (may be null) are those of
    the plans around it.
    """
    common = ("group", F.col("member").alias("name"), "host")
    joins = F.lit(col=True).alias("joins")
    came = lives.select(*common, F.col("came_us").alias("at_us"), joins, F.lit(0).alias("silent_us"))
    went = lives.where(F.col("left_us").isNotNull()).select(
        *common,
        F.col("left_us").alias("at_us"),
        F.lit(col=False).alias("joins"),
        F.when(F.col("crashed"), F.col("silent_us")).otherwise(0).alias("silent_us"),
    )
    placed = events.where(F.col("kind") == "rebalance_planned").select(
        "group", F.col("mono_us").alias("at_us"), F.col("partition_count").alias("partitions"), "mode", "strategy"
    )
    both = came.unionByName(went).unionByName(placed, allowMissingColumns=True)
    # Backwards: for each row, Spark would look anew at all that follow it.
    after, before = (
        Window.partitionBy("group").orderBy(order).rowsBetween(Window.unboundedPreceding, 0)
        for order in (F.desc("at_us"), F.asc("at_us"))
    )
    then = {
        name: F.coalesce(*(F.last(name, ignorenulls=True).over(window) for window in (after, before)))
        for name in ("partitions", "mode", "strategy")
    }
    rows = both.withColumns(then).where(F.col("name").isNotNull() & F.col("partitions").isNotNull())
    client = F.when(F.col("host").isNotNull(), F.concat_ws("@", client_of("name"), "host"))
    return rows.withColumn("client", client).drop("host")


def client_of(member: str) -> Column:
    """Return the name that a member's client keeps over restarts."""
    return F.regexp_replace(member, _ID, "")


def known(lives: DataFrame) -> DataFrame:
    """Return (group, members, unheard, crashed, sessions_unknown, members_now, is_recorded).

    `unheard`: members that acknowledged commands, but of which there is no event of their own. `sessions_unknown`: of
    those that crashed. `members_now`: at the end. `is_recorded`: some member's own events are there.
    """
    return lives.groupBy("group").agg(
        F.count("*").alias("members"),
        F.count_if(F.col("is_commanded") & ~F.col("is_heard")).alias("unheard"),
        F.count_if("crashed").alias("crashed"),
        F.count_if(F.col("crashed") & F.col("session_us").isNull()).alias("sessions_unknown"),
        F.count_if(F.col("ended_us").isNull()).alias("members_now"),
        F.bool_or("is_heard").alias("is_recorded"),
    )
