"""Pieces of files contain every line once, wherever they are cut."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from zkrebalancer.observe.reading import NoEventsError
from zkrebalancer.pipeline import local_files
from zkrebalancer.pipeline.local_files import (
    EventFile,
    Piece,
    ReadAhead,
    Source,
    chunks,
    divided,
    event_files,
    run_of,
)

DEADLINE_S = 60.0
MANY = 10_000  # chunks


@pytest.mark.parametrize("seed", range(20))
def test_pieces_have_every_line_once(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `chunks`, seek to the begin of a piece and not one byte before it."""
    chance = random.Random(seed)
    monkeypatch.setattr(local_files, "MIN_TASK_BYTES", chance.randint(1, 9))
    files, expected = [], []
    for number in range(3):
        lines = [b"x" * chance.choice([0, 1, 2, 3, 20]) + b"\n" for _ in range(chance.randint(0, 20))]
        content = b"".join(lines) + chance.choice([b"", b"torn"])
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(content)
        files.append(EventFile(str(path), ".", path.name, len(content)))
        expected.append(content)
    cores = chance.randint(1, 20)
    tasks = divided(files, cores)
    pieces = [piece for task in tasks for piece in task]
    size = chance.randint(1, 30)
    assert [b"".join(b"".join(chunks(p, size)) for p in pieces if p.file == file) for file in files] == expected
    sizes = [sum(piece.end - piece.begin for piece in task) for task in tasks]
    assert len(set(sizes[:-1])) <= 1
    assert len(tasks) <= cores
    assert all(lines.endswith((b"\n", b"torn")) for p in pieces for lines in chunks(p, size))


def test_a_file_that_has_become_shorter_ends_its_piece(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n")
    assert list(chunks(Piece(EventFile(str(tmp_path / "a"), ".", "a", 9), 0, 9))) == [b"1\n"]


def test_files_are_named_like_sparks(tmp_path: Path) -> None:
    for name in ("a.jsonl", "events/b.jsonl", "x/events/c d.jsonl", "x/y/e.jsonl", "_x/f.jsonl", ".g.jsonl", "h.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [(file.run, file.name, file.size) for file in event_files(Source(str(tmp_path), "p/"))]
    assert found == [
        ("p/.", "p/a.jsonl", 1),
        ("p/.", "p/events/b.jsonl", 1),
        ("p/x", "p/x/events/c d.jsonl", 1),
        ("p/x/y", "p/x/y/e.jsonl", 1),
    ]
    assert run_of("a=b/c/events/events/d.jsonl") == "a=b/c/events"


def test_a_folder_may_consist_of_links_but_not_of_hidden_files(tmp_path: Path) -> None:
    """In `event_files`, do not follow links, or require that a file is still there."""
    for name in ("links", "hidden", "x"):
        (tmp_path / name).mkdir()
    (tmp_path / "x" / "a.jsonl").write_text("x")
    (tmp_path / "links" / "y").symlink_to(tmp_path / "x")
    (tmp_path / "links" / "gone.jsonl").symlink_to(tmp_path / "gone.jsonl")
    (tmp_path / "hidden" / ".a.jsonl").write_text("x")
    assert [file.name for file in event_files(Source(str(tmp_path / "links")))] == ["y/a.jsonl"]
    for folder in ("hidden", "none"):
        with pytest.raises(NoEventsError, match=f"{folder} contains no event file"):
            event_files(Source(str(tmp_path / folder)))


LINE = b'{"kind": "fault", "mono_us": 1, "name": "kill", "target": "a"}\n'


def lines(folder: Path, count: int) -> list[EventFile]:
    (folder / "in").mkdir()
    (folder / "in" / "0.jsonl").write_bytes(LINE * count)
    return event_files(Source(str(folder / "in")))


def test_threads_do_the_first_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave tasks to Spark that threads have begun, or a task to nobody."""
    monkeypatch.setattr(local_files, "MIN_TASK_BYTES", 10 * len(LINE))
    monkeypatch.setattr(local_files, "AHEAD_BYTES", 35 * len(LINE))
    monkeypatch.setattr(local_files, "MAX_TASK_BYTES", 10 * len(LINE))
    with ReadAhead(lines(tmp_path, 95), tmp_path / "out" / "events", cores=2) as ahead:
        written = ahead.written()
        assert [kind for kind, _path in written] == ["fault"] * 3
        rows = [row for _kind, path in written for row in pq.read_table(path).select(["block", "row"]).to_pylist()]
        (left,) = {(task[0].begin, len(ahead.left)) for task in ahead.left[:1]}
    assert sorted((row["block"], row["row"]) for row in rows) == [
        (block * 10 * len(LINE), row) for block in range(3) for row in range(10)
    ]
    assert left == (30 * len(LINE), 7)
    assert list((tmp_path / "out").iterdir()) == []


def test_threads_that_nobody_waits_for_end_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let them go on to the last chunk, or leave their files."""
    read = threading.Event()
    chunks_read: list[bytes] = []

    def endless(_piece: Piece) -> Iterator[bytes]:
        while len(chunks_read) < MANY:
            chunks_read.append(LINE)
            yield LINE
            read.set()

    monkeypatch.setattr(local_files, "chunks", endless)
    with ReadAhead(lines(tmp_path, 1), tmp_path / "out" / "events", cores=1):
        assert read.wait(DEADLINE_S)
    assert len(chunks_read) < MANY
    assert list((tmp_path / "out").iterdir()) == []


def test_what_a_thread_cannot_read_is_told(tmp_path: Path) -> None:
    files = lines(tmp_path, 1)
    (tmp_path / "in" / "0.jsonl").unlink()
    with (
        ReadAhead(files, tmp_path / "out" / "events", cores=1) as ahead,
        pytest.raises(FileNotFoundError, match=r"0\.jsonl"),
    ):
        ahead.written()
    assert list((tmp_path / "out").iterdir()) == []
