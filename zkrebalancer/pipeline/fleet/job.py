"""Reads a fleet's events, replays each group on the executors, writes the tables, and answers the questions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.by_run import tables_of_runs
from zkrebalancer.pipeline.fleet import history
from zkrebalancer.pipeline.fleet.lives import known, lives_of, steps
from zkrebalancer.pipeline.fleet.questions import Tables
from zkrebalancer.pipeline.fleet.replay import DEFAULT_STRATEGY, SETTINGS, Step, replay
from zkrebalancer.pipeline.sweep.model import ANSWER_MS

MAX_STEPS = 2_000  # of a group, the newest, for each setting; how many were left out is a column
REPLAYED = (
    "group string, setting string, rebalances long, moved long, unowned_partition_s double, steps long, "
    "left_out long, crashes_unknown long, clients_unknown long"
)
DAY_US = 86_400_000_000
EVENTS = "events"
_SUMS = ["rebalances", "moved", "unowned_partition_s"]


def fleet(spark: SparkSession, source: str, out: str, seed: int) -> Tables:
    """Return the tables of the events below `source`; the events are kept in `out`.

    Raises:
        NoEventsError: there is no event file below `source`.

    """
    events = history.read(spark, source, f"{out}/{EVENTS}")
    members = lives_of(events).persist()
    try:
        of_groups = known(members)
        with tables_of_runs(history.by_group(events)).frames() as found:
            gaps, plans = found("gaps"), found("rebalances")
            costs = history.costly_gaps(members, gaps, plans), history.waits(members, found("intervals"))
            causes = history.causes(plans, *costs, of_groups).toPandas()
            still = gaps.where(F.col("ended_us").isNull()).groupBy("group").agg(F.count("*").alias("unowned_now"))
            counts = of_groups.join(still, "group", "left").toPandas()
        spans = history.spans(events)
        return Tables(
            groups=_groups(spans.toPandas(), causes, counts),
            causes=causes.sort_values(["group", "cause"], ignore_index=True),
            lateness=history.lateness(events, members).orderBy("group", "client", "host").toPandas(),
            settings=_beside(replayed(steps(events, members), spans, seed).toPandas(), causes),
        )
    finally:
        members.unpersist()


def _groups(spans: pd.DataFrame, causes: pd.DataFrame, of_groups: pd.DataFrame) -> pd.DataFrame:
    """Return the table `groups`: `cause` is the most frequent one, `unowned_now` is 0 in a group without a member."""
    first = causes.sort_values(["rebalances", "cause"], ascending=[False, True]).drop_duplicates("group")
    table = spans.merge(_sums(causes), on="group").merge(first[["group", "cause"]], on="group")
    table = table.merge(of_groups, on="group", how="left")
    days = (table["ended_us"] - table["began_us"]) / DAY_US
    counts = ["members", "unheard", "crashed", "sessions_unknown"]
    absent_is_none = [*counts, "unowned_now", "members_now"]
    table[absent_is_none] = table[absent_is_none].fillna(0).astype("int64")
    unowned_now = table["unowned_now"].where(table["members_now"] > 0, 0)
    table = table.assign(days=days, per_day=table["rebalances"] / days.clip(lower=1.0), unowned_now=unowned_now)
    columns = ["group", "days", "rebalances", "per_day", "moved", "unowned_partition_s", "cause", *counts]
    return table[[*columns, "unowned_now"]].sort_values("group", ignore_index=True)


def _sums(causes: pd.DataFrame) -> pd.DataFrame:
    """Return the sums of each group; sums of unrecorded values are unknown, too."""
    return causes.groupby("group")[_SUMS].sum(min_count=1).reset_index()


def _beside(settings: pd.DataFrame, causes: pd.DataFrame) -> pd.DataFrame:
    """Put the recorded figures of each group beside its replays."""
    recorded = _sums(causes)[["group", "rebalances", "unowned_partition_s"]]
    names = {"rebalances": "recorded_rebalances", "unowned_partition_s": "recorded_partition_s"}
    table = settings.merge(recorded.rename(columns=names), on="group", how="left")
    return table.sort_values(["group", "setting"], ignore_index=True)


def replayed(steps: DataFrame, spans: DataFrame, seed: int) -> DataFrame:
    """Return one row, as REPLAYED says, for each group and setting."""
    rows = steps.join(spans.select("group", "answer_ms"), "group", "left")
    rows = rows.withColumn("answer_ms", F.coalesce("answer_ms", F.lit(ANSWER_MS / 2)))
    rows = rows.withColumn("strategy", F.coalesce("strategy", F.lit(DEFAULT_STRATEGY)))
    return rows.groupBy("group").applyInPandas(_replayer(seed), REPLAYED)


def _replayer(seed: int) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def run(rows: pd.DataFrame) -> pd.DataFrame:
        ordered = rows.sort_values(["at_us", "joins", "name"])
        newest, older = ordered.tail(MAX_STEPS), ordered.head(-MAX_STEPS)
        group, answer_ms = str(ordered["group"].iloc[0]), float(ordered["answer_ms"].iloc[0])
        unknown = {
            "crashes_unknown": int(newest["silent_us"].isna().sum()),
            "clients_unknown": int(newest["client"].isna().sum()),
        }
        columns = ["at_us", "name", "client", "joins", "partitions", "mode", "silent_us", "strategy"]
        replayed = pd.concat([_there(older), newest]) if len(older) else newest
        replayed = replayed.assign(silent_us=replayed["silent_us"].fillna(0).astype("int64"))
        found_steps = [Step(*values) for values in replayed[columns].itertuples(index=False, name=None)]
        common = {"group": group, "steps": len(newest), "left_out": len(older), **unknown}
        found = [
            common | {"setting": setting.name} | asdict(replay(found_steps, setting, answer_ms, f"{seed}/{group}"))
            for setting in SETTINGS
        ]
        return pd.DataFrame(found)

    return run


def _there(older: pd.DataFrame) -> pd.DataFrame:
    """Return the joins of the members that were there after these steps, as if all had come at the last one's time."""
    came, gone = older[older["joins"]], older[~older["joins"]]
    return came[~came["name"].isin(gone["name"])].assign(at_us=older["at_us"].iloc[-1])
