"""The process that reads lag for a coordinator: `python -m zkrebalancer.coordinator.load_process`.

It is a separate process because its work grows with the partitions of a group: thousands of reads, with objects for
each answer, would make every other group wait. It answers one request after another on its standard input and output,
until its input ends. A frame is a length in four bytes, then msgpack.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from typing import Any

import gevent
import msgpack

from zkrebalancer.assignment.loads import pack
from zkrebalancer.coordinator.load_reader import LENGTH
from zkrebalancer.operations import loads
from zkrebalancer.protocol.errors import RebalancerError, ZooKeeperUnavailableError
from zkrebalancer.runtime.zk import BlockingZk

SESSION_TIMEOUT_MS = 40_000  # long, because Kafka's client may block the hub, and with it the session


def main() -> None:
    """Answer until the coordinator closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the coordinator, which then ends this process
    reader = Reader()
    wait = gevent.get_hub().threadpool.apply  # the hub keeps the session alive meanwhile
    while (request := wait(_read)) is not None:
        content = msgpack.packb(reader.answer(**request))
        sys.stdout.buffer.write(LENGTH.pack(len(content)) + content)
        sys.stdout.buffer.flush()


def _read() -> dict[str, Any] | None:
    """Return the next request, None at the end of the input."""
    length = sys.stdin.buffer.read(LENGTH.size)
    if len(length) < LENGTH.size:
        return None
    request: dict[str, Any] = msgpack.unpackb(sys.stdin.buffer.read(LENGTH.unpack(length)[0]))
    return request


class Reader:
    """Reads loads for one group after the other, on one ZooKeeper session as long as that lives."""

    def __init__(self) -> None:
        """Connect at the first request, not yet."""
        self._zk: BlockingZk | None = None

    def answer(
        self, zookeeper: str, kafka: Mapping[str, str], group: str, topics: Mapping[str, int]
    ) -> dict[str, object]:
        """Return the loads of a group's topics (name -> number of partitions), or why they cannot be read."""
        had_session = self._zk is not None
        try:
            if self._zk is None:
                self._zk = BlockingZk(zookeeper, SESSION_TIMEOUT_MS)
            read = loads.read_loads(self._zk, kafka, group, topics)
        except ZooKeeperUnavailableError as error:
            self._close()
            return self.answer(zookeeper, kafka, group, topics) if had_session else {"error": str(error)}
        except RebalancerError as error:
            return {"error": str(error)}
        racks = {"sets": [sorted(names) for names in read.racks.sets], "of_topic": pack(read.racks.of_topic)}
        weighed = {"expected": read.expected, "refused": read.refused, "racks": racks}
        return {"taken_us": read.taken_us, "ends": pack(read.ends), "committed": pack(read.committed), **weighed}

    def _close(self) -> None:
        zk, self._zk = self._zk, None
        if zk is not None:
            zk.close()


if __name__ == "__main__":
    main()
