"""Where tables are written: a folder of them, each replaced as a whole.

`watch` has another store, whose tables change together.
"""

from __future__ import annotations

import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from zkrebalancer.pipeline import ingest, progress
from zkrebalancer.pipeline.facts.one_pass import File, Pass, write_file


class Store(Protocol):
    """What writes tables, and reads them back."""

    def keep(self, name: str, table: DataFrame) -> DataFrame:
        """Let Spark write a table; return it read back."""

    def keep_none(self, name: str, schema: StructType) -> DataFrame:
        """Write a table without rows; return it."""

    def keep_all(self, title: str, found: Pass) -> dict[str, DataFrame]:
        """Let the tasks of a pass write its tables; return them read back."""


class Folder:
    """The tables below a folder; `written` has those that were kept."""

    def __init__(self, spark: SparkSession, out: Path) -> None:
        """Nothing is written yet."""
        self._spark, self._out = spark, out.absolute()
        self.written: dict[str, DataFrame] = {}

    def keep(self, name: str, table: DataFrame) -> DataFrame:
        """Let Spark replace a table; return it read back."""
        progress.step(self._spark.sparkContext, f"table {name}")
        table.write.mode("overwrite").parquet(str(self._out / name))
        return self._read(name, table.schema)

    def keep_none(self, name: str, schema: StructType) -> DataFrame:
        """Replace a table by one without rows; return it."""
        return self._replace(name, schema, [])

    def keep_all(self, title: str, found: Pass) -> dict[str, DataFrame]:
        """Let the tasks of a pass write its tables, replace the old ones, and return the new ones read back."""
        progress.step(self._spark.sparkContext, title)
        with written(self._out / f"_pass-{uuid.uuid4().hex}", found, by_run=False) as files:
            return {name: self._replace(name, schema, files[name]) for name, schema in found.schemas.items()}

    def _replace(self, name: str, schema: StructType, files: list[File]) -> DataFrame:
        folder = self._out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        move(files, folder, schema)
        return self._read(name, schema)

    def _read(self, name: str, schema: StructType) -> DataFrame:
        self.written[name] = ingest.read_table(self._spark, str(self._out / name), schema=schema)
        return self.written[name]


@contextmanager
def written(scratch: Path, found: Pass, *, by_run: bool) -> Iterator[dict[str, list[File]]]:
    """Let the tasks of a pass write into a new folder; give each table's files, to be moved before the block ends."""
    try:
        files: dict[str, list[File]] = defaultdict(list)
        for file in found.write(str(scratch), by_run=by_run):
            files[file.table].append(file)
        yield files
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # also of tasks that were repeated


def move(files: list[File], folder: Path, schema: StructType) -> None:
    """Move files into a folder; without any, write one without rows there."""
    for file in files:
        path = Path(file.path)
        path.rename(folder / path.name)
    if not files:
        write_file(folder / "none.parquet", schema)
