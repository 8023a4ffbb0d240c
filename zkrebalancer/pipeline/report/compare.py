"""Comparison of experiment runs: Spark computes the facts, which become tables, verdicts and one page.

Runs that are published as results, without events, leave Spark nothing to read: their figures are those of the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from zkrebalancer.observe.measures import BEFORE
from zkrebalancer.pipeline import batch
from zkrebalancer.pipeline.local_files import EventFile, Source, event_files
from zkrebalancer.pipeline.report import measures, results
from zkrebalancer.pipeline.report.folders import Run, Setting
from zkrebalancer.pipeline.report.sentences import (
    AFTER,
    FIRST_RECORD,
    LAG,
    MEASURES,
    OF_A_CHANGE,
    OF_A_WINDOW,
    OURS,
    SUMMED,
    RunKey,
    Values,
    Verdict,
    primary,
    verdicts,
)
from zkrebalancer.pipeline.report.statistics import sample

FACTS = "facts"  # folder of the tables that Spark computes
MAX_TIMELINE_PARTITIONS = 24
COMPARED = [
    *("scenario", "settings", "members", "partitions", "broker", "protocol", "measure", "n", "median", "low", "high"),
    *("against", "against_settings", "outcome", "pairs", "p", "difference", "difference_low", "difference_high"),
]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The contents of a report; `values`: setting -> protocol -> measure -> one value per run that counts.

    A setting with other heartbeats has the values of this project's runs without any, so that rivals are compared.
    `counted`: the runs that count, which are the trusted ones unless others were asked for. `changes_ms`: setting ->
    the primary measure, for each kind of change -> protocol -> its value for each change of all runs;
    `first_records_ms`: the times to the first record in the same form. `curves` and `timelines`: setting -> what to
    draw; `changes`: run -> (seconds after the first, name).
    """

    runs: list[Run]
    counted: list[Run]
    measures: pd.DataFrame
    values: dict[Setting, dict[str, Values]]
    verdicts: list[Verdict]
    changes_ms: dict[Setting, dict[str, dict[str, list[float]]]]
    curves: dict[Setting, pd.DataFrame]
    timelines: dict[Setting, dict[str, pd.DataFrame]]
    changes: dict[str, list[tuple[float, str]]]
    first_records_ms: dict[Setting, dict[str, dict[str, list[float]]]] = field(default_factory=dict)


def event_files_below(directories: Sequence[Path]) -> list[EventFile]:
    """Return all event files; `run` and `name` start with a folder's name, as in `folders.run_name`.

    Raises:
        NoEventsError: a folder has no events.

    """
    sources = [Source(str(directory), f"{directory}/") for directory in dict.fromkeys(directories)]
    return [file for source in sources for file in event_files(source)]


def compare(
    spark: SparkSession | None,
    runs: list[Run],
    files: Sequence[EventFile],
    out: Path,
    *,
    with_untrusted: bool = False,
) -> Comparison:
    """Compare all runs, some of which have event files, and leave the facts as Parquet in `out`.

    `spark` None: there are no event files. `with_untrusted`: runs that are finished, but not trusted, count too.
    """
    tables = None if spark is None else batch.write_tables(spark, files, str(out / FACTS))
    changes = _changes_of(runs, tables)  # a row for each change of each run
    frame = _figures(runs, changes, tables)  # a row for each run
    counted = [run for run in runs if not run.doubts or (with_untrusted and run.is_complete)]
    values = _beside_ours(_values(frame, changes, counted), counted)
    found = Comparison(
        runs=runs,
        counted=counted,
        measures=frame,
        values=values,
        verdicts=verdicts(values),
        changes_ms=_changes_ms(changes, counted),
        first_records_ms=_changes_ms(changes, counted, lambda _setting, _change: FIRST_RECORD),
        curves={},
        timelines={},
        changes={},
    )
    if spark is None or tables is None:
        return found
    seen = [run for run in counted if run.has_events]
    shown = _typical(frame, seen)
    return replace(
        found,
        curves=_curves(spark, tables, seen),
        timelines=_timelines(tables, shown),
        changes=_changes(tables["steps"], [run.name for run in shown]),
    )


def _changes_of(runs: Sequence[Run], tables: Mapping[str, DataFrame] | None) -> pd.DataFrame:
    found = [results.changes(run for run in runs if not run.has_events)]
    found += [] if tables is None else [measures.changes(tables).toPandas()]
    return _together(found).merge(results.lags(runs), on=["run", "step"], how="left")


def _figures(runs: Sequence[Run], changes: pd.DataFrame, tables: Mapping[str, DataFrame] | None) -> pd.DataFrame:
    found = [results.run_measures(run for run in runs if not run.has_events)]
    found += [] if tables is None else [measures.run_measures(tables).toPandas()]
    frame = _of_runs(runs).merge(_together(found), on="run", how="left")
    frame = frame.merge(results.costs(runs), on="run", how="left")
    frame = frame.merge(changes.groupby("run")[list(LAG)].median(), on="run", how="left")
    return frame.reindex(columns=[*frame.columns, *(name for name in MEASURES if name not in frame.columns)])


