"""A stream over growing event files builds the same tables as a batch over the same events."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from tests.support.pipeline_run import Made
from tests.unit.pipeline.frames import differences, stored
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.pipeline import batch, ingest, tail, watch
from zkrebalancer.pipeline.commits import Commits, to_merge
from zkrebalancer.pipeline.continued.keeper import Keeper
from zkrebalancer.pipeline.replaced import require_unwatched
from zkrebalancer.pipeline.schema import STORED
from zkrebalancer.pipeline.store import Store
from zkrebalancer.pipeline.tail import EventFileError, EventFileReader, event_sizes, whole_lines
from zkrebalancer.protocol.errors import ConfigurationError


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_stream_builds_the_tables_of_a_batch(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    said: list[str] = []
    query = watch.start(spark, watch.folder_lines(spark, made.events), tmp_path, None, said.append)
    query.awaitTermination()
    assert differences(made.tables, {name: stored(tmp_path / name) for name in made.tables}) == {}
    assert len(said) == 1


def test_whole_lines_are_read_once(tmp_path: Path) -> None:
    reader, file = EventFileReader(tmp_path), tmp_path / "run" / "a.jsonl"
    everything = ReadAllAvailable()
    start = reader.latestOffset(reader.initialOffset(), everything)
    assert start == {}
    file.parent.mkdir()
    file.write_text("one\ntwo\nthr")
    end = reader.latestOffset(start, everything)
    assert end == {"run/a.jsonl": {"bytes": 8, "lines": 2}}
    assert lines_between(reader, start, end) == [("run/a.jsonl", 1, "one"), ("run/a.jsonl", 2, "two")]
    assert reader.latestOffset(end, everything) == end
    with file.open("a") as appended:
        appended.write("ee\nfour\n")
    later = EventFileReader(tmp_path)  # a restarted reader
    assert lines_between(later, end, later.latestOffset(end, everything)) == [
        ("run/a.jsonl", 3, "three"),
        ("run/a.jsonl", 4, "four"),
    ]


def lines_between(reader: EventFileReader, start: tail.Offset, end: tail.Offset) -> list[tuple[str, int, str]]:
    batches = [batch.to_pylist() for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [(row["file"], row["row"], row["text"]) for batch in batches for row in batch]


def test_a_batch_keeps_its_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MAX_BATCH_BYTES", 100)
    monkeypatch.setattr(tail, "_CHUNK_BYTES", 7)
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_text("0123456789\n" * 10)
    reader = EventFileReader(tmp_path)
    offset, rounds, found = reader.initialOffset(), 0, []
    while (end := reader.latestOffset(offset, ReadMaxBytes(100))) != offset:
        found += lines_between(reader, offset, end)
        offset, rounds = end, rounds + 1
    assert rounds == 4
    assert sorted(found) == [(f"{name}.jsonl", row, "0123456789") for name in "abc" for row in range(1, 11)]


def test_event_files_are_found_at_any_depth_and_missing_ones_are_passed_over(tmp_path: Path) -> None:
    """Use `Path.rglob` and `Path.stat`."""
    for name in ("b.jsonl", "x/events/a.jsonl", "x/a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one\n")
    (tmp_path / "x" / "moved.jsonl").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "again").symlink_to(tmp_path)
    assert list(event_sizes(tmp_path).items()) == [("b.jsonl", 4), ("x/events/a.jsonl", 4)]


def test_available_now_ends_at_the_present_sizes(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("one\n")
    reader = EventFileReader(tmp_path)
    reader.prepareForTriggerAvailableNow()
    (tmp_path / "a.jsonl").write_text("one\ntwo\n")
    (tmp_path / "b.jsonl").write_text("one\n")
    assert reader.latestOffset({}, ReadAllAvailable()) == {"a.jsonl": {"bytes": 4, "lines": 1}}


def test_a_line_may_exceed_a_batch_but_not_the_line_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("x" * 50 + "\nshort\n")
    assert whole_lines(file, 0, 10, file.stat().st_size) == (57, 2)
    monkeypatch.setattr(tail, "MAX_LINE_BYTES", 40)
    monkeypatch.setattr(tail, "_CHUNK_BYTES", 8)
    with pytest.raises(EventFileError, match="a line of more than 40 bytes"):
        whole_lines(file, 0, 10, file.stat().st_size)


def test_a_file_that_shrank_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("one\n")
    with pytest.raises(EventFileError, match="only be appended to"):
        EventFileReader(tmp_path).latestOffset({"a.jsonl": {"bytes": 9, "lines": 2}}, ReadAllAvailable())


@pytest.mark.parametrize("end", [800, 12], ids=["shorter", "other lines"])
def test_a_file_that_lost_planned_lines_is_an_error(tmp_path: Path, end: int) -> None:
    (tmp_path / "a.jsonl").write_text("1234567\n" * 2)
    parts = islice(EventFileReader(tmp_path).read(tail.Part("a.jsonl", 0, end, 1)), 10)
    with pytest.raises(EventFileError, match=r"a\.jsonl has become shorter or was replaced; .* only be appended to"):
        list(parts)


def test_a_file_that_was_moved_elsewhere_keeps_no_watcher_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In `partitions` or `read`, require the file: a watcher that was killed within a micro-batch never continues."""
    for name in ("here", "moved", "moving"):
        (tmp_path / f"{name}.jsonl").write_text("one\n")
    reader = EventFileReader(tmp_path)
    end = reader.latestOffset({}, ReadAllAvailable())
    (tmp_path / "moved.jsonl").unlink()
    parts = reader.partitions({}, end)
    (tmp_path / "moving.jsonl").unlink()
    assert len([batch for part in parts for batch in reader.read(part)]) == 1
    assert [line.split(" (")[1] for line in caplog.messages] == [
        f"1, such as {tmp_path}/{name}.jsonl): the tables miss these lines" for name in ("moved", "moving")
    ]
    sizes = {"gone.jsonl": 4, "here.jsonl": 4}
    monkeypatch.setattr(tail, "event_sizes", lambda _folder: sizes)  # as it was before the file was moved
    assert reader.latestOffset({}, ReadAllAvailable()) == {"here.jsonl": {"bytes": 4, "lines": 1}}


