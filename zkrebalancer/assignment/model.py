"""What a strategy is asked and what it answers: topics with partitions, members with threads, who gets what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zkrebalancer.protocol.fields import TopicPartition


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer of a group, its wildcard subscription already resolved to topics.

    `threads`: subscribed topic -> number of consumer threads that read it (at least 1): the threads 0, 1, ….
    `owned`: topic -> partition -> consumer thread that holds it now; {} when nothing is held.
    `generation`: of the claim `owned`; when two members claim one partition, the older generation loses.
    `capacity`: how much the member can carry relative to others, 1.0 being usual.
    """

    threads: Mapping[str, int]
    owned: Mapping[str, Mapping[int, int]]
    generation: int = 0
    instance_id: str | None = None
    rack: str | None = None
    capacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Problem:
    """A group to assign: topic -> number of partitions, and consumer -> member.

    A subscribed topic that does not exist gives its subscribers nothing.
    `lag`: topic -> records that each partition is behind; what is missing counts as 0.
    `rate`: topic -> records per second that each partition gets; what is missing counts as 0.
    `racks`: topic -> for each partition the racks that hold a replica; {} when unknown.
    `options`: of the strategy; each strategy says which it knows.
    """

    topics: Mapping[str, int]
    members: Mapping[str, Member]
    lag: Mapping[str, Sequence[int] | npt.NDArray[np.int64]] = field(default_factory=dict)
    rate: Mapping[str, Sequence[float] | npt.NDArray[np.float64]] = field(default_factory=dict)
    racks: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)


# consumer -> consumer thread -> topic -> sorted partitions; every member appears, with {} when it gets nothing
Assignment: TypeAlias = dict[str, dict[int, dict[str, tuple[int, ...]]]]
Strategy: TypeAlias = Callable[[Problem], Assignment]


def by_topic(partitions: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    """Return partition -> consumer thread in the form of `Member.owned`."""
    topics: dict[str, dict[int, int]] = {}
    for (topic, partition), thread in partitions.items():
        topics.setdefault(topic, {})[partition] = thread
    return topics


def ordered_consumers(problem: Problem) -> list[str]:
    """Every consumer in the one order that all strategies use: static members by instance id, then the others by name.

    Static members come first because their order survives a restart: a restarted consumer has a new name.
    """
    instances = [(member.instance_id, consumer) for consumer, member in problem.members.items() if member.instance_id]
    others = [consumer for consumer, member in problem.members.items() if not member.instance_id]
    # Names by themselves: to sort many tuples lets no other thread run for tens of milliseconds.
    return [consumer for _instance, consumer in sorted(instances)] + sorted(others)


def rank(problem: Problem, consumer: str) -> tuple[bool, str, str]:
    """Return the key by which consumers are ordered."""
    instance_id = problem.members[consumer].instance_id
    return (not instance_id, instance_id or "", consumer)
