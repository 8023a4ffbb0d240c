"""The process that reads lag for a coordinator: `python -m zkrebalancer.coordinator.load_process`.

A process of its own, because what it does grows with the partitions of a group: thousands of reads, and objects for
each of their answers, that would make every other group wait. It answers one request after another, in frames on its
standard input and output, until its input ends; frames are a length in four bytes and msgpack.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from typing import Any

import msgpack

from zkrebalancer.assignment.loads import pack
from zkrebalancer.coordinator.load_reader import LENGTH
from zkrebalancer.operations import loads
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.runtime.zk import BlockingZk


def main() -> None:
    """Answer until the coordinator closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the coordinator, which then ends this process
    while (request := _read()) is not None:
        content = msgpack.packb(_answer(**request))
        sys.stdout.buffer.write(LENGTH.pack(len(content)) + content)
        sys.stdout.buffer.flush()


def _read() -> dict[str, Any] | None:
    """Return the next request, None at the end."""
    length = sys.stdin.buffer.read(LENGTH.size)
    if len(length) < LENGTH.size:
        return None
    request: dict[str, Any] = msgpack.unpackb(sys.stdin.buffer.read(LENGTH.unpack(length)[0]))
    return request


def _answer(zookeeper: str, kafka: Mapping[str, str], group: str, topics: Mapping[str, int]) -> dict[str, object]:
    try:
        with BlockingZk(zookeeper) as zk:
            read = loads.read_loads(zk, kafka, group, topics)
    except RebalancerError as error:
        return {"error": str(error)}
    racks = {"sets": [sorted(names) for names in read.racks.sets], "of_topic": pack(read.racks.of_topic)}
    weighed = {"expected": read.expected, "refused": read.refused, "racks": racks}
    return {"taken_us": read.taken_us, "ends": pack(read.ends), "committed": pack(read.committed), **weighed}


if __name__ == "__main__":
    main()
