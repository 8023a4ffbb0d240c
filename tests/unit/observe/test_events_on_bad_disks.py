"""The event log when files cannot be written, or only slowly: nothing waits, nothing ends, losses are counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from zkrebalancer.observe import events
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol.errors import ConfigurationError

FULL = OSError(28, os.strerror(28))


class Disk:
    """Stands before what appends to files: refuses, or waits, as long as a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.is_free = threading.Event()
        self.is_free.set()
        append = events._Files.append

        def append_or_not(files: events._Files, content: bytes) -> None:
            self.is_free.wait()
            if self.is_full:
                raise FULL
            append(files, content)

        monkeypatch.setattr(events._Files, "append", append_or_not)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def read(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(directory.glob("*.jsonl")) for line in path.read_text().splitlines()]


def kinds(directory: Path) -> list[str]:
    return [event["kind"] for event in read(directory)]


def writer_of(log: EventLog) -> events._Writer:
    assert log._writer is not None
    return log._writer


def test_after_an_error_telemetry_goes_on_and_says_once_what_is_missing(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    log = EventLog(tmp_path, "p")

    def write(kind: str) -> None:
        log.write(kind)
        assert log.flush(60)

    write("before")
    disk.is_full = True
    for _ in range(3):
        write("lost")
    pauses = []
    for _ in range(10):  # each try that fails makes the next pause longer, up to a limit
        began_s, now_s = now_s, writer_of(log)._retry_at_s
        write("lost")
        pauses.append(now_s - began_s)
    assert pauses == [min(events.MIN_PAUSE_S * 2**number, events.MAX_PAUSE_S) for number in range(10)]
    disk.is_full = False
    write("lost")  # too early
    now_s += events.MAX_PAUSE_S
    write("after")
    write("later")
    log.close()
    assert kinds(tmp_path) == ["before", "events_dropped", "after", "later"]
    assert read(tmp_path)[1]["dropped_count"] == 14
    full, again = caplog.messages
    assert full == "telemetry: [Errno 28] No space left on device; events are dropped until files can be written again"
    assert again.endswith("14 events before it were dropped")


def test_a_torn_line_ends_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MIN_PAUSE_S", 0.0)
    monkeypatch.setattr(events, "MAX_PAUSE_S", 0.0)
    log = EventLog(tmp_path, "p")
    log.write("before")
    assert log.flush(10)
    write, answers = os.write, iter([4, None])

    def write_a_part(descriptor: int, content: bytes) -> int:
        answer = next(answers, len(content))
        if answer is None:
            raise FULL
        return write(descriptor, content[:answer])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write_a_part)
        log.write("torn")
        assert log.flush(10)
    log.write("after")
    log.close()
    first, second = tmp_path / f"p-{os.getpid()}.jsonl", tmp_path / f"p-{os.getpid()}.0001.jsonl"
    assert first.read_bytes().split(b"\n")[1] == b'{"ts'
    assert [json.loads(line)["kind"] for line in second.read_text().splitlines()] == ["events_dropped", "after"]


