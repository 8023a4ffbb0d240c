"""The coordinator's side of the process that reads lag (`load_process.py`): one request after another, by pipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gevent
from gevent.queue import SimpleQueue

from zkrebalancer.assignment.loads import unpack
from zkrebalancer.assignment.model import Racks
from zkrebalancer.coordinator.asked_process import AskedProcess, ProcessFailedError
from zkrebalancer.rebalance.effects import LoadsRead, ReadLoads

READ_TIMEOUT_S = 120.0  # for one group; a process that takes longer is replaced
MODULE = "zkrebalancer.coordinator.load_process"


class LoadReader:
    """Performs `ReadLoads`; each gets an answer."""

    def __init__(self, zookeeper: str, kafka: Mapping[str, str], take: Callable[[LoadsRead], None]) -> None:
        """Start no process before the first request; `kafka` has librdkafka's settings, including the brokers."""
        # Sent in each request, because settings may be passwords, and other users can see a process's arguments.
        self._servers = {"zookeeper": zookeeper, "kafka": dict(kafka)}
        self._take = take
        self._waiting: SimpleQueue[ReadLoads] = SimpleQueue()  # at most one of each group
        self._process = AskedProcess(MODULE)
        self._worker = gevent.spawn(self._work)

    def read(self, effect: ReadLoads) -> None:
        """Queue the reading of a group's loads."""
        self._waiting.put(effect)

    def close(self) -> None:
        """End the process."""
        self._worker.kill()
        self._process.end()

    def _work(self) -> None:
        while True:
            effect = self._waiting.get()
            request = {**self._servers, "group": effect.group, "topics": dict(effect.topics)}
            try:
                read = loads_read(effect.group, self._process.ask(request, READ_TIMEOUT_S))
            except ProcessFailedError as error:
                read = loads_read(effect.group, {"error": str(error)})
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                # It begins from the files of another release if that was installed since this process began.
                text = f"the process that reads them has answered something else ({error!r:.200})"
                read = loads_read(effect.group, {"error": text})
            self._take(read)


def loads_read(group: str, answer: dict[str, Any]) -> LoadsRead:
    """Return the process's answer about a group as an event."""
    if "error" in answer:
        return LoadsRead(group, 0, {}, {}, answer["error"])
    ends, committed = unpack(answer["ends"]), unpack(answer["committed"])
    expected, refused = answer["expected"], answer["refused"]
    racks = Racks(tuple(map(frozenset, answer["racks"]["sets"])), unpack(answer["racks"]["of_topic"]))
    return LoadsRead(group, answer["taken_us"], ends, committed, expected=expected, refused=refused, racks=racks)
