"""Telemetry: JSON lines, appended to files of one process (`docs/reference/events.md`), by one thread.

A slow disk delays nothing: `write` only queues a line, and `flush` waits briefly for the thread. After an error,
opening a file is retried at growing intervals; events dropped meanwhile are counted and reported once.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gevent import monkey

from zkrebalancer.protocol.numbers import number_setting
from zkrebalancer.runtime import logs

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]

FILE_BYTES_VARIABLE = "ZKREBALANCER_EVENTS_FILE_BYTES"
FILES_VARIABLE = "ZKREBALANCER_EVENTS_FILES"
BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")
BOOT_DIGITS = 8
MAX_FILE_BYTES = 256 * 1024 * 1024  # then the next file begins
MAX_FILES = 16  # of one process; the oldest is deleted
MAX_WAITING_BYTES = 32 * 1024 * 1024  # of lines; more are dropped
MAX_BATCH_BYTES = 1024 * 1024  # written at once
FLUSH_LIMIT_S = 0.1
CLOSE_LIMIT_S = 5.0
MIN_PAUSE_S = 1.0  # after an error; doubles up to MAX_PAUSE_S
MAX_PAUSE_S = 60.0

_log = logs.named(__name__)
# Of the operating system, also in a program whose threads gevent has patched.
_start_thread = monkey.get_original("_thread", "start_new_thread")
_new_lock = monkey.get_original("_thread", "allocate_lock")
_new_reentrant_lock = monkey.get_original("_thread", "RLock")
_new_queue = monkey.get_original("queue", "SimpleQueue")


def boot_of_this_host() -> str | None:
    """Return what names this boot, whose processes share a monotonic clock, containers included; None: unknown."""
    try:
        return BOOT_FILE.read_text(encoding="ascii").strip()[:BOOT_DIGITS] or None
    except (OSError, ValueError):
        return None


class EventLog:
    """Appends events to `<directory>/<process>-<pid>.jsonl` and its successors; safe for threads and greenlets.

    A killed process loses what it has not flushed, and may leave a torn last line.
    """

    def __init__(self, directory: Path | None, process: str) -> None:
        """Open the first file in `directory`; None drops every event.

        Raises:
            OSError: the directory does not exist or is read-only.
            ConfigurationError: a variable of the environment is no number.

        """
        self._host, self._boot = socket.gethostname(), boot_of_this_host()
        self._process = process
        self._writer: _Writer | None = None
        if directory is not None:
            self._writer = _Writer(_Files(directory, f"{process}-{os.getpid()}"), self._gap)
            _written.add(self)
            atexit.register(self.close)

    def write(
        self,
        kind: str,
        *,
        group: str | None = None,
        generation: int | None = None,
        cause_id: str | None = None,
        mono_us: int | None = None,
        **fields: JsonValue,
    ) -> None:
        """Queue one event; `mono_us` (microseconds of CLOCK_MONOTONIC) defaults to now. Never waits, never raises."""
        writer = self._writer  # another thread may close the log meanwhile
        if writer is None:
            return
        writer.put(self._line(kind, group, generation, cause_id, mono_us, fields))

    def _line(
        self,
        kind: str,
        group: str | None,
        generation: int | None,
        cause_id: str | None,
        mono_us: int | None,
        fields: Mapping[str, JsonValue],
    ) -> bytes:
        event = {
            "ts_us": time.time_ns() // 1_000,
            "mono_us": time.monotonic_ns() // 1_000 if mono_us is None else mono_us,
            "host": self._host,
            "boot": self._boot,
            "process": self._process,
            "kind": kind,
            "group": group,
            "generation": generation,
            "cause_id": cause_id,
            **fields,
        }
        return json.dumps(event, separators=(",", ":")).encode() + b"\n"

    def _gap(self, count: int) -> bytes:
        return self._line("events_dropped", None, None, None, None, {"dropped_count": count})

    def flush(self, limit_s: float = FLUSH_LIMIT_S) -> bool:
        """Wait until what this thread has written is in its file; return whether it is, or was dropped.

        After a timeout, it does not wait again until the writer has caught up.
        """
        return self._writer is None or self._writer.flush(limit_s)

    def close(self) -> None:
        """Write the queued lines, for at most CLOSE_LIMIT_S, and close the file; further events are dropped."""
        writer, self._writer = self._writer, None
        if writer is not None:
            _written.discard(self)
            atexit.unregister(self.close)
            writer.close()

    def give_up(self) -> None:
        """Drop further events, without the lock: a forked process has no writing thread, and its lock may be held."""
        self._writer = None


_written: set[EventLog] = set()  # by a thread of this process


def _give_up_all() -> None:
    for log in _written:
        log.give_up()
    _written.clear()


os.register_at_fork(after_in_child=_give_up_all)


class _Files:
    """The files of one process, one after the other.

    A process of the same name and id, such as a container's former one, may have left some, and another log of this
    process may be writing to the last one: so the folder shows the existing ones, and no number is used again.
    """

    def __init__(self, directory: Path, stem: str) -> None:
        number = os.environ.get
        self._max_bytes = number_setting(FILE_BYTES_VARIABLE, number(FILE_BYTES_VARIABLE), MAX_FILE_BYTES, 1)
        self._max_files = number_setting(FILES_VARIABLE, number(FILES_VARIABLE), MAX_FILES, 1)
        self._directory, self._stem = directory, stem
        self._number = 0
        self._descriptor: int | None = None
        self._size = 0
        self._open()

    @property
    def current(self) -> Path:
        """The file that was opened last."""
        return self._path(self._number)

    def append(self, content: bytes) -> None:
        """Append whole lines; raises OSError, after which the next file begins: this one may end in a torn line."""
        try:
            while self._descriptor is None or not self._has_room(self._descriptor, len(content)):
                self.close()
                self._open()
            rest = memoryview(content)
            while rest:
                written = os.write(self._descriptor, rest)
                self._size += written
                rest = rest[written:]
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _has_room(self, descriptor: int, size: int) -> bool:
        """Whether the open file may get so many bytes; no, if another log has deleted it as the oldest one."""
        self._size = os.fstat(descriptor).st_size  # another log may append, too
        return self.current.exists() and (not self._size or self._size + size <= self._max_bytes)

    def _open(self) -> None:
        """Open the last file that is there, or the next one; delete the oldest ones."""
        there = self._numbers()
        is_next = self._size > 0  # an empty file left by an error is used again
        number = max([self._number + is_next, *there])
        if _is_torn(self._path(number)):
            number += 1
        self._descriptor = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._number, self._size = number, os.fstat(self._descriptor).st_size
        for old in sorted({*there, number})[: -self._max_files]:
            with suppress(OSError):  # one that stays keeps no event back
                self._path(old).unlink()

    def _numbers(self) -> list[int]:
        name = re.compile(re.escape(self._stem) + r"(?:\.(\d{4,}))?\.jsonl")
        found = [name.fullmatch(path.name) for path in self._directory.iterdir()]
        return [int(match[1] or 0) for match in found if match]

    def _path(self, number: int) -> Path:
        return self._directory / (f"{self._stem}.{number:04d}.jsonl" if number else f"{self._stem}.jsonl")


def _is_torn(path: Path) -> bool:
    """Whether a process of the same id was killed while it wrote this file: in containers, most have the id 1."""
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"
    except OSError:  # it does not exist, or is empty
        return False


class _Writer:
    """The thread that writes, and the queue before it."""

    def __init__(self, files: _Files, gap: Callable[[int], bytes]) -> None:
        """`gap` makes the line that says how many events are missing before it."""
        self._files, self._gap = files, gap
        self._lock = _new_reentrant_lock()  # held briefly, never while writing; a signal handler may write events
        self._queue = _new_queue()  # of (number, line), (number, lock to release), or (number, None) for the end
        self._waiting_bytes = 0
        self._last = 0  # number of the last line that was queued
        self._done = 0  # of the last one that was written or dropped
        self._late_until = 0  # the line that a flush gave up waiting for
        self._dropped = 0  # events, since the last report of them
        self._pause_s = 0.0  # after an error: since then every try to open a file has failed
        self._retry_at_s = 0.0
        self._ended = _new_lock()  # released when all is written, or dropped
        self._ended.acquire()
        _start_thread(self._run, ())

    def put(self, line: bytes) -> None:
        with self._lock:
            if self._waiting_bytes + len(line) > MAX_WAITING_BYTES:
                self._dropped += 1
                return
            self._waiting_bytes += len(line)
            self._last += 1
            self._queue.put((self._last, line))

    def flush(self, limit_s: float) -> bool:
        with self._lock:
            wanted = self._last
            if self._done >= wanted:
                return True
            if self._done < self._late_until:
                return False
            released = _new_lock()
            released.acquire()
            self._queue.put((wanted, released))
        if released.acquire(timeout=limit_s):
            return True
        self._late_until = wanted
        _log.warning("telemetry is late: %s is slow; flushes do not wait until it has caught up", self._files.current)
        return False

    def close(self) -> None:
        with self._lock:
            self._queue.put((self._last, None))
            is_all_written = self._done >= self._last and not self._dropped
        if not is_all_written and not self._ended.acquire(timeout=CLOSE_LIMIT_S):
            _log.warning("telemetry is late: %s is slow; unwritten events are lost", self._files.current)

    # In the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_end = False
        while not is_end:
            lines: list[bytes] = []
            number, size, flushed = self._done, 0, None
            while (
                flushed is None and not is_end and (not lines or (size < MAX_BATCH_BYTES and not self._queue.empty()))
            ):
                number, content = self._queue.get()
                if content is None:
                    is_end = True
                elif isinstance(content, bytes):
                    lines.append(content)
                    size += len(content)
                else:
                    flushed = content
            self._write(lines, is_end=is_end)
            with self._lock:
                self._waiting_bytes -= size
                self._done = number
            if flushed is not None:
                flushed.release()
        self._files.close()
        self._ended.release()

    def _write(self, lines: list[bytes], *, is_end: bool) -> None:
        """Write lines, or drop them if it is too early to retry after an error; the last call always tries."""
        with self._lock:
            dropped = self._dropped
        if not lines and not (is_end and dropped):
            return
        if is_end or not self._pause_s or time.monotonic() >= self._retry_at_s:
            try:
                self._files.append(b"".join([self._gap(dropped), *lines] if dropped else lines))
            except OSError as error:
                self._begin_pause(error)
            else:
                self._pause_s = 0.0
                self._say_dropped(dropped)
                return
        with self._lock:
            self._dropped += len(lines)

    def _begin_pause(self, error: OSError) -> None:
        if not self._pause_s:
            _log.warning("telemetry: %s; events are dropped until files can be written again", error)
        self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s or MIN_PAUSE_S)
        self._retry_at_s = time.monotonic() + self._pause_s

    def _say_dropped(self, count: int) -> None:
        if count:
            _log.warning("telemetry is written to %s; %d events before it were dropped", self._files.current, count)
            with self._lock:
                self._dropped -= count
