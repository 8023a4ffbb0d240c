"""Many new lines of several files are read in order of time, a part in each micro-batch."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes

from zkrebalancer.pipeline import backlog, tail
from zkrebalancer.pipeline.tail import EventFileReader

BUDGET, STEP = 20_000, 512
LONG = 32 << 20  # bytes


def write(path: Path, times_us: range, **others: object) -> list[int]:
    """Write a line for each time; return the times."""
    path.parent.mkdir(exist_ok=True)
    lines = (json.dumps({"kind": "counted", "ts_us": at, "mono_us": at % 977, **others}) for at in times_us)
    path.write_text("".join(f"{line}\n" for line in lines))
    return list(times_us)


def batches(folder: Path) -> Iterator[list[int]]:
    """Iterate over the times of the lines of each micro-batch; it does not exceed the limit by more than some lines."""
    reader, offset = EventFileReader(folder), tail.Offset()
    while (end := reader.latestOffset(offset, ReadMaxBytes(1))) != offset:
        found = [each.to_pylist() for part in reader.partitions(offset, end) for each in reader.read(part)]
        rows = [row for each in found for row in each]
        assert sum(len(row["text"]) for row in rows) < 1.25 * BUDGET
        yield [json.loads(row["text"]).get("ts_us", 0) for row in rows]
        offset = end


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MAX_BATCH_BYTES", BUDGET)
    monkeypatch.setattr(tail, "_CHUNK_BYTES", STEP)
    monkeypatch.setattr(backlog, "_LEAST_STEP", STEP)


def test_files_of_different_speed_and_age_are_read_up_to_one_time(tmp_path: Path) -> None:
    """In `latestOffset`, leave `shares` empty: the second file begins before the first one ends."""
    written = write(tmp_path / "r" / "dense.jsonl", range(1, 20_000, 10))
    written += write(tmp_path / "r" / "late.jsonl", range(15_000, 20_000, 10))
    written += write(tmp_path / "r" / "slow.jsonl", range(2, 20_000, 500), note="x" * 100)
    written += write(tmp_path / "r" / "over.jsonl", range(3, 30))
    found = list(batches(tmp_path))
    assert len(found) > 5
    assert sorted(at for batch in found for at in batch) == sorted(written)
    for before, after in pairwise(found):
        assert max(before) < min(after)


def test_files_whose_lines_have_no_time_are_read_one_after_the_other(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"kind": "x"}\n' * 2_000)
    found = list(batches(tmp_path))
    assert sum(map(len, found)) == 4_000
    assert len(found) == 3


def test_a_file_that_is_being_written_or_was_moved_stops_no_other(tmp_path: Path) -> None:
    """In `parts_until_one_time`, suppress nothing."""
    written = write(tmp_path / "r" / "a.jsonl", range(1, 10_000, 10))
    (tmp_path / "r" / "b.jsonl").write_text('{"ts_us": 5')
    unread = dict.fromkeys(("r/a.jsonl", "r/b.jsonl", "r/gone.jsonl"), (0, 100_000))
    assert set(backlog.parts_until_one_time(tmp_path, unread, BUDGET)) <= {"r/a.jsonl", "r/b.jsonl"}
    assert sorted(at for batch in batches(tmp_path) for at in batch) == written


def test_a_line_of_any_length_needs_little_memory(tmp_path: Path) -> None:
    """In `_rest_of_line`, read all at once: zeros that a power failure left may be as long as the file."""
    (tmp_path / "a.jsonl").write_bytes(b'{"ts_us": 5}\n' + bytes(LONG) + b'\n{"ts_us": 7}\n')
    tracemalloc.start()
    try:
        found = backlog.parts_until_one_time(tmp_path, {"a.jsonl": (0, LONG + 27)}, BUDGET)
        _now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == {"a.jsonl": LONG + 27}
    assert most < LONG / 4
