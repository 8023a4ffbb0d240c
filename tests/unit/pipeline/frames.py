"""Tables as lists, for tests that know them to be small."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

PLACES = {"block", "row", "began", "last", "ceased", "run_id", "batch"}  # where a line was read, not what it says


def rows(table: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return these columns of a table that a test expects to be small, sorted."""
    return sorted((tuple(row) for row in table.select(*columns).collect()), key=repr)


def differences(
    expected: Mapping[str, DataFrame], found: Mapping[str, DataFrame]
) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return for each table that differs which rows are only in one, whatever their order and place."""
    different = {}
    for name, table in expected.items():
        columns = [column for column in table.columns if column not in PLACES]
        first, second = rows(table, *columns), rows(found[name], *columns)
        if first != second:
            in_first, in_second = set(map(repr, first)), set(map(repr, second))
            different[name] = (sorted(in_first - in_second)[:3], sorted(in_second - in_first)[:3])
    return different
