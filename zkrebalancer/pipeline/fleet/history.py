"""The events of a fleet as tables: what each cause cost, who was late, and how the members of each group changed.

Hosts and boots have monotonic clocks of their own, so events are ordered by the wall clock here. A time that is shorter
than the difference between two hosts' clocks is therefore not exact.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.observe.holdings import ENDED
from zkrebalancer.observe.rebalances import UNKNOWN_CAUSE
from zkrebalancer.pipeline import ingest

FLEET = "fleet"  # the run of all events
SIGNS = ("fetcher_started", "fetcher_stopped", "delivered", "committed")  # written by the member itself
PLAN = ("run", "group", "generation", "cause_id")
CHANGES = ("member_joined", "member_left")
KINDS = (
    *SIGNS,
    *CHANGES,
    "ownership_ended",
    "topic_deleted",
    "rebalance_requested",
    "rebalance_planned",
    "rebalance_finished",
    "command_sent",
    "command_acked",
)
CRASHES = ("expired", "lost")
SESSION_OF_THE_DEAD = "session-of-the-dead"  # a cause: nothing is planned while a crashed member's session lasts
LONGEST_SESSION_US = 600_000_000  # a member's last sign of life is looked for so long before its end
_ID = r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"  # what an agent adds to its client's name at each start


def read(spark: SparkSession, source: str, folder: str) -> DataFrame:
    """Store the events of KINDS below `source` in `folder`; return them with one column for every key.

    Raises:
        NoEventsError: there is no event file below `source`.

    """
    parsed = ingest.parse(ingest.read_lines(spark, source))
    wanted = parsed.where(F.col("kind").isin(*KINDS) & F.col("ts_us").isNotNull())
    ingest.write_events(wanted.withColumn("delays_us", F.lit(None).cast("array<bigint>")), folder)
    events = ingest.read_events(spark, folder)
    return events.withColumn("run", F.lit(FLEET)).withColumn("mono_us", F.col("ts_us"))


def by_group(events: DataFrame) -> DataFrame:
    """Return the events of groups, each group being a run: then no task needs the events of all."""
    return events.where(F.col("group").isNotNull()).withColumn("run", F.col("group"))


def costly_gaps(events: DataFrame, gaps: DataFrame) -> DataFrame:
    """Return the times without an owner, without those parts in which the group had no member.

    Columns: those of the table `gaps` without open ones, and `unowned_us`.
    """
    gaps = gaps.where(F.col("ended_us").isNotNull())
    spells = _empty_spells(events).withColumnsRenamed({"group": "spell_group"})
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


def _empty_spells(events: DataFrame) -> DataFrame:
    """Return (group, empty_us, filled_us): times in which a group had no member."""
    marks = events.where(F.col("kind").isin(*CHANGES)).select(
        "group", "mono_us", F.when(F.col("kind") == "member_joined", 1).otherwise(-1).alias("change")
    )
    in_time = Window.partitionBy("group").orderBy("mono_us", F.desc("change"))
    counted = marks.select(
        "group",
        "mono_us",
        F.sum("change").over(in_time.rowsBetween(Window.unboundedPreceding, 0)).alias("sum"),
        F.lead("mono_us").over(in_time).alias("filled_us"),
    )
    # Members that had joined before the first event make the sum fall below zero.
    least = F.least(F.min("sum").over(Window.partitionBy("group")), F.lit(0))
    counted = counted.withColumn("members", F.col("sum") - least)
    is_empty = (F.col("members") == 0) & F.col("filled_us").isNotNull()
    return counted.where(is_empty).select("group", F.col("mono_us").alias("empty_us"), "filled_us")


def causes(plans: DataFrame, gaps: DataFrame, waits: DataFrame) -> DataFrame:
    """Return (group, cause, rebalances, moved, unowned_partition_s, settled_ms, settled_ms_max).

    `settled_ms` is a median. Gaps that no known plan ended have the cause UNKNOWN_CAUSE; they and SESSION_OF_THE_DEAD,
    the time until the sessions of crashed members ended, have no rebalance.
    """
    by_plan = gaps.groupBy(*PLAN).agg(F.sum("unowned_us").alias("unowned_us"))
    named = plans.select(*PLAN, "cause", "moved", "settled_ms", F.lit(1).alias("one"))
    of_plans = named.join(by_plan, list(PLAN), "full")
    joined = of_plans.unionByName(waits.select("group", "cause", "unowned_us"), allowMissingColumns=True)
    return joined.groupBy("group", F.coalesce("cause", F.lit(UNKNOWN_CAUSE)).alias("cause")).agg(
        F.coalesce(F.sum("one"), F.lit(0)).alias("rebalances"),
        F.coalesce(F.sum("moved"), F.lit(0)).alias("moved"),
        (F.coalesce(F.sum("unowned_us"), F.lit(0)) / 1e6).alias("unowned_partition_s"),
        F.median("settled_ms").alias("settled_ms"),
        F.max("settled_ms").alias("settled_ms_max"),
    )


def waits(events: DataFrame, intervals: DataFrame) -> DataFrame:
    """Return (group, cause, unowned_us): how long partitions waited for the end of a crashed member's session."""
    ended = intervals.where(F.col("ended_by") == ENDED).join(_signs(events), ["group", "member"])
    waited_us = F.greatest(F.col("ended_us") - F.greatest("seen_us", "started_us"), F.lit(0))
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


