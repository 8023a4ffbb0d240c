"""The tasks of a pass write files of their own; Spark is not needed here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zkrebalancer.pipeline.facts import one_pass

SCHEMA = pa.schema(
    [("a", pa.struct([("run", pa.string()), ("sum", pa.int64())])), ("b", pa.struct([("x", pa.int64())]))]
)
ROWS = [("r", "p", 1), ("r", "p", 2), ("r", "q", 3), ("s", "p", 4)]


class Sum:
    """Sums values; the table `b` has every odd one."""

    def __init__(self, run: str, _part: str) -> None:
        self.rows: dict[str, list[tuple[Any, ...]]] = {"a": [], "b": []}
        self._run, self._sum = run, 0

    def apply(self, row: dict[str, Any]) -> None:
        self._sum += row["value"]
        if row["value"] % 2:
            self.rows["b"].append((row["value"],))

    def finish(self) -> None:
        self.rows["a"].append((self._run, self._sum))


def write(folder: Path, *, by_run: bool) -> list[dict[str, str]]:
    batches = [pa.RecordBatch.from_pylist([dict(zip(("run", "part", "value"), row, strict=True))]) for row in ROWS]
    task = one_pass.write(str(folder), by_run, SCHEMA, ("run", "part"), Sum, iter(batches))
    return [file for batch in task for file in batch.to_pylist()]


def values(folder: Path, files: list[dict[str, str]]) -> dict[tuple[str, str], list[tuple[Any, ...]]]:
    assert {file["path"] for file in files} <= {str(path) for path in folder.iterdir()}
    tables = {(file["table"], file["run"]): pq.read_table(file["path"]).to_pylist() for file in files}
    return {key: [tuple(row.values()) for row in rows] for key, rows in tables.items()}


def test_a_file_is_of_one_table_or_of_one_run_of_it(tmp_path: Path) -> None:
    sums = [("r", 3), ("r", 3), ("s", 4)]
    assert values(tmp_path, write(tmp_path, by_run=False)) == {("a", ""): sums, ("b", ""): [(1,), (3,)]}
    by_run = values(tmp_path, write(tmp_path, by_run=True))
    assert by_run == {("a", "r"): sums[:2], ("a", "s"): sums[2:], ("b", "r"): [(1,), (3,)]}


def test_a_task_that_is_repeated_writes_other_files(tmp_path: Path) -> None:
    first, second = (write(tmp_path, by_run=False) for _ in range(2))
    assert not {file["path"] for file in first} & {file["path"] for file in second}


def test_rows_are_written_before_there_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_pass, "MAX_WAITING_ROWS", 1)
    found = write(tmp_path, by_run=False)
    assert pq.ParquetFile(next(file["path"] for file in found if file["table"] == "a")).num_row_groups > 1
    assert values(tmp_path, found)["b", ""] == [(1,), (3,)]


def test_rows_that_a_group_has_before_its_end_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_portions`, keep them in their group."""
    monkeypatch.setattr(one_pass, "MAX_WAITING_ROWS", 1)
    monkeypatch.setitem(globals(), "ROWS", [("r", "p", number) for number in range(12)])
    assert values(tmp_path, write(tmp_path, by_run=False))["b", ""] == [(number,) for number in range(1, 12, 2)]