def test_the_checkpoint_of_another_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EventFileError, match="offsets of another source"):
        EventFileReader(tmp_path).latestOffset({"topic": {"0": {"from": 0, "to": 1}}}, ReadAllAvailable())  # type: ignore[dict-item]


@pytest.fixture
def few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Spark build only the table `runs`, with a row per event: all runs have several clocks."""

    def refresh(_keeper: Keeper, *_arguments: object) -> bool:
        return False

    def tables(events: DataFrame, _kinds: frozenset[str], store: Store) -> None:
        store.keep("runs", events.select("run", "mono_us"))

    monkeypatch.setattr(Keeper, "_refresh", refresh)
    monkeypatch.setattr(batch, "tables", tables)


def lines(spark: SparkSession, *numbers: int) -> DataFrame:
    columns = "run string, file string, block long, row long, text string"
    texts = [("r", "f", 0, number, f'{{"mono_us": {number}, "kind": "new"}}') for number in numbers]
    return ingest.parse(spark.createDataFrame(texts, columns))


def numbers(out: Path, table: str) -> list[int]:
    return sorted(row["mono_us"] for row in stored(out / table))


@pytest.mark.usefixtures("few_tables")
def test_a_repeated_micro_batch_replaces_its_events(spark: SparkSession, tmp_path: Path) -> None:
    """In `update`, give the part another name each time."""
    for _ in range(2):
        assert watch.update(spark, lines(spark, 1), tmp_path, 7) == (1, 1)
        assert numbers(tmp_path, "events") == numbers(tmp_path, "runs") == [1]


@pytest.mark.usefixtures("few_tables")
def test_micro_batches_are_merged_and_readers_see_whole_refreshes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `_merged`, merge nothing; commit before the tables are made."""
    monkeypatch.setattr(watch, "MERGED", 2)
    for number in range(4):
        watch.update(spark, lines(spark, number), tmp_path, number)
    assert sorted(path.name for path in (tmp_path / "events").iterdir()) == ["batch=0-1", "batch=2", "batch=3"]
    assert numbers(tmp_path, "events") == numbers(tmp_path, "runs") == [0, 1, 2, 3]
    with monkeypatch.context() as broken:
        broken.setattr(batch, "tables", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            watch.update(spark, lines(spark, 4), tmp_path, 4)
    assert numbers(tmp_path, "events") == numbers(tmp_path, "runs") == [0, 1, 2, 3]
    watch.update(spark, lines(spark, 4), tmp_path, 4)
    assert numbers(tmp_path, "events") == numbers(tmp_path, "runs") == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("few_tables")
def test_a_core_more_is_no_file_more(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `update`, or in `_merged`, let as many tasks write as there are cores."""
    monkeypatch.setattr(watch, "MAX_WRITERS", 1)
    monkeypatch.setattr(watch, "MERGED", 2)
    for number in range(3):
        watch.update(spark, lines(spark, *range(10 * number, 10 * number + 10)), tmp_path, number)
    files = {part.name: len(list(part.glob("*/*.parquet"))) for part in (tmp_path / "events").iterdir()}
    assert files == {"batch=0-1": 1, "batch=2": 1}
    assert numbers(tmp_path, "events") == list(range(30))


def test_micro_batches_of_about_the_same_length_are_merged() -> None:
    assert to_merge((number, number) for number in range(15)) == []
    assert to_merge((number, number) for number in range(17)) == [(number, number) for number in range(16)]
    long = [(16 * number, 16 * number + 15) for number in range(16)]
    assert to_merge([*long, (256, 256)]) == long
    assert to_merge(long[1:]) == []


def test_one_watcher_owns_the_tables_and_a_batch_cannot_replace_them(tmp_path: Path) -> None:
    with watch.claimed(tmp_path):
        with pytest.raises(LocalClusterError, match="another zkrebalancer has locked"), watch.claimed(tmp_path):
            pass
        require_unwatched(tmp_path)
    (tmp_path / "commits").mkdir()
    with pytest.raises(ConfigurationError, match="tables of a batch"), watch.claimed(tmp_path):
        pass
    (tmp_path / "commits").rmdir()
    (tmp_path / "events").mkdir()
    with pytest.raises(ConfigurationError, match="tables of a batch"), watch.claimed(tmp_path):
        pass
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(ConfigurationError, match="of an earlier version"), watch.claimed(tmp_path):
        pass
    (tmp_path / "events").rmdir()
    with watch.claimed(tmp_path), pytest.raises(ConfigurationError, match="tables of a watcher"):
        require_unwatched(tmp_path)


def test_a_watcher_does_not_go_on_without_the_tables_that_it_has_made(tmp_path: Path) -> None:
    """In `claimed`, look at the checkpoint only: a copy without links would miss all that was read, without a word."""
    commits = tmp_path / "checkpoint" / "commits"
    commits.mkdir(parents=True)
    with watch.claimed(tmp_path):  # it was killed in its first micro-batch
        pass
    (commits / "0").touch()
    with pytest.raises(ConfigurationError, match="without its tables"), watch.claimed(tmp_path):
        pass
    (tmp_path / "store").mkdir()
    Commits(tmp_path).commit({"runs": {}})
    with watch.claimed(tmp_path):
        pass
    (tmp_path / "commits").rename(tmp_path / "gone")
    with pytest.raises(ConfigurationError, match="without its tables"), watch.claimed(tmp_path):
        pass


def test_a_watcher_that_has_found_no_line_yet_may_be_started_again(spark: SparkSession, tmp_path: Path) -> None:
    """In `update`, make no commit without a line: a watcher that began before the first event would be refused."""
    assert watch.update(spark, spark.createDataFrame([], STORED), tmp_path, 0) == (0, 0)
    (tmp_path / "checkpoint" / "commits" / "0").mkdir(parents=True)
    with watch.claimed(tmp_path):
        pass


def test_invalid_utf8_gives_the_same_lines_in_stream_and_batch(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(b"\xff\x00\r{\xe2\x82\n\r\n\ntwo\rparts\r\n")
    batch = ingest.parse(ingest.read_lines(spark, str(tmp_path / "in")))
    rejected = ingest.rejects(batch, ingest.blocks(batch)).orderBy("line").collect()
    found = [(row["line"], row["text"]) for row in rejected]
    reader = EventFileReader(tmp_path / "in")
    end = reader.latestOffset({}, ReadAllAvailable())
    assert found == [(row, text) for _file, row, text in lines_between(reader, {}, end)]
    assert found[0] == (1, "\ufffd\x00\r{\ufffd")
    assert len(found) == 4
