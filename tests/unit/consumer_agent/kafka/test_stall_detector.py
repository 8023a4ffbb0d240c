"""Which partitions are stuck: Kafka had more in two consecutive checks, and nothing came meanwhile."""

from __future__ import annotations

import pytest

from consumer_agent.kafka.stall_detector import StallDetector
from zkrebalancer.protocol.fields import TopicPartition

A, B = ("t", 0), ("t", 1)
Ends = dict[TopicPartition, int | None]


def judge(silence: StallDetector, ends: Ends, passed: dict[TopicPartition, int] | None = None) -> list[TopicPartition]:
    """Judge with a client that has passed these offsets; it is asked only about those that are behind."""
    return silence.judge(ends, lambda behind: {tp: offset for tp, offset in (passed or {}).items() if tp in behind})


@pytest.fixture
def silence() -> StallDetector:
    silence = StallDetector()
    silence.assigned({A: 5, B: 7})
    assert silence.look() == frozenset()  # they were assigned just now
    return silence


def test_who_is_silent_twice_is_stuck(silence: StallDetector) -> None:
    assert silence.look() == {A, B}
    assert judge(silence, {A: 6, B: 7}) == []
    assert silence.look() == {A, B}
    assert judge(silence, {A: 6, B: 7}) == [A]


def test_who_was_heard_in_between_is_not(silence: StallDetector) -> None:
    silence.look()
    judge(silence, {A: 9, B: 9})
    silence.came(A, 6)
    assert silence.look() == {B}
    assert judge(silence, {B: 9}) == [B]
    assert silence.look() == {A, B}
    assert judge(silence, {A: 9, B: 9}) == [B]


def test_what_stands_at_the_end_without_being_a_record_is_not_waited_for(silence: StallDetector) -> None:
    silence.came(A, 6)  # the end of the partition, behind the mark of a transaction
    for _ in range(3):
        silence.look()
        assert judge(silence, {A: 6, B: 7}) == []


def test_without_an_answer_nobody_is_blamed(silence: StallDetector) -> None:
    silence.look()
    judge(silence, {A: 9, B: 7})
    silence.look()
    assert judge(silence, {A: None, B: None}) == []
    silence.look()
    assert judge(silence, {A: 9, B: 7}) == []  # two looks in a row


def test_what_is_fetched_no_more_is_not_asked_for(silence: StallDetector) -> None:
    silence.unassigned([A])
    assert silence.look() == {B}
    assert judge(silence, {A: 9, B: 9}) == []


def test_who_skips_what_was_aborted_is_not_stuck_as_long_as_it_moves(silence: StallDetector) -> None:
    for passed in (6, 7, 8):
        silence.look()
        assert judge(silence, {A: 99, B: 7}, {A: passed}) == []
    silence.look()
    assert judge(silence, {A: 99, B: 7}, {A: 8}) == []  # one look without progress proves nothing
    silence.look()
    assert judge(silence, {A: 99, B: 7}, {A: 8}) == [A]


def test_what_was_passed_before_the_partition_is_not_progress(silence: StallDetector) -> None:
    for found in ([], [A]):
        silence.look()
        assert judge(silence, {A: 99, B: 7}, {A: 5}) == found
