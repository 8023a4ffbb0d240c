"""The commands that use Spark, on the session that all tests share: each runs to its end, with its verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.support.run_folders import FakeRun
from tests.unit.observe.history import History
from tests.unit.pipeline.histories import planned, write_run
from zkrebalancer.cli.main import zkrebalancer
from zkrebalancer.pipeline import session
from zkrebalancer.protocol.weights import HOUR_S

Command = Callable[..., dict[str, Any]]
HOURS = 5


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Run a command to its end in this process; return its document."""

    @contextmanager
    def shared(_master: str, _memory: str | None, _settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(session, "spark_session", shared)

    def run(*arguments: object) -> dict[str, Any]:
        result = CliRunner().invoke(zkrebalancer, [*map(str, arguments), "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    (tmp_path / "out").mkdir()
    return run


def test_pipeline_run(command: Command, tmp_path: Path) -> None:
    history = planned()
    write_run(tmp_path / "in" / "planned", history)
    (run,) = command("pipeline", "run", "--events", tmp_path / "in", "--out", tmp_path / "out")["runs"]
    verdict = history.verdict()
    assert (run["produced"], run["delivered"], run["lost"]) == (verdict.produced, verdict.delivered, verdict.lost)


def test_pipeline_sweep(command: Command, tmp_path: Path) -> None:
    axes = ("--grid", "members=3", "--grid", "partitions=6", "--grid", "skew=0", "--grid", "churn=0.1")
    told = command(
        "pipeline", "sweep", *axes, "--grid", "strategy=sticky", "--repeat", 1, "--seed", 5, "--out", tmp_path / "out"
    )
    assert (told["cells"], told["rows"], told["seed"]) == (1, 3, 5)
    assert Path(told["table"]).exists()
    assert Path(told["page"]).exists()


def test_pipeline_weights(command: Command, tmp_path: Path) -> None:
    history = History()
    for half in range(-1, 2 * HOURS + 1):
        history.add("produced", topic="t", partition=0, first_offset=0, last_offset=899)
        history.events[-1]["ts_us"] = (2_000 + half) * HOUR_S * 500_000 + 1
    write_run(tmp_path / "in", history)
    told = command("pipeline", "weights", "--events", tmp_path / "in", "--out", tmp_path / "out")
    assert (told["source"], told["hours"], told["written_for"]) == ("produced", HOURS, None)
    assert told["rate"] == {"t": [0.5]}


def test_experiment_compare(command: Command, tmp_path: Path) -> None:
    for protocol, pause_ms in (("central-incremental", 2_000), ("kip848", 500)):
        for seed in (1, 2, 3):
            FakeRun(protocol, pause_ms, seed, broker="kafka-4").write(tmp_path / "runs")
    told = command("experiment", "compare", tmp_path / "runs", "--out", tmp_path / "out")
    assert (told["runs"], told["not_trusted"]) == (6, [])
    outcomes = {verdict["measure"]: verdict["outcome"] for verdict in told["verdicts"]}
    assert outcomes["settled_ms"] == "loses"
    assert Path(told["page"]).exists()


def test_experiment_list() -> None:
    result = CliRunner().invoke(zkrebalancer, ["experiment", "list", "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    assert {"protocols", "scenarios"} <= json.loads(result.stdout).keys()
