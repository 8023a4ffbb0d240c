"""The events of a fleet as tables: what each cause cost, who was late, and how the members of each group changed.

Hosts and boots have monotonic clocks of their own, so events are ordered by the wall clock here. A time that is shorter
than the difference between two hosts' clocks is therefore not exact.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.observe.holdings import ENDED
from zkrebalancer.observe.rebalances import UNKNOWN_CAUSE
from zkrebalancer.pipeline import ingest, local_files
from zkrebalancer.pipeline.fleet.lives import SIGNS, client_of, empty_spells

FLEET = "fleet"  # the run of all events
PLAN = ("run", "group", "generation", "cause_id")
KINDS = (
    *SIGNS,
    "member_joined",
    "member_left",
    "ownership_ended",
    "topic_deleted",
    "rebalance_requested",
    "rebalance_planned",
    "rebalance_finished",
    "command_sent",
    "command_acked",
)
BACK = ("topic-created", "topic-recreated", "subscription-changed")  # causes: before, nobody wanted these partitions
SESSION_OF_THE_DEAD = "session-of-the-dead"  # a cause: nothing is planned while a crashed member's session lasts


def read(spark: SparkSession, source: str, folder: str) -> DataFrame:
    """Store the events below `source`, a path or a URL, in `folder`; return those of KINDS, a column for every key.

    Raises:
        NoEventsError: there is no event file below `source`.

    """
    if "://" in source:
        parsed = ingest.parse(ingest.read_lines(spark, source))
        wanted = parsed.where(F.col("kind").isin(*KINDS))
        ingest.write_events(wanted.withColumn("delays_us", F.lit(None).cast("array<bigint>")), folder)
    else:
        local_files.store_events(spark, local_files.event_files(local_files.Source(source)), Path(folder).absolute())
    events = ingest.read_events(spark, folder)
    wanted = events.where(F.col("kind").isin(*KINDS) & F.col("ts_us").isNotNull())
    return wanted.withColumn("run", F.lit(FLEET)).withColumn("mono_us", F.col("ts_us"))


def by_group(events: DataFrame) -> DataFrame:
    """Return the events of groups, each group being a run: then no task needs the events of all."""
    return events.where(F.col("group").isNotNull()).withColumn("run", F.col("group"))


def costly_gaps(lives: DataFrame, gaps: DataFrame, plans: DataFrame) -> DataFrame:
    """Return the times without an owner, without those parts in which the group had no member, or wanted no partition.

    Columns: those of the table `gaps` without open ones, and `unowned_us`. `plans`: the table `rebalances`.
    """
    gaps = _wanted(gaps.where(F.col("ended_us").isNotNull()), plans)
    spells = empty_spells(lives).withColumnsRenamed({"group": "spell_group"})
    is_within = (
        (F.col("group") == F.col("spell_group"))
        & (F.col("empty_us") < F.col("ended_us"))
        & (F.col("filled_us") > F.col("began_us"))
    )
    overlap = F.when(
        F.col("empty_us").isNotNull(), F.least("filled_us", "ended_us") - F.greatest("empty_us", "began_us")
    )
    joined = gaps.join(spells, is_within, "left").groupBy(*gaps.columns)
    empty = F.coalesce(F.sum(overlap), F.lit(0))
    return joined.agg((F.col("ended_us") - F.col("began_us") - empty).alias("unowned_us"))


def _wanted(gaps: DataFrame, plans: DataFrame) -> DataFrame:
    """Return gaps that begin no earlier than the request of the plan that ended them, if its cause is one of BACK."""
    wanted_us = F.min(F.coalesce("requested_us", "planned_us")).alias("wanted_us")
    back = plans.where(F.col("cause").isin(*BACK)).groupBy(*PLAN).agg(wanted_us)
    began_us = F.greatest("began_us", F.when(F.col("wanted_us") < F.col("ended_us"), F.col("wanted_us")))
    return gaps.join(back, list(PLAN), "left").withColumn("began_us", began_us).select(*gaps.columns)


def causes(plans: DataFrame, gaps: DataFrame, waits: DataFrame, known: DataFrame) -> DataFrame:
    """Return (group, cause, rebalances, moved, unowned_partition_s, settled_ms, settled_ms_max).

    `settled_ms` is a median. Gaps that no known plan ended have the cause UNKNOWN_CAUSE; they and SESSION_OF_THE_DEAD,
    the time until the sessions of crashed members ended, have no rebalance. `unowned_partition_s` is null for a group
    of which no agent's events are there. `known`: as `lives.known` returns it.
    """
    by_plan = gaps.groupBy(*PLAN).agg(F.sum("unowned_us").alias("unowned_us"))
    named = plans.select(*PLAN, "cause", "moved", "settled_ms", F.lit(1).alias("one"))
    of_plans = named.join(by_plan, list(PLAN), "full")
    joined = of_plans.unionByName(waits.select("group", "cause", "unowned_us"), allowMissingColumns=True)
    joined = joined.join(known.select("group", "is_recorded"), "group", "left")
    unowned_s = F.coalesce(F.sum("unowned_us"), F.lit(0)) / 1e6
    return joined.groupBy("group", F.coalesce("cause", F.lit(UNKNOWN_CAUSE)).alias("cause")).agg(
        F.coalesce(F.sum("one"), F.lit(0)).alias("rebalances"),
        F.coalesce(F.sum("moved"), F.lit(0)).alias("moved"),
        F.when(F.bool_or("is_recorded"), unowned_s).alias("unowned_partition_s"),
        F.median("settled_ms").alias("settled_ms"),
        F.max("settled_ms").alias("settled_ms_max"),
    )


def waits(lives: DataFrame, intervals: DataFrame) -> DataFrame:
    """Return (group, cause, unowned_us): how long partitions waited for the end of a crashed member's session."""
    crashed = lives.where("crashed").select("group", "member", "seen_us", "most_us")
    ended = intervals.where(F.col("ended_by") == ENDED).join(crashed, ["group", "member"])
    silent_us = F.greatest(F.col("ended_us") - F.greatest("seen_us", "started_us"), F.lit(0))
    waited_us = F.least(silent_us, "most_us")
    return ended.select("group", F.lit(SESSION_OF_THE_DEAD).alias("cause"), waited_us.alias("unowned_us"))


