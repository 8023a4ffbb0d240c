from __future__ import annotations

from pathlib import Path

import pandas as pd
from pandas.testing import assert_frame_equal
from pyspark.sql import SparkSession

from zkrebalancer.pipeline.sweep import output
from zkrebalancer.pipeline.sweep.grid import Grid
from zkrebalancer.pipeline.sweep.job import sweep

GRID = Grid((3, 8), (20,), (0.0, 1.0), (0.1,), ("sticky", "balanced"))


def test_the_table_does_not_depend_on_tasks_or_order(spark: SparkSession) -> None:
    cells = GRID.cells(2)
    one, many = (sweep(spark, ordered, 5, count).toPandas() for ordered, count in ((cells, 1), (cells[::-1], 7)))
    assert_frame_equal(one, many, check_exact=True)
    assert len(one) == 3 * len(cells)


def test_the_written_files_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    result = sweep(spark, GRID.cells(1), 5).toPandas()
    output.write(result, tmp_path)
    assert_frame_equal(pd.read_parquet(tmp_path / output.TABLE), result, check_exact=True)
    assert_frame_equal(pd.read_csv(tmp_path / output.CSV), result)
    page = (tmp_path / output.PAGE).read_text()
    assert page.count("<svg") == 6
    assert "at its next heartbeat, uniformly within 3,000 ms" in page
    assert all(fetching not in page for fetching in ('href="http', "src=", "@import"))
