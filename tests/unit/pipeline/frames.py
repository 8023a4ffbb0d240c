"""Small tables as lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

PLACES = {"block", "row", "began", "last", "ceased", "run_id", "batch"}  # where a line was read, not its content


def rows(table: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return the columns of a small table as sorted rows."""
    return sorted((tuple(row) for row in table.select(*columns).collect()), key=repr)


def differences(
    expected: Mapping[str, DataFrame], found: Mapping[str, DataFrame]
) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return, for each table that differs, up to 3 rows found only on each side; row order and place do not matter."""
    different = {}
    for name, table in expected.items():
        columns = [column for column in table.columns if column not in PLACES]
        first, second = rows(table, *columns), rows(found[name], *columns)
        if first != second:
            in_first, in_second = set(map(repr, first)), set(map(repr, second))
            different[name] = (sorted(in_first - in_second)[:3], sorted(in_second - in_first)[:3])
    return different
