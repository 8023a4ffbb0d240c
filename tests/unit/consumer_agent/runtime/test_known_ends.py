"""The lag in metrics: a sum of the known lags; Kafka is queried only while somebody reads it."""

from __future__ import annotations

from consumer_agent.runtime.known_ends import ASK_INTERVAL_MS, MAX_AGE_MS, WANTED_MS, KnownEnds, Lag

A, B = ("orders", 0), ("orders", 1)


def test_what_is_not_known_is_counted_apart() -> None:
    ends = KnownEnds()
    assert ends.measure({A: 3, B: 4}, 0) == Lag(0, 0, 2)
    ends.note({A: 10, B: None}, [A, B], 0)
    assert ends.measure({A: 3, B: 4}, 0) == Lag(7, 7, 1)
    ends.note({B: 6}, [A, B], 0)
    assert ends.measure({A: 3, B: 4}, 0) == Lag(9, 7, 0)
    assert ends.measure({A: 12, B: 4}, 0) == Lag(2, 2, 0)  # the position may be younger than the end
    assert ends.measure({}, 0) == Lag(0, 0, 0)


def test_offsets_without_a_record_at_the_end_are_no_lag() -> None:
    """A transaction's marker at 10, then an aborted transaction, then records again."""
    ends = KnownEnds()
    ends.note({A: 11, B: 3}, [A, B], 0)
    assert ends.each({A: 8, B: 3}, 0) == {A: 3, B: 0}
    ends.note_gap(A, range(10, 11))
    assert ends.each({A: 8, B: 3}, 0) == {A: 2, B: 0}
    assert ends.each({A: 10, B: 3}, 0) == {A: 0, B: 0}
    ends.note_gap(A, range(11, 15))
    assert ends.each({A: 10}, 0) == {A: 0}  # the end is older than what was fetched
    ends.note({A: 15}, [A], 0)
    assert ends.each({A: 10}, 0) == {A: 0}
    assert ends.each({A: 12}, 0) == {A: 0}  # the application has sought there
    ends.note({A: 20}, [A], 0)
    assert ends.each({A: 10}, 0) == {A: 5}  # not fetched yet: records, as far as is known
    ends.note_gap(A, range(18, 20))
    assert ends.each({A: 15}, 0) == {A: 3}
    ends.note_gap(A, range(20, 20))
    assert ends.each({A: 18}, 0) == {A: 0}


def test_a_partition_that_comes_again_may_be_another_topics() -> None:
    ends = KnownEnds()
    ends.note_gap(A, range(10, 11))
    ends.forget([A, B])
    ends.note({A: 11}, [A], 0)
    assert ends.each({A: 10}, 0) == {A: 1}


def test_what_is_no_longer_assigned_is_forgotten() -> None:
    ends = KnownEnds()
    ends.note({A: 10, B: 10}, [A, B], 0)
    ends.note({A: 11, B: 11}, [A], 0)
    assert ends.measure({A: 0, B: 0}, 0) == Lag(11, 11, 1)


def test_an_end_that_kafka_no_longer_confirms_is_not_known() -> None:
    """A consumer that is cut off from Kafka stands at the last end it knew: that would look like no lag at all."""
    ends = KnownEnds()
    ends.note({A: 10, B: 10}, [A, B], 0)
    ends.note({A: 10, B: None}, [A, B], ASK_INTERVAL_MS)
    assert ends.measure({A: 10, B: 10}, MAX_AGE_MS) == Lag(0, 0, 0)
    assert ends.measure({A: 10, B: 10}, MAX_AGE_MS + 1) == Lag(0, 0, 1)
    assert ends.each({A: 10, B: 10}, MAX_AGE_MS + ASK_INTERVAL_MS + 1) == {}
    ends.note({B: 25}, [A, B], 2 * MAX_AGE_MS)
    assert ends.measure({A: 10, B: 10}, 2 * MAX_AGE_MS) == Lag(15, 15, 1)


def test_kafka_is_asked_at_intervals_while_somebody_looks() -> None:
    ends = KnownEnds()
    assert not ends.is_due(1_000)
    ends.measure({A: 0}, 1_000)
    due = [at_ms for at_ms in range(1_000, 1_000 + 2 * WANTED_MS, 1_000) if ends.is_due(at_ms)]
    assert due == list(range(1_000, 1_000 + WANTED_MS, ASK_INTERVAL_MS))