def test_nobody_waits_for_a_disk_that_hangs_but_for_a_moment_once(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog(tmp_path, "p")
    disk.is_free.clear()
    log.write("one")
    assert not log.flush(0.01)
    for _ in range(100):
        log.write("two")
        assert not log.flush(3_600)  # it is known to be late
    assert [message.partition(":")[0] for message in caplog.messages] == ["telemetry is late"]
    disk.is_free.set()
    deadline_s = time.monotonic() + 10
    while not log.flush() and time.monotonic() < deadline_s:
        pass
    log.write("three")
    assert log.flush(60), "it has caught up: it is waited for again"
    log.close()
    assert kinds(tmp_path) == ["one", *["two"] * 100, "three"]


def test_what_waits_is_bounded_and_what_is_too_much_is_counted(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_WAITING_BYTES", 10_000)
    log = EventLog(tmp_path, "p")
    disk.is_free.clear()
    for _ in range(1_000):
        log.write("tick")
    writer = writer_of(log)
    assert 5_000 < writer._waiting_bytes <= 10_000
    disk.is_free.set()
    assert writer.flush(60)
    assert writer._waiting_bytes == 0
    log.write("end")
    log.close()
    dropped = sum(event["dropped_count"] for event in read(tmp_path) if event["kind"] == "events_dropped")
    assert dropped > 500
    assert kinds(tmp_path).count("tick") + dropped == 1_000
    assert kinds(tmp_path)[-1] == "end"


def test_what_is_dropped_while_a_gap_is_being_written_is_counted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `_Writer._say_dropped`, set the count to 0; or do not write a last gap in `_write`."""
    monkeypatch.setattr(events, "MAX_WAITING_BYTES", 10_000)
    append, rounds = events._Files.append, iter(range(3))

    def append_meanwhile(files: events._Files, content: bytes) -> None:
        if next(rounds, None) is not None:
            for _ in range(100):
                log.write("tick")
        append(files, content)

    monkeypatch.setattr(events._Files, "append", append_meanwhile)
    log = EventLog(tmp_path, "p")
    log.write("tick")
    for _ in range(3):
        assert log.flush(60)
    log.close()
    gaps = [event["dropped_count"] for event in read(tmp_path) if event["kind"] == "events_dropped"]
    assert len(gaps) == 3
    assert kinds(tmp_path).count("tick") + sum(gaps) == 301


def test_at_the_end_it_is_tried_once_more_to_say_what_is_missing(tmp_path: Path, disk: Disk) -> None:
    log = EventLog(tmp_path, "p")
    disk.is_full = True
    log.write("lost")
    assert log.flush(60)
    disk.is_full = False
    log.write("lost")  # too early
    assert log.flush(60)
    log.close()
    assert [(event["kind"], event["dropped_count"]) for event in read(tmp_path)] == [("events_dropped", 2)]


def test_a_disk_that_stays_full_costs_no_file_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try to write opened a file of its own, and deleted the oldest one."""
    monkeypatch.setattr(events, "MIN_PAUSE_S", 0.0)
    monkeypatch.setattr(events, "MAX_PAUSE_S", 0.0)
    monkeypatch.setenv(events.FILES_VARIABLE, "3")

    def refuse(_descriptor: int, _content: bytes) -> int:
        raise FULL

    log = EventLog(tmp_path, "p")
    log.write("before")
    assert log.flush(10)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        for _ in range(10):
            log.write("lost")
            assert log.flush(10)
    log.write("after")
    log.close()
    assert sorted(kinds(tmp_path)) == ["after", "before", "events_dropped"]


def test_a_file_that_is_there_already_counts_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_Files._open`, begin with a size of 0."""
    monkeypatch.setenv(events.FILE_BYTES_VARIABLE, "1000")
    there = tmp_path / f"p-{os.getpid()}.jsonl"
    there.write_text(json.dumps({"kind": "x" * 950}) + "\n")
    log = EventLog(tmp_path, "p")
    log.write("tick")
    log.close()
    assert there.stat().st_size < 1_000
    assert sorted(path.name for path in tmp_path.iterdir()) == [there.with_suffix(".0001.jsonl").name, there.name]


def test_files_are_bounded_in_size_and_number_and_the_last_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(events.FILE_BYTES_VARIABLE, "1000")
    monkeypatch.setenv(events.FILES_VARIABLE, "3")
    log = EventLog(tmp_path, "p")
    for number in range(100):
        log.write("tick", number=number)
        assert log.flush(10)
    log.close()
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 3
    assert all(path.suffix == ".jsonl" and path.stat().st_size <= 1_000 for path in paths)
    numbers = [event["number"] for event in read(tmp_path)]
    assert numbers == list(range(numbers[0], 100))
    assert len(numbers) > 9


@pytest.mark.parametrize("variable", [events.FILE_BYTES_VARIABLE, events.FILES_VARIABLE])
def test_a_limit_that_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "many")
    with pytest.raises(ConfigurationError, match=f"{variable}=many: must be an integer from 1"):
        EventLog(tmp_path, "p")


def test_a_signals_handler_may_write_while_its_thread_writes(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "p")
    with writer_of(log)._lock:  # as if the signal came now
        log.write("from the handler")
    log.close()
    assert kinds(tmp_path) == ["from the handler"]


def test_what_is_waiting_is_written_when_the_process_ends(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from zkrebalancer.observe.events import EventLog; "
        "EventLog(pathlib.Path(sys.argv[1]), 'p').write('last')"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    assert kinds(tmp_path) == ["last"]


def test_a_process_of_the_same_id_uses_no_file_name_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_Files._open`, count from 0: a watcher ends at a file that became shorter, and the newest events are deleted.

    In containers, most processes have the id 1, and are started again with the same name.
    """
    monkeypatch.setenv(events.FILE_BYTES_VARIABLE, "1000")
    monkeypatch.setenv(events.FILES_VARIABLE, "3")
    written = list[int]()
    for life in range(3):
        before = {path: path.stat().st_size for path in tmp_path.iterdir()}
        log = EventLog(tmp_path, "p")
        for number in range(100 * life, 100 * life + 30):
            log.write("tick", number=number)
            assert log.flush(10)
            written.append(number)
        log.close()
        assert len(list(tmp_path.iterdir())) == 3
        assert all(path.stat().st_size >= size for path, size in before.items() if path.exists())
        kept = [event["number"] for event in read(tmp_path)]
        assert kept == written[-len(kept) :]


def test_a_log_whose_file_another_one_has_deleted_writes_to_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `_Files._has_room`, look only at the size: events of a quiet consumer beside a busy one are lost."""
    monkeypatch.setenv(events.FILE_BYTES_VARIABLE, "1000")
    monkeypatch.setenv(events.FILES_VARIABLE, "3")
    busy, quiet = EventLog(tmp_path, "p"), EventLog(tmp_path, "p")
    quiet.write("early")
    assert quiet.flush(10)
    for _ in range(30):
        busy.write("tick", padding="x" * 400)  # which leaves room in each file for what the quiet one writes
        assert busy.flush(10)
    assert "early" not in kinds(tmp_path)
    quiet.write("late")
    quiet.close()
    busy.close()
    assert kinds(tmp_path).count("late") == 1
    assert len(list(tmp_path.iterdir())) == 3


def test_a_disk_that_counts_no_links_of_open_files_gets_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_Files._has_room`, ask for `st_nlink`: some file systems say 0, and the file would be opened for ever."""
    fstat = os.fstat
    monkeypatch.setattr(os, "fstat", lambda file: os.stat_result([*fstat(file)[:3], 0, *fstat(file)[4:]]))
    log = EventLog(tmp_path, "p")
    log.write("here")
    assert log.flush(10)
    log.close()
    assert kinds(tmp_path) == ["here"]
