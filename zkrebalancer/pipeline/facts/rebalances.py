"""The rebalances of each group with their phases: request, plan, commands, acknowledgements, end."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.schema import ORDER

PLAN = ("run", "group", "generation", "cause_id")
UNDER_WAY = "under way"
SUPERSEDED = "superseded"
UNKNOWN_CAUSE = "unknown"


def rebalances(events: DataFrame, intervals: DataFrame, gaps: DataFrame) -> DataFrame:
    """Return one row for each `rebalance_planned`.

    Columns: run, group, generation, cause_id, mode, cause, members, partitions, moved, outcome; the end of each phase:
    requested_us, planned_us, sent_us (first command), acked_us (last acknowledgement), finished_us; settled_ms, from
    the request to the last acknowledgement as the coordinator saw it; pause_ms_max, the longest gap that this plan
    ended, or the coordinator's figure if no start under this plan was recorded. A plan without an end is SUPERSEDED if
    its group has a later plan, else UNDER_WAY.
    """
    by_group = Window.partitionBy("run", "group").orderBy(*ORDER)
    plans = events.where(F.col("kind") == "rebalance_planned").select(
        *PLAN,
        "mode",
        F.col("member_count").alias("members"),
        F.col("partition_count").alias("partitions"),
        F.col("moved_count").alias("moved"),
        F.col("mono_us").alias("planned_us"),
        F.lead("mono_us").over(by_group).isNotNull().alias("has_successor"),
    )
    outcome = F.coalesce("finished.outcome", F.when(F.col("has_successor"), SUPERSEDED).otherwise(UNDER_WAY))
    measured_ms = F.coalesce(F.col("pause_us") / 1_000, F.when(F.col("finished").isNotNull(), F.lit(0.0)))
    pause_ms = F.when(F.col("is_started"), measured_ms).otherwise(F.col("finished.pause_us_max") / 1_000)
    started = intervals.where(F.col("cause_id").isNotNull()).select("run", "group", "generation").distinct()
    return (
        plans.join(_requests(events), ["run", "cause_id"], "left")
        .join(_commands(events), list(PLAN), "left")
        .join(_ends(events), list(PLAN), "left")
        .join(started.withColumn("is_started", F.lit(col=True)), ["run", "group", "generation"], "left")
        .join(gaps.groupBy(*PLAN).agg(F.max(F.col("ended_us") - F.col("began_us")).alias("pause_us")), [*PLAN], "left")
        .select(
            *PLAN,
            "mode",
            F.coalesce("cause", F.lit(UNKNOWN_CAUSE)).alias("cause"),
            "members",
            "partitions",
            "moved",
            outcome.alias("outcome"),
            "requested_us",
            "planned_us",
            "sent_us",
            "acked_us",
            F.col("finished.mono_us").alias("finished_us"),
            (F.col("finished.settled_us") / 1_000).alias("settled_ms"),
            pause_ms.alias("pause_ms_max"),
        )
    )


def _requests(events: DataFrame) -> DataFrame:
    requests = events.where(F.col("kind") == "rebalance_requested")
    return requests.groupBy("run", "cause_id").agg(
        F.max_by("trigger", F.struct(*ORDER)).alias("cause"), F.min("mono_us").alias("requested_us")
    )


def _commands(events: DataFrame) -> DataFrame:
    commands = events.where(F.col("kind").isin("command_sent", "command_acked"))
    return commands.groupBy(*PLAN).agg(
        F.min(F.when(F.col("kind") == "command_sent", F.col("mono_us"))).alias("sent_us"),
        F.max(F.when(F.col("kind") == "command_acked", F.col("mono_us"))).alias("acked_us"),
    )


def _ends(events: DataFrame) -> DataFrame:
    ends = events.where(F.col("kind") == "rebalance_finished")
    last = F.max_by(F.struct("outcome", "settled_us", "pause_us_max", "mono_us"), F.struct(*ORDER))
    return ends.groupBy(*PLAN).agg(last.alias("finished"))
