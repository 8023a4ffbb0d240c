"""The coordinator's side of the process that reads lag (`load_process.py`): one request after another, by pipes."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

import gevent
import msgpack
from gevent import subprocess
from gevent.queue import SimpleQueue

from zkrebalancer.assignment.loads import unpack
from zkrebalancer.assignment.model import Racks
from zkrebalancer.rebalance.effects import LoadsRead, ReadLoads

READ_TIMEOUT_S = 120.0  # for one group; a process that takes longer is replaced
COMMAND = (sys.executable, "-m", "zkrebalancer.coordinator.load_process")
LENGTH = struct.Struct(">I")  # before each frame


class LoadReader:
    """Performs `ReadLoads`; each gets an answer."""

    def __init__(self, zookeeper: str, kafka: Mapping[str, str], take: Callable[[LoadsRead], None]) -> None:
        """Start no process before the first request; `kafka` has librdkafka's settings, including the brokers."""
        # Sent in each request, because settings may be passwords, and other users can see a process's arguments.
        self._servers = {"zookeeper": zookeeper, "kafka": dict(kafka)}
        self._take = take
        self._waiting: SimpleQueue[ReadLoads] = SimpleQueue()  # at most one of each group
        self._process: subprocess.Popen[bytes] | None = None
        self._worker = gevent.spawn(self._work)

    def read(self, effect: ReadLoads) -> None:
        """Queue the reading of a group's loads."""
        self._waiting.put(effect)

    def close(self) -> None:
        """End the process."""
        self._worker.kill()
        self._end_process()

    def _work(self) -> None:
        while True:
            effect = self._waiting.get()
            try:
                with gevent.Timeout(READ_TIMEOUT_S):
                    answer = self._ask({**self._servers, "group": effect.group, "topics": dict(effect.topics)})
            except gevent.Timeout:
                answer = {"error": f"not read within {READ_TIMEOUT_S:g} s"}
                self._end_process()
            except (OSError, EOFError):
                answer = {"error": "the process that reads them has ended"}
                self._end_process()
            self._take(loads_read(effect.group, answer))

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        content = msgpack.packb(request)
        requests, answers = _pipes(self._process)
        requests.write(LENGTH.pack(len(content)) + content)
        requests.flush()
        (size,) = LENGTH.unpack(_read(answers, LENGTH.size))
        answer: dict[str, Any] = msgpack.unpackb(_read(answers, size))
        return answer

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in _pipes(process):
                pipe.close()


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise AssertionError("both are asked for")
    return process.stdin, process.stdout


def _read(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return content


def loads_read(group: str, answer: dict[str, Any]) -> LoadsRead:
    """Return the process's answer about a group as an event."""
    if "error" in answer:
        return LoadsRead(group, 0, {}, {}, answer["error"])
    ends, committed = unpack(answer["ends"]), unpack(answer["committed"])
    expected, refused = answer["expected"], answer["refused"]
    racks = Racks(tuple(map(frozenset, answer["racks"]["sets"])), unpack(answer["racks"]["of_topic"]))
    return LoadsRead(group, answer["taken_us"], ends, committed, expected=expected, refused=refused, racks=racks)