def _together(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all parts. Pandas would take the types of the columns from empty ones too."""
    return pd.concat([part for part in parts if len(part)] or parts)


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
    kinds = _kinds(changes, counted)
    values: dict[Setting, dict[str, dict[str, dict[RunKey, float]]]] = {}
    for run in counted:
        of_protocol = values.setdefault(run.setting, {}).setdefault(run.protocol, {})
        of_run = {measure: by_run[run.name][measure] for measure in MEASURES}
        if len(kinds[run.setting.without_heartbeats]) > 1:
            whole = {measure: value for measure, value in of_run.items() if measure not in OF_A_CHANGE}
            of_run = whole | _of_each_kind(changes[changes["run"] == run.name])
        for measure, value in of_run.items():
            if pd.notna(value):
                of_seeds = of_protocol.setdefault(measure, {})
                again = sum(seed == run.seed for seed, _again in of_seeds)  # in another folder
                of_seeds[run.seed, again] = value
    return {setting: dict(by_protocol) for setting, by_protocol in values.items()}


def _beside_ours(
    values: Mapping[Setting, dict[str, Values]], counted: Sequence[Run]
) -> dict[Setting, dict[str, Values]]:
    """Put this project's tuned runs beside those of rivals with other heartbeats: it has none.

    Where those rest longer from one change to the next, what depends on that is not comparable and left out.
    """
    waits = {(run.setting, run.protocol): run.waits for run in counted}
    found: dict[Setting, dict[str, Values]] = {}
    for setting, by_protocol in values.items():
        tuned = setting.without_heartbeats
        ours = next((name for name in OURS if name in values.get(tuned, {})), None)
        if ours is None or tuned == setting:
            found[setting] = by_protocol
            continue
        are_alike = all(waits[setting, rival] == waits[tuned, ours] for rival in by_protocol)
        comparable = {
            measure: of_runs
            for measure, of_runs in values[tuned][ours].items()
            if are_alike or measure not in OF_A_WINDOW
        }
        found[setting] = {ours: comparable, **by_protocol}
    return found


def _kinds(changes: pd.DataFrame, counted: Sequence[Run]) -> dict[Setting, set[str]]:
    """Return the kinds of change of each setting, whatever the heartbeats: a kill and a return are not one thing."""
    kinds: dict[Setting, set[str]] = {}
    for run in counted:
        kinds.setdefault(run.setting.without_heartbeats, set()).update(changes.loc[changes["run"] == run.name, "name"])
    return kinds


def _of_each_kind(changes: pd.DataFrame) -> dict[str, float]:
    """Return the measures of a run for each kind of change, as `run_measures` has them for all: medians and sums."""
    return {
        f"{measure}{AFTER}{name}": rows[measure].sum() if measure in SUMMED else rows[measure].quantile(0.5)
        for name, rows in changes.groupby("name")
        for measure in OF_A_CHANGE
    }


def _changes_ms(
    changes: pd.DataFrame, counted: Sequence[Run], measure_of: Callable[[Setting, str], str] = primary
) -> dict[Setting, dict[str, dict[str, list[float]]]]:
    """Return one measure of every change, kinds apart where there are several."""
    kinds = _kinds(changes, counted)
    found: dict[Setting, dict[str, dict[str, list[float]]]] = {}
    for run in counted:
        for name, rows in changes[changes["run"] == run.name].groupby("name", sort=False):
            is_one_of_several = len(kinds[run.setting.without_heartbeats]) > 1
            measure = measure_of(run.setting, str(name) if is_one_of_several else "")
            of_kind = f"{measure}{AFTER}{name}" if is_one_of_several else measure
            by_protocol = found.setdefault(run.setting, {}).setdefault(of_kind, {})
            by_protocol.setdefault(run.protocol, []).extend(rows[measure].dropna())
    return found


def _typical(frame: pd.DataFrame, counted: Sequence[Run]) -> list[Run]:
    """Return the median run by time to settled, for each setting and protocol."""
    settled = frame.set_index("run")["settled_ms"].fillna(0.0)  # of every scenario: it is about owners
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
    rows = steps.where(F.col("run").isin(list(names)) & (F.col("name") != BEFORE)).orderBy("run", "from_us")
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
        tuned = setting.without_heartbeats.settings
        for protocol, values in by_protocol.items():
            if setting.heartbeat and protocol in OURS:
                continue  # these runs have their own rows
            for measure, of_runs in values.items():
                one, verdict = sample(list(of_runs.values())), judged.get((setting, protocol, measure))
                difference = verdict.difference if verdict else None
                judgement = (verdict.ours, tuned, verdict.outcome, verdict.pairs) if verdict else (None,) * 4
                p = verdict.p if verdict and verdict.is_tested else None
                apart = (difference.median, difference.low, difference.high) if difference else (None,) * 3
                summary = (one.count, one.median, one.low, one.high)
                rows.append((*astuple(setting), protocol, measure, *summary, *judgement, p, *apart))
    return pd.DataFrame(rows, columns=COMPARED)
