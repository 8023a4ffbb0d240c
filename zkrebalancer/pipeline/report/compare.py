"""Comparison of experiment runs: Spark computes the facts, which become tables, verdicts and one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from zkrebalancer.pipeline import batch, ingest
from zkrebalancer.pipeline.report import measures
from zkrebalancer.pipeline.report.folders import Run, Setting, find_runs
from zkrebalancer.pipeline.report.sentences import MEASURES, Values, Verdict, verdicts
from zkrebalancer.pipeline.report.statistics import sample

FACTS = "facts"  # folder of the tables that Spark computes
MAX_TIMELINE_PARTITIONS = 24
COMPARED = [
    *("scenario", "settings", "members", "partitions", "protocol", "measure", "n", "median", "low", "high"),
    *("against", "outcome", "difference", "difference_low", "difference_high"),
]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The contents of a report; `values`: setting -> protocol -> measure -> one value per trusted run.

    `curves` and `timelines`: setting -> what to draw; `changes`: run -> (seconds after the first, name).
    """

    runs: list[Run]
    measures: pd.DataFrame
    values: dict[Setting, dict[str, Values]]
    verdicts: list[Verdict]
    curves: dict[Setting, pd.DataFrame]
    timelines: dict[Setting, dict[str, pd.DataFrame]]
    changes: dict[str, list[tuple[float, str]]]


def compare(spark: SparkSession, directories: Sequence[Path], out: Path) -> Comparison:
    """Compare all runs below `directories`, and leave the facts as Parquet in `out`.

    Raises:
        ConfigurationError: there is no run, or a result cannot be read.
        NoEventsError: a folder has no events.

    """
    runs = find_runs(directories)
    tables = _facts(spark, directories, out)
    frame = _of_runs(runs).merge(measures.run_measures(tables).toPandas(), on="run", how="left")  # a row for each run
    trusted = [run for run in runs if not run.doubts]
    values = _values(frame, trusted)
    found = [verdict for setting, by_protocol in values.items() for verdict in verdicts(setting, by_protocol)]
    shown = _typical(frame, trusted)
    return Comparison(
        runs=runs,
        measures=frame,
        values=values,
        verdicts=found,
        curves=_curves(spark, tables, trusted),
        timelines=_timelines(tables, shown),
        changes=_changes(tables["steps"], [run.name for run in shown]),
    )


def _facts(spark: SparkSession, directories: Sequence[Path], out: Path) -> dict[str, DataFrame]:
    lines = reduce(DataFrame.unionByName, [_lines(spark, directory) for directory in dict.fromkeys(directories)])
    return batch.write_tables(spark, lines, str(out / FACTS))


def _lines(spark: SparkSession, directory: Path) -> DataFrame:
    """Read the lines below one folder; `run` and `file` start with its name, as in `folders.run_name`."""
    lines = ingest.read_lines(spark, str(directory))
    within = F.lit(f"{directory}/")
    return lines.withColumns({name: F.concat(within, F.col(name)) for name in ("run", "file")})


def _of_runs(runs: Sequence[Run]) -> pd.DataFrame:
    rows = [
        (run.name, run.setting.scenario, run.setting.settings, run.setting.members, run.setting.partitions,
         run.protocol, run.broker, run.members_per_process, run.seed, not run.doubts, "; ".join(run.doubts))
        for run in runs
    ]  # fmt: skip
    setting = ("scenario", "settings", "members", "partitions")
    names = ["run", *setting, "protocol", "broker", "members_per_process", "seed", "trusted", "doubts"]
    return pd.DataFrame(rows, columns=names)


def _values(frame: pd.DataFrame, trusted: Sequence[Run]) -> dict[Setting, dict[str, Values]]:
    by_run = frame.set_index("run")[list(MEASURES)].astype(float).to_dict("index")
    values: dict[Setting, dict[str, dict[str, list[float]]]] = {}
    for run in trusted:
        of_protocol = values.setdefault(run.setting, {}).setdefault(run.protocol, {})
        for measure in MEASURES:
            value = by_run[run.name][measure]
            if pd.notna(value):
                of_protocol.setdefault(measure, []).append(value)
    return {setting: dict(by_protocol) for setting, by_protocol in values.items()}


def _typical(frame: pd.DataFrame, trusted: Sequence[Run]) -> list[Run]:
    """Return the median run by time to settled, for each setting and protocol."""
    settled = frame.set_index("run")["settled_ms"].fillna(0.0)
    groups: dict[tuple[Setting, str], list[Run]] = {}
    for run in trusted:
        groups.setdefault((run.setting, run.protocol), []).append(run)
    return [sorted(group, key=lambda run: settled[run.name])[len(group) // 2] for group in groups.values()]


def _curves(
    spark: SparkSession, tables: Mapping[str, DataFrame], trusted: Sequence[Run]
) -> dict[Setting, pd.DataFrame]:
    labels = {(run.setting, run.protocol): number for number, run in enumerate(trusted)}
    if not labels:
        return {}
    of_runs = [(run.name, labels[run.setting, run.protocol]) for run in trusted]
    table = spark.createDataFrame(of_runs, "run string, label int")
    curves = measures.delay_around_changes(tables[batch.EVENTS], tables["steps"], table).toPandas()
    found: dict[Setting, list[pd.DataFrame]] = {}
    for (setting, protocol), label in labels.items():
        rows = curves[curves["label"] == label]
        if len(rows):
            found.setdefault(setting, []).append(rows.assign(protocol=protocol))
    return {setting: pd.concat(parts) for setting, parts in found.items()}


def _timelines(tables: Mapping[str, DataFrame], shown: Sequence[Run]) -> dict[Setting, dict[str, pd.DataFrame]]:
    names = [run.name for run in shown]
    rows = measures.timelines(tables["intervals"], tables["steps"], names, MAX_TIMELINE_PARTITIONS).toPandas()
    found: dict[Setting, dict[str, pd.DataFrame]] = {}
    for run in shown:
        of_run = rows[rows["run"] == run.name]
        if len(of_run):
            found.setdefault(run.setting, {})[run.protocol] = of_run
    return found


def _changes(steps: DataFrame, names: Sequence[str]) -> dict[str, list[tuple[float, str]]]:
    rows = steps.where(F.col("run").isin(list(names)) & (F.col("name") != measures.BEFORE)).orderBy("run", "from_us")
    found: dict[str, list[tuple[float, str]]] = {}
    first: dict[str, int] = {}
    for row in rows.select("run", "name", "from_us").collect():  # a few rows per setting and protocol
        since_us = row["from_us"] - first.setdefault(row["run"], row["from_us"])
        found.setdefault(row["run"], []).append((since_us / 1_000_000, row["name"]))
    return found


def comparison_table(found: Comparison) -> pd.DataFrame:
    """Return one row for each setting, protocol and measure: n, median, lowest, highest, and the verdict."""
    judged = {(verdict.setting, verdict.other, verdict.measure): verdict for verdict in found.verdicts}
    rows = []
    for setting, by_protocol in found.values.items():
        for protocol, values in by_protocol.items():
            for measure, of_runs in values.items():
                one, verdict = sample(of_runs), judged.get((setting, protocol, measure))
                difference = verdict.difference if verdict else None
                place = (setting.scenario, setting.settings, setting.members, setting.partitions, protocol, measure)
                judgement = (verdict.ours, verdict.outcome) if verdict else (None, None)
                apart = (difference.median, difference.low, difference.high) if difference else (None, None, None)
                rows.append((*place, one.count, one.median, one.low, one.high, *judgement, *apart))
    return pd.DataFrame(rows, columns=COMPARED)
