"""Random histories and the batch pipeline's tables of their event files, computed once for all tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

from tests.unit.observe.history import History
from tests.unit.pipeline.histories import chaos, planned, write_run
from zkrebalancer.cli.main import zkrebalancer
from zkrebalancer.pipeline import session

SEEDS = range(60)  # the time goes into Spark's planning, not into events


@dataclass(frozen=True)
class Made:
    """Histories by run, the folder of their event files, and the tables computed from these."""

    histories: dict[str, History]
    events: Path
    tables: dict[str, DataFrame]


Command = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def command(spark: SparkSession) -> Iterator[Command]:
    """Run a command of `zkrebalancer` to its end, on the session that all tests share; return its document."""

    @contextmanager
    def shared(_master: str, _memory: str | None, _settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
        yield spark

    def run(*arguments: object) -> dict[str, Any]:
        result = CliRunner().invoke(zkrebalancer, [*map(str, arguments), "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "spark_session", shared)
        yield run


@pytest.fixture(scope="session")
def made(spark: SparkSession, command: Command, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Run the batch pipeline once."""
    folder = tmp_path_factory.mktemp("pipeline")
    histories = {f"run-{seed:03}": chaos(seed) for seed in SEEDS} | {"planned": planned()}
    for run, history in histories.items():
        write_run(folder / "in" / run / "events", history)
    told = command("pipeline", "run", "--events", folder / "in", "--out", folder / "out")
    assert {run["run"] for run in told["runs"]} <= histories.keys()
    tables = {table.name: spark.read.parquet(str(table)) for table in (folder / "out").iterdir()}
    return Made(histories, folder / "in", tables)