def lateness(events: DataFrame) -> DataFrame:
    """Return (group, client, host, commands, answer_ms, answer_ms_max, late) of each client; `answer_ms` is a median.

    A client keeps its name over restarts. `late`: the plans that waited longer than the group's timeout for it.
    """
    keys = ["group", "client", "host"]
    hosts = _hosts(events)

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


def _hosts(events: DataFrame) -> DataFrame:
    signs = events.where(F.col("kind").isin("fetcher_started", "fetcher_stopped"))
    return signs.groupBy("group", "member").agg(F.max("host").alias("host"))


def client_of(member: str) -> Column:
    """Return the name that a member's client keeps over restarts."""
    return F.regexp_replace(member, _ID, "")


def steps(events: DataFrame) -> DataFrame:
    """Return (group, at_us, name, client, joins, silent_us, partitions, mode): each member that joined or left.

    `client` is null for a member of which no host is known. `partitions` and `mode` are those of the plans around it.
    """
    changes = events.where(F.col("kind").isin(*CHANGES)).select("group", "mono_us", "member", "kind", "reason")
    placed = events.where(F.col("kind") == "rebalance_planned").select(
        "group", "mono_us", F.col("partition_count").alias("partitions"), "mode"
    )
    both = changes.unionByName(placed, allowMissingColumns=True)
    after = Window.partitionBy("group").orderBy("mono_us").rowsBetween(0, Window.unboundedFollowing)
    before = Window.partitionBy("group").orderBy("mono_us").rowsBetween(Window.unboundedPreceding, 0)
    for name in ("partitions", "mode"):
        known = (F.first(name, ignorenulls=True).over(after), F.last(name, ignorenulls=True).over(before))
        both = both.withColumn(f"{name}_then", F.coalesce(*known))
    rows = both.where(F.col("kind").isNotNull() & F.col("partitions_then").isNotNull())
    rows = rows.join(_hosts(events), ["group", "member"], "left").join(_signs(events), ["group", "member"], "left")
    crashed = F.coalesce(F.col("reason").isin(*CRASHES), F.lit(col=False))
    silent_us = F.when(crashed, F.greatest(F.col("mono_us") - F.col("seen_us"), F.lit(0)))
    return rows.select(
        "group",
        F.col("mono_us").alias("at_us"),
        F.col("member").alias("name"),
        F.concat_ws("@", client_of("member"), "host").alias("client"),
        (F.col("kind") == "member_joined").alias("joins"),
        F.coalesce(silent_us, F.lit(0)).alias("silent_us"),
        F.col("partitions_then").alias("partitions"),
        F.col("mode_then").alias("mode"),
    )


def _signs(events: DataFrame) -> DataFrame:
    """Return (group, member, seen_us): the last sign of life of each member whose session expired."""
    crashed = events.where((F.col("kind") == "member_left") & F.col("reason").isin(*CRASHES))
    crashed = crashed.groupBy("group", "member").agg(F.max("mono_us").alias("end_us"))
    signs = events.where(F.col("kind").isin(*SIGNS)).select("group", "member", "mono_us")
    is_before = F.col("mono_us").between(F.col("end_us") - LONGEST_SESSION_US, F.col("end_us"))
    found = signs.join(crashed, ["group", "member"]).where(is_before).groupBy("group", "member")
    return found.agg(F.max("mono_us").alias("seen_us"))
