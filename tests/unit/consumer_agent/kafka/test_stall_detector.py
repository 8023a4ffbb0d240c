"""Which partitions are stuck: Kafka had more in two consecutive checks, and nothing came meanwhile."""

from __future__ import annotations

import pytest

from consumer_agent.kafka.stall_detector import StallDetector

A, B = ("t", 0), ("t", 1)


@pytest.fixture
def silence() -> StallDetector:
    silence = StallDetector()
    silence.assigned({A: 5, B: 7})
    assert silence.look() == frozenset()  # they were assigned just now
    return silence


def test_who_is_silent_twice_is_stuck(silence: StallDetector) -> None:
    assert silence.look() == {A, B}
    assert silence.judge({A: 6, B: 7}) == []
    assert silence.look() == {A, B}
    assert silence.judge({A: 6, B: 7}) == [A]


def test_who_was_heard_in_between_is_not(silence: StallDetector) -> None:
    silence.look()
    silence.judge({A: 9, B: 9})
    silence.came(A, 6)
    assert silence.look() == {B}
    assert silence.judge({B: 9}) == [B]
    assert silence.look() == {A, B}
    assert silence.judge({A: 9, B: 9}) == [B]


def test_what_stands_at_the_end_without_being_a_record_is_not_waited_for(silence: StallDetector) -> None:
    silence.came(A, 6)  # the end of the partition, behind the mark of a transaction
    for _ in range(3):
        silence.look()
        assert silence.judge({A: 6, B: 7}) == []


def test_without_an_answer_nobody_is_blamed(silence: StallDetector) -> None:
    silence.look()
    silence.judge({A: 9, B: 7})
    silence.look()
    assert silence.judge({A: None, B: None}) == []
    silence.look()
    assert silence.judge({A: 9, B: 7}) == []  # two looks in a row


def test_what_is_fetched_no_more_is_not_asked_for(silence: StallDetector) -> None:
    silence.unassigned([A])
    assert silence.look() == {B}
    assert silence.judge({A: 9, B: 9}) == []
