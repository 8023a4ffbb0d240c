"""How many records a group reads around a step, and how far it falls behind, from handwritten events."""

from __future__ import annotations

from tests.unit.observe.test_measures import event, step
from zkrebalancer.observe.reading import Event
from zkrebalancer.observe.throughput import throughput


def produced(at_ms: int, first: int, count: int) -> Event:
    return event("produced", at_ms, topic="t", partition=0, first_offset=first, last_offset=first + count - 1)


def delivered(at_ms: int, first: int, count: int, member: str = "a") -> Event:
    offsets = {"first_offset": first, "last_offset": first + count - 1, "count": count}
    return event("delivered", at_ms, member=member, topic="t", partition=0, **offsets)


def steadily(from_ms: int, to_ms: int) -> list[Event]:
    """Ten records each 100 ms, each of them read 40 ms later."""
    events = []
    for at_ms in range(from_ms, to_ms, 100):
        events += [produced(at_ms + 10, at_ms // 10, 10), delivered(at_ms + 50, at_ms // 10, 10)]
    return events


def test_a_pause_is_caught_up() -> None:
    events = [
        *steadily(0, 1_000),
        step(1, "before", 1_000),
        *steadily(1_000, 3_000),
        step(2, "kill-member", 3_000),
        *[produced(at_ms + 10, at_ms // 10, 10) for at_ms in range(3_000, 4_500, 100)],
        delivered(4_450, 270, 10, "b"),  # again
        delivered(4_450, 300, 150, "b"),
        *steadily(4_500, 6_000),
        step(3, "end", 6_000),
    ]
    found = throughput(events)
    steady = {"delivered_per_s": [100, 100], "delivered_per_s_min": 100, "produced_per_s": 100}
    assert found == {
        1: {**steady, "lag_before": 10, "lag_max": 10, "lag_max_per_s": [10, 10], "lag_back_ms": 0},
        2: {
            "delivered_per_s": [0, 200, 100],
            "delivered_per_s_min": 0,
            "produced_per_s": 100,
            "lag_before": 10,
            "lag_max": 150,
            "lag_max_per_s": [100, 150, 10],
            "lag_back_ms": 1_500,
        },
    }


def test_a_backlog_that_remains() -> None:
    events = [produced(10, 0, 1_000), step(1, "before", 1_000), delivered(1_500, 0, 100), step(2, "add-member", 2_100)]
    events += [produced(2_200, 1_000, 500), delivered(3_000, 100, 100), step(3, "end", 3_150)]
    found = throughput(events)
    assert (found[1]["lag_before"], found[1]["lag_max"], found[1]["lag_back_ms"]) == (1_000, 1_000, 0)
    assert (found[2]["lag_before"], found[2]["lag_max"], found[2]["lag_back_ms"]) == (900, 1_400, None)


def test_a_group_that_falls_behind_twice_within_a_second_is_back_after_the_second_time() -> None:
    events = [*steadily(0, 1_000), step(1, "add-member", 1_000)]
    for at_ms in range(1_000, 5_000, 100):
        events.append(produced(at_ms + 10, at_ms // 10, 10))
        if at_ms not in range(1_200, 1_600) and at_ms not in range(2_000, 2_400):
            events.append(delivered(at_ms + 50, 0, at_ms // 10 + 10))
    assert throughput([*events, step(2, "end", 5_000)])[1]["lag_back_ms"] == 1_500


def test_a_step_that_ends_at_once_has_no_full_second() -> None:
    found = throughput([step(1, "before", 1_000), step(2, "end", 1_050)])
    assert found[1]["delivered_per_s"] == []
    assert found[1]["delivered_per_s_min"] is None
