"""The event log: whole lines, common keys, safe for threads and for killed processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from zkrebalancer.observe.checker import check
from zkrebalancer.observe.events import FILE_BYTES_VARIABLE, EventLog, boot_of_this_host

ENDLESS_WRITER = """
import pathlib, sys
from zkrebalancer.observe.events import EventLog
log = EventLog(pathlib.Path(sys.argv[1]), "victim")
number = 0
while True:
    log.write("tick", number=number, padding="x" * 2000)
    if number == 100:
        log.flush(60)
        print("ready", flush=True)
    number += 1
"""

FORKING_WRITER = """
import os, pathlib, signal, sys, threading
from zkrebalancer.observe.events import EventLog
log = EventLog(pathlib.Path(sys.argv[1]), "forking")
log.write("before")
log.flush(60)
held, done = threading.Event(), threading.Event()
def hold():
    with log._writer._lock:
        held.set()
        done.wait()
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child:
    done.set()
    log.write("after")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(30)
log.write("lost")
log.flush()
"""


def read(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(directory.glob("*.jsonl")) for line in path.read_text().splitlines()]


def test_an_event_has_the_common_keys_and_its_own(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "agent")
    before_us = time.monotonic_ns() // 1_000
    log.write("committed", group="g", generation=7, cause_id="c", member="m", topic="ü", partition=0, offset=5)
    assert log.flush(10)
    (event,) = read(tmp_path)
    assert before_us <= event.pop("mono_us") <= time.monotonic_ns() // 1_000
    assert abs(event.pop("ts_us") - time.time_ns() // 1_000) < 60_000_000
    assert event == {
        "host": socket.gethostname(),
        "boot": boot_of_this_host(),
        "process": "agent",
        "kind": "committed",
        "group": "g",
        "generation": 7,
        "cause_id": "c",
        "member": "m",
        "topic": "ü",
        "partition": 0,
        "offset": 5,
    }
    (file,) = tmp_path.iterdir()
    assert file.name == f"agent-{os.getpid()}.jsonl"
    assert stat.filemode(file.stat().st_mode).startswith("-rw-")
    assert "x" not in stat.filemode(file.stat().st_mode)
    log.close()


def test_missing_common_keys_are_null_and_the_time_can_be_set(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "lab")
    log.write("fault", mono_us=42, name="kill", target="leader")
    log.close()
    (event,) = read(tmp_path)
    assert (event["mono_us"], event["group"], event["generation"], event["cause_id"]) == (42, None, None, None)


def test_events_are_readable_at_once_and_a_second_log_appends(tmp_path: Path) -> None:
    first, second = EventLog(tmp_path, "p"), EventLog(tmp_path, "p")
    first.write("one")
    assert first.flush(10)
    second.write("two")
    assert second.flush(10)
    first.write("three")
    assert first.flush(10)
    assert [event["kind"] for event in read(tmp_path)] == ["one", "two", "three"]
    first.close()
    second.close()


def test_a_process_of_the_same_id_continues_no_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's processes all have the id 1. The checker would find a line that is not JSON."""
    monkeypatch.setenv(FILE_BYTES_VARIABLE, "1")
    begun = tmp_path / f"p-{os.getpid()}.jsonl"
    begun.write_text('{"mono_us": 1, "kind": "one"}\n{"mono_us": 2, "ki')
    log = EventLog(tmp_path, "p")
    for kind in ("two", "three"):
        log.write(kind)
        assert log.flush(10)
    log.close()
    assert check(tmp_path).problems == ()
    further = [tmp_path / f"p-{os.getpid()}.000{number}.jsonl" for number in (1, 2)]
    assert [json.loads(file.read_text())["kind"] for file in further] == ["two", "three"]
    assert len(list(tmp_path.iterdir())) == 3


def test_without_a_directory_events_are_dropped() -> None:
    log = EventLog(None, "p")
    log.write("tick")
    log.close()


def test_after_close_events_are_dropped_and_close_is_idempotent(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "p")
    log.close()
    log.write("tick")
    log.close()
    assert read(tmp_path) == []


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        EventLog(tmp_path / "missing", "p")


def test_lines_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "p")

    def write(thread: int) -> None:
        for number in range(200):
            log.write("tick", thread=thread, number=number, padding="x" * 5_000)

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    events = read(tmp_path)
    for thread_number in range(4):
        assert [e["number"] for e in events if e["thread"] == thread_number] == list(range(200))


def test_a_killed_process_loses_at_most_a_torn_last_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDLESS_WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "ready\n"
        victim.send_signal(signal.SIGKILL)
        assert victim.wait(timeout=30) == -signal.SIGKILL
    (path,) = tmp_path.glob("victim-*.jsonl")
    *complete, _torn = path.read_bytes().split(b"\n")
    assert [json.loads(line)["number"] for line in complete] == list(range(len(complete)))
    assert len(complete) > 100


def test_a_forked_process_writes_nothing_and_ends(tmp_path: Path) -> None:
    """It has no writing thread, and another thread of its parent may have held the lock."""
    forked = subprocess.run([sys.executable, "-c", FORKING_WRITER, str(tmp_path)], check=False, timeout=120)
    assert forked.returncode == 0
    assert [event["kind"] for event in read(tmp_path)] == ["before", "after"]
