"""What a strategy is asked and what it answers: topics with partitions, members with threads, who gets what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zkrebalancer.protocol.fields import TopicPartition


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer of a group, its wildcard subscription already resolved to topics.

    `threads`: subscribed topic -> number of consumer threads that read it (at least 1): the threads 0, 1, ….
    `owned`: partition -> consumer thread that holds it now.
    `generation`: of the claim `owned`; when two members claim one partition, the older generation loses.
    `capacity`: how much the member can carry relative to others, 1.0 being usual.
    """

    threads: Mapping[str, int]
    owned: Mapping[TopicPartition, int]
    generation: int = 0
    instance_id: str | None = None
    rack: str | None = None
    capacity: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Racks:
    """Which racks hold a replica of each partition: few different sets, because brokers stand in few racks.

    `sets[0]` is empty: not known. `of_topic`: topic -> the number of its set for each partition, the first ones or all.
    """

    sets: tuple[frozenset[str], ...] = (frozenset(),)
    of_topic: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)


def to_racks(topics: Mapping[str, Iterable[Iterable[str]]]) -> Racks:
    """Return racks from topic -> for each partition the racks that hold a replica."""
    number_of: dict[frozenset[str], int] = {frozenset(): 0}
    of_topic = {
        topic: np.array([number_of.setdefault(frozenset(names), len(number_of)) for names in partitions], np.int64)
        for topic, partitions in topics.items()
    }
    return Racks(tuple(number_of), of_topic)


@dataclass(frozen=True, slots=True)
class Problem:
    """A group to assign: topic -> number of partitions, and consumer -> member.

    A subscribed topic that does not exist gives its subscribers nothing.
    `lag`: topic -> records that each partition is behind; what is missing counts as 0.
    `rate`: topic -> records per second that each partition gets; what is missing counts as 0.
    `racks`: which racks hold a replica of each partition, as far as that is known.
    `options`: of the strategy; each strategy says which it knows.
    """

    topics: Mapping[str, int]
    members: Mapping[str, Member]
    lag: Mapping[str, Sequence[int] | npt.NDArray[np.int64]] = field(default_factory=dict)
    rate: Mapping[str, Sequence[float] | npt.NDArray[np.float64]] = field(default_factory=dict)
    racks: Racks = field(default_factory=Racks)
    options: Mapping[str, object] = field(default_factory=dict)

    def rank(self, consumer: str) -> tuple[bool, str, str]:
        """Return the key by which `ordered_consumers` orders."""
        instance_id = self.members[consumer].instance_id
        return (not instance_id, instance_id or "", consumer)


# consumer -> consumer thread -> topic -> sorted partitions; every member appears, with {} when it gets nothing
Assignment: TypeAlias = dict[str, dict[int, dict[str, tuple[int, ...]]]]


def ordered_consumers(problem: Problem) -> list[str]:
    """Every consumer in the one order that all strategies use: static members by instance id, then the others by name.

    Static members come first because their order survives a restart: a restarted consumer has a new name.
    """
    instances = [(member.instance_id, consumer) for consumer, member in problem.members.items() if member.instance_id]
    others = [consumer for consumer, member in problem.members.items() if not member.instance_id]
    # Names by themselves: to sort many tuples lets no other thread run for tens of milliseconds.
    return [consumer for _instance, consumer in sorted(instances)] + sorted(others)
