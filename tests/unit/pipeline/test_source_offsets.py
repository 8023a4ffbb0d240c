"""Ranges: encoding in a checkpoint, limits of a batch, division into tasks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.pipeline.source import offsets
from zkrebalancer.pipeline.source.offsets import CheckpointError, Range
from zkrebalancer.protocol.fields import TopicPartition

ranges = st.lists(
    st.builds(
        lambda partition, begin, length: Range("t", partition, begin, begin + length, 1),
        st.integers(0, 9),
        st.integers(0, 1_000),
        st.integers(1, 1_000),
    ),
    unique_by=lambda r: r.partition,
)


def test_the_end_of_a_batch_holds_its_ranges() -> None:
    wanted = [Range("orders", 0, 50, 100, 7, "id-1 czxid-7", 4), Range("orders", 10, 0, 3, 9), Range("pay", 2, 5, 6, 7)]
    document = offsets.encode(wanted)
    assert document["orders"]["0"] == {"from": 50, "to": 100, "generation": 7, "identity": "id-1 czxid-7", "life": 4}
    assert offsets.decode(json.loads(json.dumps(document))) == wanted


@pytest.mark.parametrize("document", [None, {"orders": 5}, {"orders": {"0": 17}}, {"orders": {"x": {}}}])
def test_offsets_of_another_source_are_rejected(document: object) -> None:
    with pytest.raises(CheckpointError, match="offsets of another source"):
        offsets.decode(document)


@pytest.mark.parametrize(
    ("ends", "targets", "found"),
    [
        ({0: 10, 1: 4}, None, {0: (3, 10)}),
        ({1: 9}, None, {1: (4, 9)}),  # Kafka does not say where the other log ends: it waits
        ({0: 10, 1: 9}, {0: 5, 1: 4}, {0: (3, 5)}),
        ({0: 10}, {0: 5, 1: 8}, {0: (3, 5), 1: (4, 8)}),  # without its target, the query would end too early
        ({}, {0: 5}, {0: (3, 5)}),
        ({0: 10, 1: 9}, {0: 5}, {0: (3, 5)}),  # a partition without a target has been added since: it would never end
        ({0: 4, 1: 3}, {0: 5, 1: 3}, {0: (3, 4)}),
    ],
)
def test_what_is_left_to_read(
    ends: dict[int, int], targets: dict[int, int] | None, found: dict[int, tuple[int, int]]
) -> None:
    def of_topic(values: dict[int, Any]) -> dict[TopicPartition, Any]:
        return {("t", number): value for number, value in values.items()}

    goal = None if targets is None else of_topic(targets)
    assert offsets.unread(of_topic({0: 3, 1: 4}), of_topic(ends), goal) == of_topic(found)


def test_a_limit_is_divided_evenly() -> None:
    unread = {("t", 0): (0, 10), ("t", 1): (100, 1_000), ("t", 2): (5, 1_000)}
    assert offsets.limited(unread, 110) == {("t", 0): 10, ("t", 1): 150, ("t", 2): 55}
    assert offsets.limited(unread, 2**63 - 1) == {("t", 0): 10, ("t", 1): 1_000, ("t", 2): 1_000}
    assert offsets.limited({}, 5) == {}


def test_partitions_take_turns_if_the_limit_is_too_small_for_all() -> None:
    unread = {("t", 0): (0, 5), ("t", 1): (0, 100_000), ("t", 2): (7, 100_000)}
    batches = [offsets.limited(unread, 2, turn) for turn in range(3)]
    assert batches == [
        {("t", 0): 1, ("t", 1): 1},
        {("t", 2): 8, ("t", 0): 1},
        {("t", 1): 1, ("t", 2): 8},
    ]


@given(ranges, st.integers(1, 20))
def test_tasks_share_all_offsets_evenly(whole: list[Range], task_count: int) -> None:
    tasks = offsets.split(whole, task_count)
    read = [(r.partition, offset) for task in tasks for r in task for offset in range(r.begin, r.end)]
    assert read == [(r.partition, offset) for r in whole for offset in range(r.begin, r.end)]
    sizes = [sum(r.end - r.begin for r in task) for task in tasks]
    assert len(tasks) <= task_count
    assert max(sizes, default=1) - min(sizes, default=1) <= 1
    assert all(len({r.partition for r in task}) == len(task) for task in tasks)  # one reader reads a partition once
