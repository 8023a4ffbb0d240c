"""Runs the cells of a grid on Spark executors; the result does not depend on how many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, fields

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zkrebalancer.pipeline.sweep.grid import Cell
from zkrebalancer.pipeline.sweep.model import Cost, simulate

CELL_SCHEMA = "members long, partitions long, skew double, churn double, strategy string, repeat long"
RESULT_SCHEMA = f"{CELL_SCHEMA}, protocol string, " + ", ".join(f"{field.name} double" for field in fields(Cost))
KEYS = [field.name for field in fields(Cell)]
TASKS_PER_CORE = 4  # the cost of cells varies a hundredfold


def sweep(spark: SparkSession, cells: list[Cell], seed: int, task_count: int | None = None) -> DataFrame:
    """Return one row for each cell and protocol, in order.

    `task_count`: number of Spark tasks; None for enough to keep the cores busy.
    """
    pieces = task_count or min(len(cells), TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    table = spark.createDataFrame([astuple(cell) for cell in cells], CELL_SCHEMA).repartition(pieces)
    return table.mapInArrow(_simulator(seed), RESULT_SCHEMA).orderBy(*KEYS, "protocol")


def _simulator(seed: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                costs = simulate(Cell(**row), seed)
                rows = [row | {"protocol": protocol} | asdict(cost) for protocol, cost in costs.items()]
                yield pa.RecordBatch.from_pylist(rows)

    return run
