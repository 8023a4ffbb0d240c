"""Takes rows through plain Python, group by group, in one pass that makes the rows of several tables.

Spark brings the rows of a group together in order; a task reads them one batch after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

MAX_WAITING_ROWS = 10_000
Row = dict[str, Any]


class Group(Protocol):
    """What becomes of one group; `rows` has the complete rows of each table, and may be emptied."""

    rows: dict[str, list[tuple[Any, ...]]]

    def apply(self, row: Row) -> None:
        """Handle the next row."""

    def finish(self) -> None:
        """Complete all tables, after the last row."""


@contextmanager
def one_pass(
    rows: DataFrame,
    keys: tuple[str, ...],
    order: tuple[str, ...],
    tables: Mapping[str, str],
    group: Callable[..., Group],
) -> Iterator[Callable[[str], DataFrame]]:
    """Give a function from the name of a table to the table, made of `rows` grouped by `keys` in `order`.

    `tables` has the schema of each table, as Spark's DDL; `group` makes a Group from the values of `keys`.
    """
    schema = StructType([StructField(name, StructType.fromDDL(ddl)) for name, ddl in tables.items()])
    ordered = rows.repartition(*keys).sortWithinPartitions(*keys, *order)
    found = ordered.mapInArrow(partial(_tables, to_arrow_schema(schema), keys, group), schema).persist()
    try:
        yield lambda name: found.where(F.col(name).isNotNull()).select(f"{name}.*")
    finally:
        found.unpersist()


def _tables(
    schema: pa.Schema, keys: tuple[str, ...], group: Callable[..., Group], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    key: tuple[Any, ...] | None = None
    current: Group | None = None
    for batch in batches:
        names = batch.schema.names
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            row = dict(zip(names, values, strict=True))
            found = tuple(row[name] for name in keys)
            if current is None or found != key:
                if current is not None:
                    current.finish()
                    yield from _emitted(schema, current)
                key, current = found, group(*found)
            current.apply(row)
        if current is not None and sum(map(len, current.rows.values())) > MAX_WAITING_ROWS:
            yield from _emitted(schema, current)
    if current is not None:
        current.finish()
        yield from _emitted(schema, current)


def _emitted(schema: pa.Schema, group: Group) -> Iterator[pa.RecordBatch]:
    """Iterate over the rows that are complete, a batch for each table, and forget them."""
    for name, rows in group.rows.items():
        if rows:
            of_table = _column(schema.field(name).type, rows)
            others = {other.name: pa.nulls(len(rows), other.type) for other in schema}
            yield pa.RecordBatch.from_arrays([*(others | {name: of_table}).values()], schema=schema)
            rows.clear()


def _column(kind: pa.StructType, rows: list[tuple[object, ...]]) -> pa.StructArray:
    """Make a column of rows; a struct in it is a tuple or a dictionary."""
    columns = []
    for field, values in zip(kind, zip(*rows, strict=True), strict=True):
        if pa.types.is_struct(field.type):
            names = [each.name for each in field.type]
            made = [dict(zip(names, value, strict=True)) if isinstance(value, tuple) else value for value in values]
            columns.append(pa.array(made, field.type))
        else:
            columns.append(pa.array(values, field.type))
    return pa.StructArray.from_arrays(columns, fields=list(kind))
