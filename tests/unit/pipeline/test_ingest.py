"""Every line of an event file becomes an event, or a reject with its file and line, whichever block contains it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.unit.observe.history import moved
from tests.unit.pipeline.frames import rows
from zkrebalancer.observe.reading import NoEventsError, find_flaw
from zkrebalancer.pipeline import local_files
from zkrebalancer.pipeline.ingest import blocks, parse, read_events, read_lines, rejects, write_events
from zkrebalancer.pipeline.local_files import Source, event_files

BROKEN = {
    3: ("nonsense", "not a JSON object"),
    4: ("[]", "not a JSON object"),
    40: ('{"mono_us": "x", "kind": "fault"}', "kind or mono_us is missing"),
    41: ('{"mono_us": 1, "kind": "ownership_ended", "group": "g", "reason": "expired"}', "member is missing"),
    42: (
        '{"mono_us": 1, "kind": "fetcher_started", "group": "g", "member": "m", "topic": "t", "partitions": [1]}',
        "positions is missing",
    ),
    43: ("[" * 3_000, "not a JSON object"),
    44: ('{"mono_us": 1, "kind": "fault", "name": ' + "[" * 3_000, "not a JSON object"),
    90: (
        '{"mono_us": 1, "kind": "produced", "topic": "t", "partition": 0, "first_offset": 2, "last_offset": 1}',
        "are not a range",
    ),
    91: (
        '{"mono_us":1,"kind":"produced","topic":"t","partition":0,"first_offset":2,"last_offset":9223372036854775807}',
        "are not a range",
    ),
    92: ('{"mono_us": -9223372036854775808, "kind": "fault", "name": "kill", "target": "a"}', "out of range"),
}
THROUGH_SPARK, WITH_THREADS = "Spark", "tasks, the first by threads"
RUNS = "runs [1]{x}*"  # a pattern to Spark unless escaped


def store(spark: SparkSession, folder: Path, out: Path, *, way: str) -> None:
    """Store the events of a folder in blocks of a few lines, so that their readers cannot know line numbers."""
    if way != THROUGH_SPARK:
        with pytest.MonkeyPatch.context() as patch:
            for name, size in (("MIN_TASK_BYTES", 1_000), ("MAX_TASK_BYTES", 1_000), ("AHEAD_BYTES", 3_000)):
                patch.setattr(local_files, name, size)
            files = event_files(Source(str(folder)))
            ahead = local_files.ReadAhead(files, out, 2) if way == WITH_THREADS else None
            with ahead or nullcontext():
                local_files.store_events(spark, files, out, ahead)
        return
    small = {"spark.sql.files.maxPartitionBytes": "1000", "spark.sql.files.openCostInBytes": "1"}
    usual = {key: spark.conf.get(key) for key in small}
    try:
        for key, value in small.items():
            spark.conf.set(key, value)
        write_events(parse(read_lines(spark, str(folder))), str(out))
    finally:
        for key, setting in usual.items():
            spark.conf.set(key, str(setting))


@pytest.mark.parametrize("way", [THROUGH_SPARK, "tasks", WITH_THREADS])
def test_invalid_lines_are_kept_with_file_line_and_reason(spark: SparkSession, tmp_path: Path, way: str) -> None:
    lines = ['{"mono_us": 1, "kind": "new", "more": {"a": [1]}}'] * 99
    for number, (line, _reason) in BROKEN.items():
        lines[number - 1] = line
    events = tmp_path / RUNS / "kip848" / "one + 1" / "events"
    (tmp_path / RUNS).mkdir()
    (tmp_path / RUNS / "b.jsonl").write_text("".join(json.dumps(event) + "\n" for event in moved().events))
    events.mkdir(parents=True)
    (events / "a é.jsonl").write_text("\n".join(lines) + '\n{"mono_us": 5, "ki')
    (events / "notes.txt").write_text("not an event file")
    (events / "_hidden.jsonl").write_text("nothing")
    store(spark, tmp_path / RUNS, tmp_path / "out?", way=way)
    table = read_events(spark, str(tmp_path / "out?"))
    assert table.select("file", "block").distinct().count() > 5
    found = rows(rejects(table, blocks(table)), "line", "run", "file", "text", "reason", "is_torn")
    name = ("kip848/one + 1", "kip848/one + 1/events/a é.jsonl")
    assert [(line, text, torn) for line, _run, _file, text, _reason, torn in found] == [
        (100, '{"mono_us": 5, "ki', True),
        *[(number, text, False) for number, (text, _reason) in BROKEN.items()],
    ]
    assert {row[1:3] for row in found} == {name}
    assert all(BROKEN[line][1] in reason for line, *_rest, reason, _torn in found if line != 100)
    kinds = dict(rows(table.groupBy("kind").count(), "kind", "count"))
    assert kinds["other"] == 99 - len(BROKEN)
    assert kinds["rejected"] == len(BROKEN) + 1
    assert sum(kinds.values()) == 100 + len(moved().events)
    assert rows(table.where("run = '.'").groupBy("run").count(), "run", "count") == [(".", len(moved().events))]


def test_the_plain_checker_rejects_the_same_lines() -> None:
    broken = [json.loads(line) for line, reason in BROKEN.values() if reason != "not a JSON object"]
    assert len(broken) == len(BROKEN) - 4
    assert None not in map(find_flaw, broken)


def test_a_folder_without_events_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NoEventsError, match="contains no event file"):
        read_lines(spark, str(tmp_path / "missing"))
