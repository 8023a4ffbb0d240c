"""With a limit for each member, `balanced` leaves as few partitions over as any assignment would."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from unittest import mock

import numpy as np
import pytest

from zkrebalancer.assignment.balanced import plan_problem, room
from zkrebalancer.assignment.model import Member, Problem
from zkrebalancer.protocol.fields import TopicPartition

Choices = Mapping[TopicPartition, Sequence[str]]


def most_placed(choices: Choices, limit: int) -> int:
    """Return how many partitions can have one of their members, each of which takes `limit` (Kuhn's matching)."""
    places: dict[tuple[str, int], TopicPartition] = {}

    def finds_place(partition: TopicPartition, seen: set[tuple[str, int]]) -> bool:
        for place in ((member, number) for member in choices[partition] for number in range(limit)):
            if place not in seen:
                seen.add(place)
                if place not in places or finds_place(places[place], seen):
                    places[place] = partition
                    return True
        return False

    return sum(finds_place(partition, set()) for partition in choices)


def crowded_group(seed: int) -> tuple[Problem, Choices, Choices]:
    """Return a group that has hardly room, the readers of each partition, and these with drained owners."""
    chance = random.Random(seed)
    topics = {name: chance.randint(1, 4) for name in "tuv"}
    reading = {"m0": ["t", "u", "v"]} | {f"m{n}": chance.sample("tuv", chance.randint(1, 2)) for n in (1, 2, 3)}
    drained = {"d0": chance.sample("tuv", 2), "d1": ["t", "u", "v"]}
    owned: dict[str, dict[TopicPartition, int]] = {name: {} for name in (*reading, *drained)}
    every = [(topic, number) for topic, count in topics.items() for number in range(count)]
    for topic, number in every:
        holder = chance.choice([*owned, None])
        if holder is not None and topic in (reading | drained)[holder]:
            owned[holder][topic, number] = 0
    members = {name: Member(dict.fromkeys(read, 1), owned[name]) for name, read in reading.items()}
    members |= {name: Member(dict.fromkeys(read, 1), owned[name], capacity=0.0) for name, read in drained.items()}
    lag = {topic: [chance.randrange(100) for _ in range(count)] for topic, count in topics.items()}
    readers = {tp: [name for name, read in reading.items() if tp[0] in read] for tp in every}
    keepers = {tp: [*of_tp, *(name for name in drained if tp in owned[name])] for tp, of_tp in readers.items()}
    limit = {"max_partitions_per_member": chance.randint(1, 3)}
    return Problem(topics, members, lag=lag, options=limit), readers, keepers


@pytest.mark.parametrize("seed", range(40))
def test_as_few_partitions_as_possible_are_left_over_or_stay_with_drained_members(seed: int) -> None:
    problem, readers, keepers = crowded_group(seed)
    limit = problem.options["max_partitions_per_member"]
    assert isinstance(limit, int)
    plan = plan_problem(problem)
    given = plan.target[plan.target >= 0]
    assert np.bincount(given, minlength=1).max() <= limit
    assert np.count_nonzero(plan.case.active[given]) == most_placed(readers, limit)
    assert len(given) == most_placed(keepers, limit)
    for row in np.flatnonzero(plan.target >= 0).tolist():
        topic = int(plan.case.columns.topic[row])
        partition = plan.case.columns.topics[topic], row - int(plan.case.columns.first[topic])
        assert plan.case.columns.consumers[plan.target[row]] in keepers[partition]


def group_without_room(members: int, partitions: int) -> Problem:
    """Return a group whose members take one partition each; those that are left had drained members or none."""
    reading = {f"m{number}": Member({"t": 1}, {}) for number in range(members)}
    owned = {("t", number): 0 for number in range(partitions // 2)}
    drained = {"d0": Member({"t": 1}, owned, capacity=0.0)}
    return Problem({"t": partitions}, {**reading, **drained}, options={"max_partitions_per_member": 1})


@pytest.mark.parametrize("partitions", [20, 400])
def test_rows_without_room_cost_a_bounded_number_of_searches(monkeypatch: pytest.MonkeyPatch, partitions: int) -> None:
    """Many partitions are left when many members have died: a search for each of them took longer than a plan may."""
    searches = mock.Mock(side_effect=room._shortest_chain)
    monkeypatch.setattr(room, "_shortest_chain", searches)
    plan = plan_problem(group_without_room(6, partitions))
    assert np.count_nonzero(plan.target >= 0) == 7
    assert searches.call_count <= 4 * 4  # starts; for each, two failures, one of `d0`, and the row that it keeps
