"""Runs tasks in forks of this process; no fork affects the next one, however it ends."""

from __future__ import annotations

import gc
import os
import resource
import selectors
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, TypeVar

MAX_MEMORY_BYTES = 8 << 30  # of addresses
MAX_FILE_BYTES = 4 << 30
CHUNK_BYTES = 1 << 16
ENDED_BY_TIMER = frozenset({signal.SIGALRM, signal.SIGPROF})

Task = TypeVar("Task")
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of the fork of task `number`: its output, the signal that ended it or 0, processor time."""

    number: int
    told: str
    ended_by: int
    seconds: float


@dataclass(slots=True)
class _Fork:
    number: int
    pid: int
    told: bytes = b""


def in_forks(tasks: Sequence[Task], work: Callable[[Task, Tell], None], at_once: int) -> Iterator[Ended]:
    """Run `work(task, tell)` for each task in a fork; yield the outputs as they end.

    Closing the iterator ends running forks.
    """
    gc.collect()
    gc.freeze()  # otherwise the first collection in each fork copies all pages
    waiting = list(enumerate(tasks))[::-1]
    running: dict[int, _Fork] = {}
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    number, task = waiting.pop()
                    source, fork = _begin(number, task, work)
                    running[source] = fork
                    selector.register(source, selectors.EVENT_READ)
                for key, _events in selector.select():
                    fork = running[key.fd]
                    chunk = os.read(key.fd, CHUNK_BYTES)
                    fork.told += chunk
                    if not chunk:
                        selector.unregister(key.fd)
                        del running[key.fd]
                        yield _end(key.fd, fork)
        finally:
            for source, fork in running.items():
                _end(source, fork)


def _begin(number: int, task: Task, work: Callable[[Task, Tell], None]) -> tuple[int, _Fork]:
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(source)
        _run(task, work, sink)
    os.close(sink)
    return source, _Fork(number, pid)


def _run(task: Task, work: Callable[[Task, Tell], None], sink: int) -> NoReturn:
    """Run in the fork: silent, in a separate process group, so that its children end with it."""
    status = 1
    try:
        os.setsid()
        silence = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(silence, descriptor)
        for number in ENDED_BY_TIMER:
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
        work(task, lambda text: _write(sink, text.encode()))
        status = 0
    finally:
        os._exit(status)


def limit_time(processor_s: float, wall_s: float) -> None:
    """End this fork by a signal after so much more processor time, or so much time."""
    signal.setitimer(signal.ITIMER_PROF, processor_s)
    signal.setitimer(signal.ITIMER_REAL, wall_s)


def _write(sink: int, data: bytes) -> None:
    while data:
        data = data[os.write(sink, data) :]


def _end(source: int, fork: _Fork) -> Ended:
    with suppress(ProcessLookupError):  # it had not reached `setsid`, or nothing is left
        os.killpg(fork.pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(fork.pid, signal.SIGKILL)
    os.close(source)
    _pid, status, used = os.wait4(fork.pid, 0)
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return Ended(fork.number, fork.told.decode(errors="replace"), ended_by, used.ru_utime + used.ru_stime)
