"""The lag in metrics: what is known is summed up, and Kafka is asked only while somebody looks."""

from __future__ import annotations

from consumer_agent.runtime.known_ends import ASK_INTERVAL_MS, WANTED_MS, KnownEnds, Lag

A, B = ("orders", 0), ("orders", 1)


def test_what_is_not_known_is_counted_apart() -> None:
    ends = KnownEnds()
    assert ends.measure({A: 3, B: 4}, 0) == Lag(0, 0, 2)
    ends.note({A: 10, B: None}, [A, B])
    assert ends.measure({A: 3, B: 4}, 0) == Lag(7, 7, 1)
    ends.note({B: 6}, [A, B])
    assert ends.measure({A: 3, B: 4}, 0) == Lag(9, 7, 0)
    assert ends.measure({A: 12, B: 4}, 0) == Lag(2, 2, 0)  # the position may be younger than the end
    assert ends.measure({}, 0) == Lag(0, 0, 0)


def test_what_is_no_longer_assigned_is_forgotten() -> None:
    ends = KnownEnds()
    ends.note({A: 10, B: 10}, [A, B])
    ends.note({A: 11, B: 11}, [A])
    assert ends.measure({A: 0, B: 0}, 0) == Lag(11, 11, 1)


def test_kafka_is_asked_at_intervals_while_somebody_looks() -> None:
    ends = KnownEnds()
    assert not ends.is_due(1_000)
    ends.measure({A: 0}, 1_000)
    due = [at_ms for at_ms in range(1_000, 1_000 + 2 * WANTED_MS, 1_000) if ends.is_due(at_ms)]
    assert due == list(range(1_000, 1_000 + WANTED_MS, ASK_INTERVAL_MS))
