"""Random groups for the property tests, and measures of their assignments."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TypeVar

from hypothesis import strategies as st

from zkrebalancer.assignment.model import Assignment, Member, Problem
from zkrebalancer.protocol.fields import TopicPartition

Key = TypeVar("Key")
Value = TypeVar("Value")

TOPIC_NAMES = ("a", "b", "c", "d")
CONSUMER_NAMES = ("c1", "c2", "c3", "c4", "c5", "c6")
TOPICS = st.sampled_from(TOPIC_NAMES)
GENERATIONS = st.integers(0, 2)
INSTANCES = st.none() | st.sampled_from(("{}-x", "a-{}"))


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    subscribe_alike: bool = False,
    max_partitions: int = 6,
    max_members: int = 5,
    max_threads: int = 3,
) -> Problem:
    """Draw a group: members differ in topics and threads; their claims may overlap or name missing partitions."""
    topics = draw(_topics(max_partitions))
    consumers = draw(_consumers(max_members))
    subscriptions = _subscriptions(max_threads)
    if subscribe_alike:
        subscriptions = st.just(draw(subscriptions))
    owned = _owned(max_partitions, max_threads)
    members = {
        consumer: Member(
            threads=draw(subscriptions),
            owned=draw(owned),
            generation=draw(GENERATIONS),
            instance_id=None if (instance := draw(INSTANCES)) is None else instance.format(consumer),
        )
        for consumer in consumers
    }
    return Problem(topics, members)


# Cached, because creating a strategy costs more than drawing from it.


@cache
def _topics(max_partitions: int) -> st.SearchStrategy[dict[str, int]]:
    return st.dictionaries(TOPICS, st.integers(0, max_partitions), max_size=4)


@cache
def _consumers(max_members: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(CONSUMER_NAMES), unique=True, max_size=max_members)


@cache
def _subscriptions(max_threads: int) -> st.SearchStrategy[dict[str, int]]:
    return st.dictionaries(TOPICS, st.integers(1, max_threads))


@cache
def _owned(max_partitions: int, max_threads: int) -> st.SearchStrategy[dict[TopicPartition, int]]:
    return st.dictionaries(st.tuples(TOPICS, st.integers(0, max_partitions)), st.integers(0, max_threads))


def placed(assignment: Assignment) -> Iterator[tuple[str, int, str, int]]:
    """Yield every (consumer, thread, topic, partition) of an assignment."""
    for consumer, threads in assignment.items():
        for thread, topics in threads.items():
            for topic, partitions in topics.items():
                for partition in partitions:
                    yield consumer, thread, topic, partition


def targets(assignment: Assignment) -> dict[tuple[str, int], str]:
    """Return partition -> consumer."""
    return {(topic, partition): consumer for consumer, _, topic, partition in placed(assignment)}


def sizes(assignment: Assignment) -> dict[str, int]:
    """Return consumer -> number of partitions."""
    count_of = Counter(consumer for consumer, _, _, _ in placed(assignment))
    return {consumer: count_of[consumer] for consumer in assignment}


def readable(problem: Problem) -> set[tuple[str, int]]:
    """Return every partition with a subscriber."""
    subscribed = {topic for member in problem.members.values() for topic in member.threads}
    return {
        (topic, partition)
        for topic, count in problem.topics.items()
        if topic in subscribed
        for partition in range(count)
    }


def holding(problem: Problem, assignment: Assignment) -> Problem:
    """Return the group after the assignment took effect."""
    owned: dict[str, dict[TopicPartition, int]] = {consumer: {} for consumer in problem.members}
    for consumer, thread, topic, partition in placed(assignment):
        owned[consumer][topic, partition] = thread
    return Problem(
        problem.topics,
        {
            name: Member(member.threads, owned[name], member.generation, member.instance_id)
            for name, member in problem.members.items()
        },
    )


def shuffled(problem: Problem, order: Iterable[int]) -> Problem:
    """Return the same group with reordered dictionaries."""
    ranks = itertools.cycle(tuple(order) or (0,))

    def reorder(entries: Mapping[Key, Value]) -> dict[Key, Value]:
        return dict(sorted(entries.items(), key=lambda _: next(ranks)))

    members = {
        name: Member(
            reorder(member.threads),
            reorder(member.owned),
            member.generation,
            member.instance_id,
        )
        for name, member in problem.members.items()
    }
    return Problem(reorder(problem.topics), reorder(members))


def best_by_brute_force(problem: Problem, current: Mapping[tuple[str, int], str]) -> tuple[int, int]:
    """Return the smallest cost of all assignments; see `cost`."""
    partitions = sorted(readable(problem))
    readers = [[name for name, member in problem.members.items() if topic in member.threads] for topic, _ in partitions]
    return min(cost(dict(zip(partitions, chosen, strict=True)), current) for chosen in itertools.product(*readers))


def cost(target: Mapping[tuple[str, int], str], current: Mapping[tuple[str, int], str]) -> tuple[int, int]:
    """Return (sum of squared sizes, number of `current` partitions that do not stay with their owner)."""
    squares = sum(size * size for size in Counter(target.values()).values())
    return squares, sum(target.get(partition) != owner for partition, owner in current.items())
