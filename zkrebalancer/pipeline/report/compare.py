"""Comparison of experiment runs: Spark computes the facts, which become tables, verdicts and one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from zkrebalancer.pipeline import batch
from zkrebalancer.pipeline.local_files import Source
from zkrebalancer.pipeline.report import measures
from zkrebalancer.pipeline.report.folders import Run, Setting, find_runs
from zkrebalancer.pipeline.report.sentences import (
    AFTER,
    MEASURES,
    OF_A_CHANGE,
    PRIMARY,
    SUMMED,
    RunKey,
    Values,
    Verdict,
    verdicts,
)
from zkrebalancer.pipeline.report.statistics import sample

FACTS = "facts"  # folder of the tables that Spark computes
MAX_TIMELINE_PARTITIONS = 24
COMPARED = [
    *("scenario", "settings", "members", "partitions", "broker", "protocol", "measure", "n", "median", "low", "high"),
    *("against", "outcome", "pairs", "p", "difference", "difference_low", "difference_high"),
]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The contents of a report; `values`: setting -> protocol -> measure -> one value per run that counts.

    `counted`: the runs that count, which are the trusted ones unless others were asked for. `changes_ms`: setting ->
    protocol -> the times to settled of all changes of all runs. `curves` and `timelines`: setting -> what to draw;
    `changes`: run -> (seconds after the first, name).
    """

    runs: list[Run]
    counted: list[Run]
    measures: pd.DataFrame
    values: dict[Setting, dict[str, Values]]
    verdicts: list[Verdict]
    changes_ms: dict[Setting, dict[str, list[float]]]
    curves: dict[Setting, pd.DataFrame]
    timelines: dict[Setting, dict[str, pd.DataFrame]]
    changes: dict[str, list[tuple[float, str]]]


def compare(spark: SparkSession, directories: Sequence[Path], out: Path, *, with_untrusted: bool = False) -> Comparison:
    """Compare all runs below `directories`, and leave the facts as Parquet in `out`.

    `with_untrusted`: those that are finished, but not trusted, count too.

    Raises:
        ConfigurationError: there is no run, or a result cannot be read.
        NoEventsError: a folder has no events.

    """
    runs = find_runs(directories)
    tables = _facts(spark, directories, out)
    frame = _of_runs(runs).merge(measures.run_measures(tables).toPandas(), on="run", how="left")  # a row for each run
    changes = measures.changes(tables).toPandas()  # a row for each change of each run
    counted = [run for run in runs if not run.doubts or (with_untrusted and run.is_complete)]
    values = _values(frame, changes, counted)
    shown = _typical(frame, counted)
    return Comparison(
        runs=runs,
        counted=counted,
        measures=frame,
        values=values,
        verdicts=verdicts(values),
        changes_ms=_changes_ms(changes, counted),
        curves=_curves(spark, tables, counted),
        timelines=_timelines(tables, shown),
        changes=_changes(tables["steps"], [run.name for run in shown]),
    )


def _facts(spark: SparkSession, directories: Sequence[Path], out: Path) -> dict[str, DataFrame]:
    """Write the tables of all folders; `run` and `file` start with a folder's name, as in `folders.run_name`."""
    sources = [Source(str(directory), f"{directory}/") for directory in dict.fromkeys(directories)]
    return batch.write_tables(spark, sources, str(out / FACTS))


def _of_runs(runs: Sequence[Run]) -> pd.DataFrame:
    rows = [
        (run.name, run.setting.scenario, run.setting.settings, run.setting.members, run.setting.partitions,
         run.protocol, run.setting.broker, run.members_per_process, run.seed, not run.doubts, "; ".join(run.doubts))
        for run in runs
    ]  # fmt: skip
    setting = ("scenario", "settings", "members", "partitions")
    names = ["run", *setting, "protocol", "broker", "members_per_process", "seed", "trusted", "doubts"]
    return pd.DataFrame(rows, columns=names)


def _values(frame: pd.DataFrame, changes: pd.DataFrame, counted: Sequence[Run]) -> dict[Setting, dict[str, Values]]:
    by_run = dict(zip(frame["run"], frame[list(MEASURES)].astype(float).to_dict("records"), strict=True))
    kinds: dict[Setting, set[str]] = {}  # a kill and a return are not one thing
    for run in counted:
        kinds.setdefault(run.setting, set()).update(changes.loc[changes["run"] == run.name, "name"])
    values: dict[Setting, dict[str, dict[str, dict[RunKey, float]]]] = {}
    for run in counted:
        of_protocol = values.setdefault(run.setting, {}).setdefault(run.protocol, {})
        of_run = {measure: by_run[run.name][measure] for measure in MEASURES}
        if len(kinds[run.setting]) > 1:
            whole = {measure: value for measure, value in of_run.items() if measure not in OF_A_CHANGE}
            of_run = whole | _of_each_kind(changes[changes["run"] == run.name])
        for measure, value in of_run.items():
            if pd.notna(value):
                of_seeds = of_protocol.setdefault(measure, {})
                again = sum(seed == run.seed for seed, _again in of_seeds)  # in another folder
                of_seeds[run.seed, again] = value
    return {setting: dict(by_protocol) for setting, by_protocol in values.items()}


def _of_each_kind(changes: pd.DataFrame) -> dict[str, float]:
    """Return the measures of a run for each kind of change, as `run_measures` has them for all: medians and sums."""
    return {
        f"{measure}{AFTER}{name}": rows[measure].sum() if measure in SUMMED else rows[measure].median()
        for name, rows in changes.groupby("name")
        for measure in OF_A_CHANGE
    }


def _changes_ms(changes: pd.DataFrame, counted: Sequence[Run]) -> dict[Setting, dict[str, list[float]]]:
    """Return the times to settled of all changes."""
    found: dict[Setting, dict[str, list[float]]] = {}
    for run in counted:
        times = changes.loc[changes["run"] == run.name, PRIMARY].tolist()
        found.setdefault(run.setting, {}).setdefault(run.protocol, []).extend(times)
    return found


def _typical(frame: pd.DataFrame, counted: Sequence[Run]) -> list[Run]:
    """Return the median run by time to settled, for each setting and protocol."""
    settled = frame.set_index("run")["settled_ms"].fillna(0.0)
    groups: dict[tuple[Setting, str], list[Run]] = {}
    for run in counted:
        groups.setdefault((run.setting, run.protocol), []).append(run)
    return [sorted(group, key=lambda run: settled[run.name])[len(group) // 2] for group in groups.values()]


def _curves(
    spark: SparkSession, tables: Mapping[str, DataFrame], counted: Sequence[Run]
) -> dict[Setting, pd.DataFrame]:
    labels = {(run.setting, run.protocol): number for number, run in enumerate(counted)}
    if not labels:
        return {}
    of_runs = [(run.name, labels[run.setting, run.protocol]) for run in counted]
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
                one, verdict = sample(list(of_runs.values())), judged.get((setting, protocol, measure))
                difference = verdict.difference if verdict else None
                judgement = (verdict.ours, verdict.outcome, verdict.pairs, verdict.p) if verdict else (None,) * 4
                apart = (difference.median, difference.low, difference.high) if difference else (None,) * 3
                summary = (one.count, one.median, one.low, one.high)
                rows.append((*astuple(setting), protocol, measure, *summary, *judgement, *apart))
    return pd.DataFrame(rows, columns=COMPARED)
