"""Reads a fleet's events, replays each group on the executors, writes the tables, and answers the questions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from zkrebalancer.pipeline.facts.by_run import tables_of_runs
from zkrebalancer.pipeline.fleet import history
from zkrebalancer.pipeline.fleet.questions import Tables
from zkrebalancer.pipeline.fleet.replay import SETTINGS, Step, replay
from zkrebalancer.pipeline.sweep.model import ANSWER_MS

MAX_STEPS = 2_000  # of a group, the newest, for each setting; how many were left out is a column
REPLAYED = (
    "group string, setting string, rebalances long, moved long, unowned_partition_s double, steps long, left_out long"
)
DAY_US = 86_400_000_000
EVENTS = "events"


def fleet(spark: SparkSession, source: str, out: str, seed: int) -> Tables:
    """Return the tables of the events below `source`; the events of the kinds used are kept in `out`.

    Raises:
        NoEventsError: there is no event file below `source`.

    """
    events = history.read(spark, source, f"{out}/{EVENTS}")
    with tables_of_runs(history.by_group(events)).frames() as found:
        intervals, gaps = found("intervals"), history.costly_gaps(events, found("gaps"))
        causes = history.causes(found("rebalances"), gaps, history.waits(events, intervals)).toPandas()
    spans = history.spans(events)
    return Tables(
        groups=_groups(spans.toPandas(), causes),
        causes=causes.sort_values(["group", "cause"], ignore_index=True),
        lateness=history.lateness(events).orderBy("group", "client", "host").toPandas(),
        settings=replayed(history.steps(events), spans, seed).orderBy("group", "setting").toPandas(),
    )


def _groups(spans: pd.DataFrame, causes: pd.DataFrame) -> pd.DataFrame:
    """Return (group, days, rebalances, per_day, moved, unowned_partition_s, cause), `cause` being the most frequent."""
    sums = causes.groupby("group")[["rebalances", "moved", "unowned_partition_s"]].sum().reset_index()
    first = causes.sort_values(["rebalances", "cause"], ascending=[False, True]).drop_duplicates("group")
    table = spans.merge(sums, on="group").merge(first[["group", "cause"]], on="group")
    days = (table["ended_us"] - table["began_us"]) / DAY_US
    table = table.assign(days=days, per_day=table["rebalances"] / days.clip(lower=1.0))
    columns = ["group", "days", "rebalances", "per_day", "moved", "unowned_partition_s", "cause"]
    return table[columns].sort_values("group", ignore_index=True)


def replayed(steps: DataFrame, spans: DataFrame, seed: int) -> DataFrame:
    """Return one row, as REPLAYED says, for each group and setting."""
    rows = steps.join(spans.select("group", "answer_ms"), "group", "left")
    rows = rows.withColumn("answer_ms", F.coalesce("answer_ms", F.lit(ANSWER_MS / 2)))
    return rows.groupBy("group").applyInPandas(_replayer(seed), REPLAYED)


def _replayer(seed: int) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def run(rows: pd.DataFrame) -> pd.DataFrame:
        ordered = rows.sort_values(["at_us", "joins", "name"])
        newest = ordered.tail(MAX_STEPS)
        group, answer_ms = str(ordered["group"].iloc[0]), float(ordered["answer_ms"].iloc[0])
        columns = ["at_us", "name", "client", "joins", "partitions", "mode", "silent_us"]
        steps = [Step(*values) for values in newest[columns].itertuples(index=False, name=None)]
        common = {"group": group, "steps": len(steps), "left_out": len(ordered) - len(steps)}
        found = [
            common | {"setting": setting.name} | asdict(replay(steps, setting, answer_ms, f"{seed}/{group}"))
            for setting in SETTINGS
        ]
        return pd.DataFrame(found)

    return run
