"""Following event files that grow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from zkrebalancer.experiments import tail as tail_module
from zkrebalancer.experiments.tail import EventTail


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def line(mono_us: int) -> str:
    return json.dumps({"mono_us": mono_us, "kind": "k"}) + "\n"


def moments(tail: EventTail) -> list[int]:
    return [event["mono_us"] for event in tail.read()]


def test_each_event_is_read_once_in_order_across_files(tmp_path: Path) -> None:
    tail = EventTail(tmp_path)
    append(tmp_path / "a.jsonl", line(3) + line(5))
    append(tmp_path / "b.jsonl", line(4))
    assert moments(tail) == [3, 4, 5]
    append(tmp_path / "b.jsonl", line(6))
    append(tmp_path / "c.jsonl", line(7))
    assert moments(tail) == [6, 7]
    assert moments(tail) == []


def test_a_torn_line_waits_for_its_rest(tmp_path: Path) -> None:
    tail = EventTail(tmp_path)
    append(tmp_path / "a.jsonl", line(1) + line(2)[:8])
    assert moments(tail) == [1]
    append(tmp_path / "a.jsonl", line(2)[8:])
    assert moments(tail) == [2]


def test_what_was_there_is_skipped_up_to_a_torn_line_of_any_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `EventTail.skip`, look at the last block only."""
    monkeypatch.setattr(tail_module, "BLOCK", 3)
    tail = EventTail(tmp_path)
    append(tmp_path / "a.jsonl", line(1) + line(2)[:-8])
    tail.skip()
    append(tmp_path / "a.jsonl", line(2)[-8:])
    assert moments(tail) == [2]


def test_other_files_are_ignored(tmp_path: Path) -> None:
    append(tmp_path / "notes.txt", "no event\n")
    assert moments(EventTail(tmp_path)) == []


def test_a_line_cut_by_a_full_disk_is_left_out(tmp_path: Path) -> None:
    append(tmp_path / "a.jsonl", line(1)[:8] + line(2) + line(3))
    assert moments(EventTail(tmp_path)) == [3]


def test_what_is_too_long_for_a_line_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `EventTail.read`, wait for its end: gigabytes of zeros are read again twice a second."""
    monkeypatch.setattr(tail_module, "MAX_READ_BYTES", 100)
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\0" * 250)
    tail = EventTail(tmp_path)
    for _ in range(3):
        assert tail.read() == []
    assert tail._offsets[file] == 200
    with file.open("ab") as more:
        more.write(b'\n{"mono_us":1,"kind":"x"}\n')
    assert [event["mono_us"] for event in tail.read()] == [1]


def test_a_file_that_a_process_deletes_as_its_oldest_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `EventTail.read` or `skip`, open what was listed, whatever has become of it."""
    tail, list_files = EventTail(tmp_path), Path.glob

    def deleted_then(folder: Path, pattern: str) -> Iterator[Path]:
        found = sorted(list_files(folder, pattern))
        found[0].unlink()
        return iter(found)

    for number in range(4):
        append(tmp_path / f"{number}.jsonl", line(number))
    monkeypatch.setattr(Path, "glob", deleted_then)
    assert moments(tail) == [1, 2, 3]
    tail.skip()
    append(tmp_path / "3.jsonl", line(5))
    assert moments(tail) == [5]
