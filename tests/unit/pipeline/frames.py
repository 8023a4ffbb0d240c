"""Small tables as lists; stored ones are read without Spark, whose queries cost more than their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyarrow import dataset
from pyspark.sql import DataFrame

Table = Sequence[Mapping[str, Any]]
PLACES = {"block", "row", "began", "last", "ceased", "run_id", "batch"}  # where a line was read, not its content


def stored(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the Parquet files of a folder."""
    return dataset.dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist()


def rows(table: DataFrame | Table, *columns: str) -> list[tuple[Any, ...]]:
    """Return the columns of a small table as sorted rows."""
    found = table.select(*columns).collect() if isinstance(table, DataFrame) else table
    return sorted((tuple(row[name] for name in columns) for row in found), key=repr)


def differences(expected: Mapping[str, Table], found: Mapping[str, Table]) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return, for each table that differs, up to 3 rows found only on each side; row order and place do not matter."""
    different = {}
    for name, table in expected.items():
        first, second = (sorted(map(_content, each)) for each in (table, found[name]))
        if first != second:
            different[name] = (sorted(set(first) - set(second))[:3], sorted(set(second) - set(first))[:3])
    return different


def _content(row: Mapping[str, Any]) -> str:
    return repr(sorted((name, value) for name, value in row.items() if name not in PLACES))
