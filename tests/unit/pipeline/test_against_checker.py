"""On random histories with violations, Spark's results equal those of the plain checker."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.pipeline_run import PLANNED, Made
from tests.unit.pipeline.frames import rows
from zkrebalancer.observe.measures import measure
from zkrebalancer.observe.overview import overview
from zkrebalancer.pipeline.align import ALIGNED
from zkrebalancer.pipeline.facts.steps import STEP
from zkrebalancer.pipeline.report.measures import load_peaks

SUMS = ("produced", "delivered", "lost", "duplicated", "duplicated_outside_crash", "out_of_order", "overlaps")
STEPS = ("settled_ms", "first_record_ms", "unowned_partition_ms", "moved", "moved_least", "stopped_needlessly")


def test_record_counts_equal_the_checkers(made: Made) -> None:
    """What was not recorded is unknown in both, not 0."""
    figures = {run: overview(made.events / run / "events").figures() for run in made.histories}
    found = {run: values for run, *values in rows(made.tables["runs"], "run", *SUMS)}
    assert found == {run: [of_run[name] for name in SUMS] for run, of_run in figures.items()}
    for name in SUMS:  # otherwise the comparison would prove nothing
        values = [of_run[name] for of_run in figures.values()]
        assert {True, False} <= {value is None for value in values}, name
        assert sum(value or 0 for value in values) > 0, name


def test_events_that_could_not_be_written_are_counted(made: Made) -> None:
    found = dict(rows(made.tables["runs"], "run", "events_dropped"))
    assert found == {run: 7 if run == PLANNED else 0 for run in made.histories}


def test_rebalances_equal_the_checkers(made: Made) -> None:
    columns = ("generation", "cause", "outcome", "settled_ms", "pause_ms_max", "moved", "members", "mode")
    rebalances = overview(made.events / PLANNED / "events").rebalances
    expected = [tuple(getattr(each, name) for name in columns) for _at_us, each in rebalances]
    found = rows(made.tables["rebalances"], *columns)
    assert found == sorted(expected, key=repr)
    assert {row[2] for row in found} == {"finished", "superseded", "under way"}


def test_step_measures_equal_the_plain_summarys(made: Made) -> None:
    found = {(run, step): figures for run, step, *figures in rows(made.tables["steps"], "run", "step", *STEPS)}
    expected: dict[tuple[str, Any], list[Any]] = {}
    for run, history in made.histories.items():
        if history.verdict().overlaps:  # which of two owners counts is undefined
            continue
        for step in measure(history.events)[1]:
            expected[run, step["number"]] = [step[name] for name in STEPS]
    compared = {key: [None if value is None else round(value, 1) for value in found[key]] for key in expected}
    assert compared == expected
    assert len(expected) > 3
    assert {figures[1] is None for figures in expected.values()} == {True, False}


def test_load_peaks_equal_the_plain_summarys(spark: SparkSession, made: Made) -> None:
    tables = [spark.read.parquet(str(made.facts / name)) for name in ("events", "intervals", "steps")]
    found = rows(load_peaks(*tables), *STEP, "load_peak")
    peaks = {(run.removeprefix(f"{made.events}/"), step): peak for run, step, peak in found if peak is not None}
    expected: dict[tuple[str, Any], Any] = {}
    for run, history in made.histories.items():
        if not history.verdict().overlaps:
            expected |= {(run, step["number"]): step["load_peak"] for step in measure(history.events)[1]}
    compared = {key: peaks.get(key) for key in expected}
    assert compared == pytest.approx(expected)
    assert {1.0, None} <= set(expected.values())


def test_delays_are_off_by_at_most_one_bin(made: Made) -> None:
    shares = ("delay_p50_ms", "delay_p99_ms", "delay_max_ms")
    columns = ("run", "step", "records", *shares)
    found = {(run, step): figures for run, step, *figures in rows(made.tables["delay_figures"], *columns)}
    compared = 0
    for run, history in made.histories.items():
        for step in measure(history.events)[1]:
            if step["delay_max_ms"] is not None:
                _records, *figures = found[run, step["number"]]
                assert figures == pytest.approx([step[name] for name in shares], rel=0.011)
                compared += 1
    assert compared > 3


def test_tables_of_another_input_are_gone(made: Made) -> None:
    """In `batch._write_facts`, remove nothing: events of another input would stand beside the tables of this one."""
    assert not (made.facts / ALIGNED).exists()
