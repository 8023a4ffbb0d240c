"""Records that are delivered once more are found among those settled before."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from zkrebalancer.observe.ranges import RangeSet
from zkrebalancer.pipeline.continued import stored, tables
from zkrebalancer.pipeline.continued.look_back import _near, look_back
from zkrebalancer.pipeline.continued.records import STRETCHES, BookKey
from zkrebalancer.pipeline.continued.stored import StoredEvents, StoredTable
from zkrebalancer.pipeline.facts.fates import DOUBTFUL
from zkrebalancer.pipeline.facts.of_partition import SUSPECTS
from zkrebalancer.pipeline.facts.one_pass import table_of
from zkrebalancer.pipeline.schema import STORED

PARTITIONS = range(4)


def place(partition: int) -> tuple[Any, ...]:
    return 0, partition, 1, "t", "g", "m", "r", 0


def at(partition: int) -> tuple[int, int, int]:
    return 100 + partition, 0, partition


def write(folder: Path, table: pa.Table) -> None:
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "0.parquet")


def book(partition: int, *ranges: tuple[int, int]) -> tuple[BookKey, RangeSet]:
    found = RangeSet()
    for each in ranges:
        found.add(*each)
    return ("g", "t", partition, 0), found


def test_redeliveries_of_many_partitions_read_each_table_once(spark: SparkSession, tmp_path: Path) -> None:
    """In `look_back`, read for each book: then a crash costs as many reads as its member had partitions."""
    columns = pa.schema([field for field in to_arrow_schema(STORED) if field.name != "kind"])
    names = {"run": "r", "file": "f", "block": 0, "group": "g", "topic": "t", "member": "m"}
    offsets = {"first_offset": 0, "last_offset": 9, "count": 10}
    events = [{**names, **offsets, "row": n, "partition": n, "mono_us": 100 + n} for n in PARTITIONS]
    write(tmp_path / "events" / "kind=delivered", pa.Table.from_pylist(events, schema=columns))
    stretches = [(*place(n), 0, 10, at(n), at(n), 0, 1) for n in PARTITIONS]
    write(tmp_path / STRETCHES, table_of(tables.schemas()[STRETCHES], stretches))
    write(tmp_path / SUSPECTS, table_of(tables.schemas()[SUSPECTS], [(*place(1), at(1), at(1))]))
    asked: list[str] = []

    def settled(name: str) -> StoredTable:
        asked.append(name)
        return StoredTable(lambda: [tmp_path / name])

    back = dict([book(0, (5, 6)), book(1, (0, 10)), book(2, (20, 30))])  # 1 is suspect, 2 was not delivered
    found = look_back("r", StoredEvents([tmp_path / "events"]), settled, back)
    assert found[SUSPECTS] == [(*place(0), at(0), at(0))]
    assert len(found[DOUBTFUL]) == 1
    assert sorted(asked) == sorted([SUSPECTS, STRETCHES])


def test_events_of_an_earlier_version_lack_the_keys_that_came_later(tmp_path: Path) -> None:
    """In `StoredEvents._files`, give no schema: the first file has the only keys, and a watcher ends."""
    columns = [field for field in to_arrow_schema(STORED) if field.name not in {"kind", "rest"}]
    rest = pa.struct([pa.field("trigger", pa.string())])
    event = {"run": "r", "file": "f", "rest": {"trigger": "retry"}}
    table = pa.Table.from_pylist([event], schema=pa.schema([*columns, pa.field("rest", rest)]))
    write(tmp_path / "kind=rebalance_requested", table)
    (lines,) = StoredEvents([tmp_path]).lines("r").values()
    ((trigger, strategy),) = zip(lines["trigger"].to_pylist(), lines["strategy"].to_pylist(), strict=True)
    assert (trigger, strategy) == ("retry", None)


def test_few_rows_of_a_table_are_in_memory_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `StoredTable.rows`, make a list of them: a redelivery in a run of days needs gigabytes."""
    stretches = [{"partition": 0, "begin": n, "began": {"mono_us": n, "block": 0, "row": n}} for n in range(5_000)]
    write(tmp_path / STRETCHES, pa.Table.from_pylist(stretches))
    monkeypatch.setattr(stored, "ROWS_AT_ONCE", 100)
    table = StoredTable(lambda: [tmp_path / STRETCHES])

    def peak_bytes(rows: Callable[[], Iterable[object]]) -> int:
        tracemalloc.start()
        try:
            assert sum(1 for _row in rows()) == len(stretches)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    of_all = pc.field("partition") == 0
    assert 10 * peak_bytes(lambda: table.rows(of_all)) < peak_bytes(lambda: list(table.rows(of_all)))


def test_only_rows_near_what_came_again_are_looked_at() -> None:
    """In `_near`, take all partitions together: one far behind the others lets all rows in between be looked at."""
    columns = {"partition": [0, 0, 3, 3, 3], "begin": [0, 90, 0, 90, 94], "end": [10, 100, 10, 94, 96]}
    near = _near(dict([book(0, (5, 6)), book(3, (94, 95), (200, 210))]))
    assert near(pa.RecordBatch.from_pydict(columns)).tolist() == [True, False, False, False, True]
