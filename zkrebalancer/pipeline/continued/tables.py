"""The rows of one run, as parts of a commit: settled ones, a piece for each refresh, and the rest, replaced each time.

Pieces are merged as micro-batches are (`watch`): a row is rewritten as often as their number has digits to that base.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from zkrebalancer.pipeline.align import ALIGNED
from zkrebalancer.pipeline.commits import MERGED, Commits, to_merge
from zkrebalancer.pipeline.continued import places, records, run
from zkrebalancer.pipeline.continued.records import Rows
from zkrebalancer.pipeline.continued.stored import StoredTable
from zkrebalancer.pipeline.facts import fates, of_partition, of_run, runs
from zkrebalancer.pipeline.facts.one_pass import table_of
from zkrebalancer.pipeline.schema import BOUNDS, REST, STORED

NO_RUN = "run_id=none"
_REST = "rest"
_ID_DIGITS = 16
_DDL = {
    **places.SCHEMAS,
    **run.SCHEMAS,
    **of_run.SCHEMAS,
    **records.SCHEMAS,
    **of_partition.SCHEMAS,
    **fates.SCHEMAS,
    **runs.SCHEMAS,
}
Parts = dict[str, dict[str, str]]  # table -> part -> folder


@cache
def schemas() -> dict[str, pa.Schema]:
    """Return the schema of each table."""
    of_ddl = {name: cast("StructType", StructType.fromDDL(ddl)) for name, ddl in _DDL.items()}
    columns = [field for field in STORED.fields if field.name != "rest"] + REST.fields
    columns += [StructField(name, LongType()) for name in BOUNDS]
    return {name: to_arrow_schema(each) for name, each in {**of_ddl, ALIGNED: StructType(columns)}.items()}


class RunTables:
    """The rows of a run in all tables; `parts` are those of the commit to come."""

    def __init__(self, commits: Commits, parts: Parts, name: str, number: int) -> None:
        """`name`: of the run; `number`: of the refresh."""
        self._commits, self._parts = commits, parts
        self._part, self._piece = part_of(name), f"{part_of(name)}/{number}"
        self._files = 0

    @property
    def is_new(self) -> bool:
        """Whether no table has a row of the run."""
        return not any(_is_of(part, self._part) for part in self._parts.get(runs.RUNS, {}))

    def clear(self) -> None:
        """Remove all rows."""
        for parts in self._parts.values():
            remove(parts, self._part)

    def marked(self) -> Parts:
        """Return where the settled rows are, but of `rejects`, which do not depend on times."""
        rest = f"{self._part}/{_REST}"
        found = {name: parts for name, parts in self._parts.items() if name != places.REJECTS}
        return {
            name: {part: folder for part, folder in parts.items() if _is_of(part, self._part, rest)}
            for name, parts in found.items()
        }

    def go_back(self, marked: Parts) -> None:
        """Have the settled rows that were there when they were marked, and no others."""
        for name in self._parts.keys() - {places.REJECTS}:
            remove(self._parts[name], self._part)
            self._parts[name] |= marked.get(name, {})

    def settled(self, name: str) -> StoredTable:
        """Return the settled rows of a table."""

        def folders() -> list[Path]:
            rest = f"{self._part}/{_REST}"
            found = [folder for part, folder in self._parts.get(name, {}).items() if _is_of(part, self._part, rest)]
            return [self._commits.path(folder) for folder in found]

        return StoredTable(folders)

    def settle(self, rows: Rows) -> None:
        """Add rows that stay."""
        for name, of_table in rows.items():
            if of_table:
                parts = self._parts.setdefault(name, {})
                if self._piece not in parts:
                    parts[self._piece] = self._new_folder(name)
                self._write(parts[self._piece], name, of_table)

    def end(self, rows: Rows) -> None:
        """Replace the other rows, and merge pieces."""
        for name in schemas():
            if name == ALIGNED and not rows.get(name) and name not in self._parts:
                continue  # it is absent unless a run has several clocks
            parts = self._parts.setdefault(name, {})
            if NO_RUN not in parts:  # a file without rows gives the table its columns
                parts[NO_RUN] = f"{self._commits.new_folder(name)}/{NO_RUN}"
                self._write(parts[NO_RUN], name, [])
            parts.pop(f"{self._part}/{_REST}", None)
            if rows.get(name):
                parts[f"{self._part}/{_REST}"] = self._new_folder(name)
                self._write(parts[f"{self._part}/{_REST}"], name, rows[name])
            self._merge(name, parts)

    def _merge(self, name: str, parts: dict[str, str]) -> None:
        spans = {_span(part): part for part in parts if _is_of(part, self._part) and not part.endswith(_REST)}
        while found := to_merge(spans, MERGED):
            old = [self._commits.path(parts.pop(spans.pop(span))) for span in found]
            span = (found[0][0], found[-1][1])
            spans[span] = f"{self._part}/{span[0]}-{span[1]}"
            folder = parts[spans[span]] = self._new_folder(name)
            path = self._file(folder)
            with pq.ParquetWriter(path, schemas()[name]) as writer:
                for file in (file for each in old for file in sorted(each.glob("*.parquet"))):
                    for batch in pq.ParquetFile(file).iter_batches():
                        writer.write_batch(batch)

    def _new_folder(self, name: str) -> str:
        return f"{self._commits.new_folder(name)}/{self._part}"

    def _write(self, folder: str, name: str, rows: list[Any]) -> None:
        schema = schemas()[name]
        if rows and name == ALIGNED:  # tables, each of a kind
            table = pa.concat_tables(rows).select(schema.names).cast(schema)
        else:
            table = table_of(schema, rows) if rows else schema.empty_table()
        pq.write_table(table, self._file(folder))

    def _file(self, folder: str) -> Path:
        path = self._commits.path(folder)
        path.mkdir(parents=True, exist_ok=True)
        self._files += 1
        return path / f"{self._files}.parquet"


def run_id(name: str) -> str:
    """Return what names a run in paths."""
    return hashlib.sha256(name.encode()).hexdigest()[:_ID_DIGITS]


def part_of(name: str) -> str:
    """Return the part of a table that has a run's rows, or the folder of several parts."""
    return f"run_id={run_id(name)}"


def remove(parts: dict[str, str], part: str) -> None:
    """Remove a run's part, or all of its parts."""
    for each in [each for each in parts if _is_of(each, part)]:
        del parts[each]


def _is_of(part: str, whole: str, but: str = "") -> bool:
    return (part == whole or part.startswith(f"{whole}/")) and part != but


def _span(part: str) -> tuple[int, int]:
    first, _, last = part.rpartition("/")[2].partition("-")
    return int(first), int(last or first)
