"""Random groups, assigned by Kafka's own Java assignors and by ours.

Range and round robin must give equal assignments. Our sticky assignments must be valid, never less balanced than
Kafka's, and keep no fewer partitions when equally balanced.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from tests.benchmarks.assign.kafka import QUICK_START, KafkaAssignors
from tests.unit.assignment.problems import placed
from zkrebalancer.assignment import decide
from zkrebalancer.assignment.claims import current_owners
from zkrebalancer.assignment.model import Assignment, Member, Problem
from zkrebalancer.protocol.fields import TopicPartition

PROBLEM_COUNT = 150
DEADLINE_S = 60.0
MAX_ROUNDS = 20
Owners = dict[TopicPartition, str]


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaAssignors]:
    with KafkaAssignors(QUICK_START) as assignors:
        yield assignors


def random_problem(seed: int) -> Problem:
    """Return a group with equal, disjoint or arbitrary subscriptions, which owns some of its partitions."""
    chance = random.Random(seed)
    topics = {f"t{number}": chance.randint(1, 9) for number in range(chance.randint(1, 5))}
    choices = [chance.sample(sorted(topics), chance.randint(1, len(topics))) for _ in range(chance.randint(1, 4))]
    if chance.random() < 0.3:
        choices = [[topic] for topic in topics]
    held_share = chance.choice([0.0, 0.5, 1.0])
    owned: dict[str, dict[TopicPartition, int]] = {}
    threads = {f"c{number}": dict.fromkeys(chance.choice(choices), 1) for number in range(chance.randint(1, 7))}
    generations = {consumer: chance.choice([3, 4, 4, 4]) for consumer in threads}
    for topic, count in topics.items():
        readers = [consumer for consumer in threads if topic in threads[consumer]]
        for partition in range(count):
            if readers and chance.random() < held_share:
                owned.setdefault(chance.choice(readers[:2]), {})[topic, partition] = 0
    instance_ids = {consumer: f"i{chance.randint(0, 99)}-{consumer}" for consumer in threads if chance.random() < 0.3}
    return Problem(
        topics,
        {
            name: Member(threads[name], owned.get(name, {}), generations[name], instance_ids.get(name))
            for name in threads
        },
    )


def ask(
    kafka: KafkaAssignors,
    assignor: str,
    problem: Problem,
    owners: Mapping[TopicPartition, str],
    generation: int | None = None,
) -> Owners:
    """Return the assignment by Kafka, given the current owners; `generation` overrides that of every member."""
    claims = {name: [partition for partition, owner in owners.items() if owner == name] for name in problem.members}
    return ask_with_claims(kafka, assignor, problem, claims, generation)


def ask_with_claims(
    kafka: KafkaAssignors,
    assignor: str,
    problem: Problem,
    claims: Mapping[str, Iterable[TopicPartition]],
    generation: int | None = None,
) -> Owners:
    """Return the assignment by Kafka, given claims, which may overlap."""
    members: dict[str, Any] = {}
    for number, (name, member) in enumerate(problem.members.items()):
        owned: dict[str, list[int]] = {}
        for topic, partition in claims[name]:
            owned.setdefault(topic, []).append(partition)
        members[name] = {
            "subscription": number,
            "owned": owned,
            "generation": member.generation if generation is None else generation,
            "instance_id": member.instance_id,
        }
    subscriptions = [list(member.threads) for member in problem.members.values()]
    topics = {topic: problem.topics[topic] for topic in {topic for topics in subscriptions for topic in topics}}
    request = {"topics": topics, "subscriptions": subscriptions, "members": members, "repetitions": 0}
    reply = kafka.ask(request | {"assignor": assignor}, DEADLINE_S)
    assert reply is not None, f"{assignor} takes more than {DEADLINE_S} s"
    return {
        (topic, partition): member
        for member, by_topic in reply["assignment"].items()
        for topic, partitions in by_topic.items()
        for partition in partitions
    }


def ask_again(kafka: KafkaAssignors, problem: Problem, first_round: Owners) -> Owners:
    """Return the final assignment by Kafka's cooperative-sticky, repeating rounds until nothing is withheld."""
    owners = first_round
    for _ in range(MAX_ROUNDS):
        owners, before = ask(kafka, "client cooperative-sticky", problem, owners, generation=5), owners
        if owners == before:
            return owners
    pytest.fail(f"no stable assignment after {MAX_ROUNDS} rounds")


