"""Random histories and the batch pipeline's tables of their event files, computed once for all tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.unit.observe.history import History
from tests.unit.pipeline.histories import chaos, planned, write_run
from zkrebalancer.pipeline import batch

SEEDS = range(60)  # the time goes into Spark's planning, not into events


@dataclass(frozen=True)
class Made:
    """Histories by run, the folder of their event files, and the tables computed from these."""

    histories: dict[str, History]
    events: Path
    tables: dict[str, DataFrame]


@pytest.fixture(scope="session")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Run the batch pipeline once."""
    folder = tmp_path_factory.mktemp("pipeline")
    histories = {f"run-{seed:03}": chaos(seed) for seed in SEEDS} | {"planned": planned()}
    for run, history in histories.items():
        write_run(folder / "in" / run / "events", history)
    batch.run(spark, str(folder / "in"), str(folder / "out"))
    tables = {table.name: spark.read.parquet(str(table)) for table in (folder / "out").iterdir()}
    return Made(histories, folder / "in", tables)
