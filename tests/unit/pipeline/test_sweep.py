from __future__ import annotations

from pathlib import Path

import pandas as pd
from pandas.testing import assert_frame_equal
from pyspark.sql import SparkSession

from tests.support.pipeline_run import Command
from zkrebalancer.pipeline.sweep import output
from zkrebalancer.pipeline.sweep.grid import Grid
from zkrebalancer.pipeline.sweep.job import sweep
from zkrebalancer.pipeline.sweep.model import PROTOCOLS

GRID = Grid((3, 8), (20,), (0.0, 1.0), (0.1,), ("sticky", "balanced"))
AXES = ("members=3,8", "partitions=20", "skew=0,1", "churn=0.1", "strategy=sticky,balanced")
REPEATS, SEED = 2, 5


def test_the_written_table_does_not_depend_on_tasks_or_order(
    spark: SparkSession, command: Command, tmp_path: Path
) -> None:
    grid = [text for axis in AXES for text in ("--grid", axis)]
    told = command("pipeline", "sweep", *grid, "--repeat", REPEATS, "--seed", SEED, "--out", tmp_path)
    cells = GRID.cells(REPEATS)
    result = sweep(spark, cells[::-1], SEED, task_count=1).toPandas()
    assert (told["cells"], told["rows"], told["seed"]) == (len(cells), len(result), SEED)
    assert len(result) == len(PROTOCOLS) * len(cells)
    assert_frame_equal(pd.read_parquet(told["table"]), result, check_exact=True)
    assert_frame_equal(pd.read_csv(tmp_path / output.CSV), result)
    page = Path(told["page"]).read_text()
    assert page.count("<svg") == 6
    assert "uniformly within 3,000 ms" in page
    assert "uniformly within 5,000 ms" in page
    assert "too favourable" in " ".join(page.split())
    assert all(fetching not in page for fetching in ('href="http', "src=", "@import"))
