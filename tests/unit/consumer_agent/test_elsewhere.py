"""Offsets and members of a group at Kafka's brokers: when they prevent an agent's start."""

from __future__ import annotations

import pytest

from consumer_agent.errors import ConsumerError, GroupInUseError, OffsetsElsewhereError
from consumer_agent.kafka.elsewhere import fault

T0, T1, T2 = (("t", number) for number in range(3))


@pytest.mark.parametrize(
    ("members", "committed", "expected"),
    [
        ([], {}, None),
        ([], {T2: 5}, None),  # of a partition that does not begin now
        ([], {T1: 0}, OffsetsElsewhereError),
        (["c"], {}, GroupInUseError),
        (["c"], {T1: 7}, GroupInUseError),
    ],
)
def test_members_and_offsets_forbid_to_begin(
    members: list[str], committed: dict[tuple[str, int], int], expected: type[ConsumerError] | None
) -> None:
    found = fault("g", members, committed, [T0, T1])

    assert type(found) is (expected or type(None))


def test_an_error_is_one_line_that_names_what_was_found_and_the_ways_on() -> None:
    text = str(fault("g", [], {T1: 7, T2: 8}, [T2, T1]))
    assert text.startswith("group g has offsets in Kafka, for example 7 for t/1, and none in ZooKeeper")
    assert all(way in text for way in ("dual", "groups offsets import g --from kafka", "ignore_kafka_offsets"))

    text = str(fault("g", ["d", "b", "c", "a"], {}, []))
    assert "(a, b, c, …)" in text
    assert "\n" not in text