def owners_of(assignment: Assignment) -> Owners:
    return {(topic, partition): consumer for consumer, _, topic, partition in placed(assignment)}


def quality(owners: Owners, current: Mapping[TopicPartition, str]) -> tuple[int, int]:
    """Return (sum of squared sizes, number of partitions that move): smaller is better."""
    squares = sum(size * size for size in Counter(owners.values()).values())
    return squares, sum(owners.get(partition) != owner for partition, owner in current.items())


@pytest.mark.parametrize(("ours", "theirs"), [("range", "client range"), ("round_robin", "client round-robin")])
def test_range_and_round_robin_equal_kafkas(ours: str, theirs: str, kafka: KafkaAssignors) -> None:
    for seed in range(PROBLEM_COUNT):
        problem = random_problem(seed)
        assert owners_of(decide(ours, problem)) == ask(kafka, theirs, problem, {}), f"seed {seed}"


@pytest.mark.parametrize("theirs", ["uniform", "client cooperative-sticky", "server range"])
def test_sticky_is_never_worse(theirs: str, kafka: KafkaAssignors) -> None:
    for seed in range(PROBLEM_COUNT):
        problem = random_problem(seed)
        current = current_owners(problem)
        ours = owners_of(decide("sticky", problem))
        kafkas = ask(kafka, theirs, problem, current)
        if theirs == "client cooperative-sticky":
            kafkas = ask_again(kafka, problem, kafkas)
        assert ours.keys() == kafkas.keys(), f"seed {seed}"
        assert all(topic in problem.members[owner].threads for (topic, _), owner in ours.items()), f"seed {seed}"
        assert quality(ours, current) <= quality(kafkas, current), f"seed {seed}"


def test_cooperative_sticky_keeps_as_many_in_its_first_round_and_starts_no_owned_partition(
    kafka: KafkaAssignors,
) -> None:
    for seed in range(PROBLEM_COUNT):
        problem = random_problem(seed)
        current = current_owners(problem)
        ours = owners_of(decide("cooperative_sticky", problem))
        assert all(current.get(partition, owner) == owner for partition, owner in ours.items()), f"seed {seed}"
        kafkas = ask(kafka, "client cooperative-sticky", problem, current)
        assert all(current.get(partition, owner) == owner for partition, owner in kafkas.items()), f"seed {seed}"
        settled = ask_again(kafka, problem, kafkas)
        target = owners_of(decide("sticky", problem))
        if quality(target, {}) == quality(settled, {}):
            assert kept(ours, current) >= kept(kafkas, current), f"seed {seed}"


def test_partitions_claimed_twice_in_a_generation_are_withheld_at_first(kafka: KafkaAssignors) -> None:
    for seed in range(PROBLEM_COUNT):
        chance = random.Random(seed)
        partitions = [("t", number) for number in range(chance.randint(1, 9))]
        claims = {f"c{n}": chance.sample(partitions, chance.randint(0, len(partitions))) for n in range(3)}
        members = {
            name: Member({"t": 1}, dict.fromkeys(claimed, 0), chance.choice([4, 5])) for name, claimed in claims.items()
        }
        problem = Problem({"t": len(partitions)}, members)
        ours = owners_of(decide("cooperative_sticky", problem))
        kafkas = ask_with_claims(kafka, "client cooperative-sticky", problem, claims)
        for partition in partitions:
            generations = sorted(member.generation for member in members.values() if partition in member.owned)
            if len(generations) > 1 and generations[-1] == generations[-2]:
                assert partition not in ours, f"seed {seed}"
                assert partition not in kafkas, f"seed {seed}"


def kept(owners: Owners, current: Mapping[TopicPartition, str]) -> int:
    return sum(owners.get(partition) == owner for partition, owner in current.items())
