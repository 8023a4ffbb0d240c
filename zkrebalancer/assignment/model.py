"""The input and output of a strategy: a `Problem` (topics, members, their claims) and an `Assignment`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zkrebalancer.protocol.fields import TopicPartition


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer of a group; a wildcard subscription is already resolved to topics.

    `threads`: subscribed topic -> number of consumer threads that read it (at least 1), numbered from 0.
    `owned`: partition -> consumer thread that owns it now: the member's claims.
    `generation`: of these claims; if two members claim a partition, the newer generation wins.
    `capacity`: relative to other members, usually 1.0; 0 drains the member.
    """

    threads: Mapping[str, int]
    owned: Mapping[TopicPartition, int]
    generation: int = 0
    instance_id: str | None = None
    rack: str | None = None
    capacity: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Racks:
    """The racks of each partition's replicas, as indexes into few distinct sets of racks.

    `sets[0]` is the empty set: unknown. `of_topic`: topic -> index of the set of each partition; it may be shorter than
    the number of partitions.
    """

    sets: tuple[frozenset[str], ...] = (frozenset(),)
    of_topic: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)


def to_racks(topics: Mapping[str, Iterable[Iterable[str]]]) -> Racks:
    """Return racks from topic -> racks of each partition's replicas."""
    number_of: dict[frozenset[str], int] = {frozenset(): 0}
    of_topic = {
        topic: np.array([number_of.setdefault(frozenset(names), len(number_of)) for names in partitions], np.int64)
        for topic, partitions in topics.items()
    }
    return Racks(tuple(number_of), of_topic)


@dataclass(frozen=True, slots=True)
class Problem:
    """A group to assign: topic -> number of partitions, and consumer -> member.

    A subscription may contain topics that do not exist.
    `lag`: topic -> records that the group still has to read of each partition; missing values count as 0.
    `rate`: topic -> records per second written to each partition; missing values count as 0.
    `racks`: of the partitions' replicas, as far as known.
    `options`: of the strategy, which validates them.
    """

    topics: Mapping[str, int]
    members: Mapping[str, Member]
    lag: Mapping[str, Sequence[int] | npt.NDArray[np.int64]] = field(default_factory=dict)
    rate: Mapping[str, Sequence[float] | npt.NDArray[np.float64]] = field(default_factory=dict)
    racks: Racks = field(default_factory=Racks)
    options: Mapping[str, object] = field(default_factory=dict)

    def rank(self, consumer: str) -> tuple[bool, str, str]:
        """Return the consumer's sort key in `ordered_consumers`."""
        instance_id = self.members[consumer].instance_id
        return (not instance_id, instance_id or "", consumer)


# consumer -> consumer thread -> topic -> sorted partitions; members without partitions appear with {}
Assignment: TypeAlias = dict[str, dict[int, dict[str, tuple[int, ...]]]]


def ordered_consumers(problem: Problem) -> list[str]:
    """Return all consumers in the order that every strategy uses: static members by instance id, then others by name.

    Instance ids survive a restart, names do not.
    """
    instances = [(member.instance_id, consumer) for consumer, member in problem.members.items() if member.instance_id]
    others = [consumer for consumer, member in problem.members.items() if not member.instance_id]
    # Sort plain names, not tuples: sorting many tuples holds the GIL for tens of milliseconds.
    return [consumer for _instance, consumer in sorted(instances)] + sorted(others)
