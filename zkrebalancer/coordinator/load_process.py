"""The process that reads lag for a coordinator: `python -m zkrebalancer.coordinator.load_process`.

It is a separate process because its work grows with the partitions of a group: thousands of reads, with objects for
each answer, would make every other group wait. It answers one request after another until its input ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial

from zkrebalancer.assignment.loads import pack
from zkrebalancer.coordinator.asked_process import answer_all
from zkrebalancer.coordinator.held_session import HeldSession
from zkrebalancer.operations import loads
from zkrebalancer.protocol.errors import RebalancerError


def main() -> None:
    """Answer until the coordinator closes the pipe."""
    with closing(HeldSession()) as session:
        answer_all(partial(answer, session))


def answer(
    session: HeldSession, zookeeper: str, kafka: Mapping[str, str], group: str, topics: Mapping[str, int]
) -> dict[str, object]:
    """Return the loads of a group's topics (name -> number of partitions), or why they cannot be read."""
    try:
        read = session.read(zookeeper, lambda zk: loads.read_loads(zk, kafka, group, topics))
    except RebalancerError as error:
        return {"error": str(error)}
    racks = {"sets": [sorted(names) for names in read.racks.sets], "of_topic": pack(read.racks.of_topic)}
    weighed = {"expected": read.expected, "refused": read.refused, "racks": racks}
    return {"taken_us": read.taken_us, "ends": pack(read.ends), "committed": pack(read.committed), **weighed}


if __name__ == "__main__":
    main()
