"""The measured groups, each as a problem for our strategies and as a request for Kafka's assignors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zkrebalancer.assignment.columns import Columns, Rows
from zkrebalancer.assignment.model import Member, Problem

MEMBERS = (100, 1_000, 10_000)
PARTITIONS_PER_MEMBER = (10, 50)
TOPICS = (10, 100, 1_000)
ALIKE, BUCKETS, OVERLAPPING = "alike", "5 buckets", "20 overlapping"
JOINER = "member-joining"


@dataclass(frozen=True, slots=True)
class Point:
    """A group, assigned from nothing or, if `joins`, with one more member after it has settled."""

    members: int
    partitions_per_member: int
    topic_count: int
    subscribe: str
    joins: bool

    @property
    def partitions(self) -> int:
        return self.members * self.partitions_per_member

    def topics(self) -> dict[str, int]:
        return {f"topic-{number:04}": self.partitions // self.topic_count for number in range(self.topic_count)}

    def subscriptions(self) -> list[list[str]]:
        """Return the members' subscriptions, which they take in turn."""
        names = list(self.topics())
        if self.subscribe == ALIKE:
            return [names]
        if self.subscribe == BUCKETS:
            return [names[bucket::5] for bucket in range(5)]
        width = len(names) // 20
        return [[*names, *names][first * width : (first + 3) * width] for first in range(20)]

    def consumers(self) -> list[str]:
        return [f"member-{number:05}" for number in range(self.members)] + [JOINER] * self.joins

    def problem(self) -> Problem:
        threads = [dict.fromkeys(topics, 1) for topics in self.subscriptions()]
        consumers = self.consumers()
        return Problem(
            self.topics(), {name: Member(threads[row % len(threads)], {}) for row, name in enumerate(consumers)}
        )

    def request(self) -> dict[str, Any]:
        subscriptions = self.subscriptions()
        return {
            "topics": self.topics(),
            "subscriptions": subscriptions,
            "members": {name: {"subscription": row % len(subscriptions)} for row, name in enumerate(self.consumers())},
            "joining": JOINER if self.joins else None,
        }


def grid(members: Sequence[int], topics: Sequence[int]) -> Iterator[Point]:
    for point in itertools.product(members, PARTITIONS_PER_MEMBER, topics, (ALIKE, BUCKETS), (False, True)):
        yield Point(*point)


def settled(columns: Columns, target: Rows) -> Columns:
    """Return the same group after every member owns its target."""
    thread = np.where(target >= 0, np.int32(0), np.int32(-1))
    return replace(columns, holder=target, owner=target, owner_thread=thread)
