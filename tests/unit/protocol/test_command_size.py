"""A command stays under 64 KB; larger ones are split into several that together name the same partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.protocol import command
from zkrebalancer.protocol.command import MAX_COMMAND_BYTES, Cause
from zkrebalancer.protocol.fields import TopicPartition

CAUSE = Cause("00000000-0000-0000-0000-000000000000", "member-joined")


def many(topics: int, name_length: int, partitions_per_topic: int) -> list[TopicPartition]:
    """Return every second partition, so that no two form a range."""
    names = [f"{topic:04d}".rjust(name_length, "t") for topic in range(topics)]
    return [(name, 2 * number) for name in names for number in range(partitions_per_topic)]


@given(st.integers(1, 400), st.integers(4, 249), st.integers(1, 30), st.integers(1, 3))
def test_starts_together_name_every_partition_once(topics: int, length: int, each: int, threads: int) -> None:
    rest = {partition: index % threads for index, partition in enumerate(many(topics, length, each))}
    wanted, sent = dict(rest), dict[TopicPartition, int]()
    while rest:
        start = command.fitting_start("id", 1, 1, CAUSE, rest)
        assert len(command.encode(start)) <= MAX_COMMAND_BYTES
        assert start.partitions, "an empty start makes no progress"
        assert not start.partitions.keys() & sent.keys()
        sent.update(start.partitions)
        for partition in start.partitions:
            del rest[partition]
    assert sent == wanted


@given(st.integers(1, 400), st.integers(4, 249), st.integers(1, 30))
def test_stops_together_name_every_partition_once(topics: int, length: int, each: int) -> None:
    rest = frozenset(many(topics, length, each))
    wanted, sent = rest, frozenset[TopicPartition]()
    while rest:
        stop = command.fitting_stop("id", 1, 1, CAUSE, rest)
        assert len(command.encode(stop)) <= MAX_COMMAND_BYTES
        assert stop.partitions, "an empty stop makes no progress"
        assert not stop.partitions & sent
        sent |= stop.partitions
        rest -= stop.partitions
    assert sent == wanted


def test_partitions_that_fit_are_not_split() -> None:
    partitions = dict.fromkeys((("orders", number) for number in range(100_000)), 0)
    assert command.fitting_start("id", 1, 1, CAUSE, partitions).partitions == partitions
    assert command.fitting_stop("id", 1, 1, CAUSE, frozenset(partitions)).partitions == partitions.keys()


@pytest.mark.parametrize("partitions", [{}, {("t" * 249, 2**31 - 1): 999}])
def test_the_smallest_commands(partitions: dict[TopicPartition, int]) -> None:
    assert command.fitting_start("id", 1, 1, CAUSE, partitions).partitions == partitions
    assert command.fitting_stop("id", 1, 1, CAUSE, frozenset(partitions)).partitions == partitions.keys()