def spans(events: DataFrame) -> DataFrame:
    """Return (group, began_us, ended_us, answer_ms): first and last event, and the median answer to a command."""
    by_group = events.where(F.col("group").isNotNull()).groupBy("group")
    whole = by_group.agg(F.min("mono_us").alias("began_us"), F.max("mono_us").alias("ended_us"))
    return whole.join(answers(events).groupBy("group").agg(F.median("answer_ms").alias("answer_ms")), "group", "left")


def answers(events: DataFrame) -> DataFrame:
    """Return (group, member, answer_ms) of each command that was acknowledged."""
    sent = events.where(F.col("kind") == "command_sent").select("group", "member", "command_id", "mono_us")
    acked = events.where(F.col("kind") == "command_acked").groupBy("command_id").agg(F.min("mono_us").alias("acked_us"))
    return sent.join(acked, "command_id").select(
        "group", "member", ((F.col("acked_us") - F.col("mono_us")) / 1_000).alias("answer_ms")
    )


def lateness(events: DataFrame, lives: DataFrame) -> DataFrame:
    """Return (group, client, host, commands, answer_ms, answer_ms_max, late) of each client; `answer_ms` is a median.

    A client keeps its name over restarts. `late`: the plans that waited longer than the group's timeout for it.
    """
    keys = ["group", "client", "host"]
    hosts = lives.select("group", "member", "host")

    def by_client(rows: DataFrame, *figures: Column) -> DataFrame:
        named = rows.join(hosts, ["group", "member"], "left")
        return named.groupBy(
            "group", client_of("member").alias("client"), F.coalesce("host", F.lit("")).alias("host")
        ).agg(*figures)

    finished = events.where(F.col("kind") == "rebalance_finished")
    late = by_client(finished.select("group", F.explode("late_members").alias("member")), F.count("*").alias("late"))
    answered = by_client(
        answers(events),
        F.count("*").alias("commands"),
        F.median("answer_ms").alias("answer_ms"),
        F.max("answer_ms").alias("answer_ms_max"),
    )
    return answered.join(late, keys, "full").fillna({"commands": 0, "late": 0})
