"""Takes rows through plain Python, group by group, in one pass that makes the rows of several tables.

Spark brings the rows of a group together in order; a task reads them one batch after the other. Either the tasks write
all tables at once, into files that count only when the driver has moved them, or Spark gets the rows as data frames.
A task that is repeated writes other files, and only those of the task whose result counts are reported to the driver.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

MAX_WAITING_ROWS = 10_000
_FILES = "table string, run string, path string"
Row = dict[str, Any]
Rows = dict[str, list[tuple[Any, ...]]]  # by table


class Group(Protocol):
    """What becomes of one group; `rows` has the complete rows of each table, and may be emptied."""

    rows: Rows

    def apply(self, row: Row) -> None:
        """Handle the next row."""

    def finish(self) -> None:
        """Complete all tables, after the last row."""


class File(NamedTuple):
    """A file with rows of a table; `run`: of which run alone, or empty."""

    table: str
    run: str
    path: str


@dataclass(frozen=True)
class Pass:
    """The pass over `rows`, grouped by `keys`, of which the first is the run, in `order`.

    `tables` has the schema of each table, as Spark's DDL; `group` makes a Group from the values of `keys`.
    """

    rows: DataFrame
    keys: tuple[str, ...]
    order: tuple[str, ...]
    tables: Mapping[str, str]
    group: Callable[..., Group]

    @property
    def schemas(self) -> dict[str, StructType]:
        """The schema of each table."""
        return {name: cast("StructType", StructType.fromDDL(ddl)) for name, ddl in self.tables.items()}

    @contextmanager
    def frames(self) -> Iterator[Callable[[str], DataFrame]]:
        """Give a function from the name of a table to the table; Spark keeps all of them until the block ends."""
        schema = self._all_columns()
        task = partial(_framed, to_arrow_schema(schema), self.keys, self.group)
        found = self._ordered().mapInArrow(task, schema).persist()
        try:
            yield lambda name: found.where(F.col(name).isNotNull()).select(f"{name}.*")
        finally:
            found.unpersist()

    def write(self, folder: str, *, by_run: bool) -> list[File]:
        """Let the tasks write all tables below `folder`; return the files that count: a few for each task.

        `by_run`: no file has rows of two runs.
        """
        task = partial(write, folder, by_run, to_arrow_schema(self._all_columns()), self.keys, self.group)
        return [File(*row) for row in self._ordered().mapInArrow(task, _FILES).collect()]

    def _all_columns(self) -> StructType:
        return StructType([StructField(name, schema) for name, schema in self.schemas.items()])

    def _ordered(self) -> DataFrame:
        return self.rows.repartition(*self.keys).sortWithinPartitions(*self.keys, *self.order)


def union(frames: Iterable[tuple[DataFrame, str]]) -> DataFrame:
    """Return the rows of all frames, each with the kind of its frame as `what`; missing columns are null."""
    named = (frame.withColumn("what", F.lit(what)) for frame, what in frames)
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), named)


def write_file(path: Path, schema: StructType) -> None:
    """Write a file without rows, which gives a table its columns."""
    pq.write_table(to_arrow_schema(schema).empty_table(), path)


def _framed(
    schema: pa.Schema, keys: tuple[str, ...], group: Callable[..., Group], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for _run, found in _portions(keys, group, batches, by_run=False):
        for name, rows in found.items():
            of_table = _column(schema.field(name).type, rows)
            others = {other.name: pa.nulls(len(rows), other.type) for other in schema}
            yield pa.RecordBatch.from_arrays([*(others | {name: of_table}).values()], schema=schema)


def write(
    folder: str,
    by_run: bool,
    schema: pa.Schema,
    keys: tuple[str, ...],
    group: Callable[..., Group],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write the tables as one task; return the files."""
    attempt, files = uuid.uuid4().hex, list[File]()
    Path(folder).mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        writers: dict[str, pq.ParquetWriter] = {}
        run_of_writers = ""
        for run, found in _portions(keys, group, batches, by_run=by_run):
            if by_run and run != run_of_writers:
                stack.close()
                writers, run_of_writers = {}, run
            for name, rows in found.items():
                column = _column(schema.field(name).type, rows)
                table = pa.Table.from_struct_array(column)
                if name not in writers:
                    path = str(Path(folder, f"{name}-{attempt}-{len(files)}.parquet"))
                    files.append(File(name, run_of_writers, path))
                    writers[name] = stack.enter_context(pq.ParquetWriter(path, table.schema))
                writers[name].write_table(table)
    if files:
        yield pa.RecordBatch.from_pylist([file._asdict() for file in files])


def _portions(
    keys: tuple[str, ...], group: Callable[..., Group], batches: Iterator[pa.RecordBatch], *, by_run: bool
) -> Iterator[tuple[str, Rows]]:
    """Iterate over portions of complete rows, and the run of the last ones; `by_run`: a portion is of one run."""
    waiting: Rows = defaultdict(list)
    run_of_waiting = ""
    for run, rows in _complete(keys, group, batches):
        is_other = by_run and run != run_of_waiting
        if waiting and (is_other or sum(map(len, waiting.values())) > MAX_WAITING_ROWS):
            yield run_of_waiting, waiting
            waiting = defaultdict(list)
        for name, found in rows.items():
            if found:
                waiting[name] += found
                found.clear()
        run_of_waiting = run
    if waiting:
        yield run_of_waiting, waiting


def _complete(
    keys: tuple[str, ...], group: Callable[..., Group], batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[str, Rows]]:
    """Iterate over the complete rows of groups that have ended, or have many, each with the run."""
    key: tuple[Any, ...] | None = None
    current: Group | None = None
    for batch in batches:
        names = batch.schema.names
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            row = dict(zip(names, values, strict=True))
            found = tuple(row[name] for name in keys)
            if current is None or key is None or found != key:
                if current is not None and key is not None:
                    current.finish()
                    yield key[0], current.rows
                key, current = found, group(*found)
            current.apply(row)
        if current is not None and key is not None and sum(map(len, current.rows.values())) > MAX_WAITING_ROWS:
            yield key[0], current.rows
    if current is not None and key is not None:
        current.finish()
        yield key[0], current.rows


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


def table_of(schema: pa.Schema, rows: list[tuple[object, ...]]) -> pa.Table:
    """Make a table of rows."""
    return pa.Table.from_struct_array(_column(pa.struct(list(schema)), rows))
