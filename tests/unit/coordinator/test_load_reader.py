"""One process reads the lag of all groups; it is replaced when it ends, and not when it answers that it cannot read."""

from __future__ import annotations

import sys

import gevent
import pytest
from gevent.queue import Queue

from tests.support.deadlines import WITHIN_S
from zkrebalancer.coordinator import load_reader
from zkrebalancer.coordinator.asked_process import AskedProcess
from zkrebalancer.coordinator.load_reader import LoadReader
from zkrebalancer.rebalance.effects import LoadsRead, ReadLoads

ANSWERING = """
import os, sys
import msgpack
from zkrebalancer.coordinator.asked_process import LENGTH
while len(length := sys.stdin.buffer.read(LENGTH.size)) == LENGTH.size:
    request = msgpack.unpackb(sys.stdin.buffer.read(LENGTH.unpack(length)[0]))
    if request["group"] == "deadly":
        os._exit(1)
    answer = msgpack.packb({} if request["group"] == "other" else {"error": f"no broker, says {os.getpid()}"})
    sys.stdout.buffer.write(LENGTH.pack(len(answer)) + answer)
    sys.stdout.buffer.flush()
"""


class Answering(AskedProcess):
    def __init__(self, module: str) -> None:
        super().__init__(module)
        self._command = (sys.executable, "-c", ANSWERING)


def test_while_kafka_is_away_the_process_and_its_session_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `AskedProcess.ask`, end the process after every answer: each reading makes a session at ZooKeeper anew."""
    monkeypatch.setattr(load_reader, "AskedProcess", Answering)
    answers: Queue[LoadsRead] = Queue()
    reader = LoadReader("z:1", {}, answers.put)
    try:
        for group in ("a", "b", "deadly", "c", "d"):
            reader.read(ReadLoads(group, {"t": 1}))
        with gevent.Timeout(WITHIN_S):
            errors = [answers.get().error for _ in range(5)]
    finally:
        reader.close()
    assert errors[0] == errors[1] != errors[3] == errors[4]
    assert errors[2] == "the process that reads them has ended"


def test_an_answer_in_another_form_is_an_error_of_its_group_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release may be installed meanwhile. In `LoadReader._work`, let it raise: no group is read again."""
    monkeypatch.setattr(load_reader, "AskedProcess", Answering)
    answers: Queue[LoadsRead] = Queue()
    reader = LoadReader("z:1", {}, answers.put)
    try:
        for group in ("other", "a"):
            reader.read(ReadLoads(group, {"t": 1}))
        with gevent.Timeout(WITHIN_S):
            other, after = answers.get(), answers.get()
    finally:
        reader.close()
    assert other.error == "the process that reads them has answered something else (KeyError('ends'))"
    assert after.group == "a"
