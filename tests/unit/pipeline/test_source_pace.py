"""How many offsets a batch may have."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from zkrebalancer.pipeline.source.pace import FEWEST_OFFSETS, FIRST_OFFSETS, MAX_GROWTH, Pace

STOP_TIMEOUT_S = 300.0


def sizes(seconds_of: Callable[[int], float], batches: int, waiting: int = 10**12) -> list[int]:
    """Return the sizes of batches that take as long as `seconds_of` says, with so many offsets waiting."""
    pace, found, now_s = Pace(STOP_TIMEOUT_S), [], 0.0
    for _ in range(batches):
        size = min(waiting, pace.limit())
        pace.begin(size, now_s)
        now_s += seconds_of(size)
        pace.end(now_s)
        found.append(size)
    return found


def test_batches_grow_until_they_take_half_of_the_time() -> None:
    found = sizes(lambda size: size / 100_000, 30)
    assert found[0] == FIRST_OFFSETS
    assert all(after <= MAX_GROWTH * before for before, after in pairwise(found))
    assert 0.8 * 150 <= found[-1] / 100_000 <= 150


def test_a_slow_sink_gets_small_batches_from_the_second_on() -> None:
    found = sizes(lambda size: size / 1_000, 10)
    assert found[0] == FIRST_OFFSETS
    assert max(found[1:]) / 1_000 <= 150


def test_a_constant_part_is_no_reason_for_smaller_batches() -> None:
    """Fails if a long trigger interval makes batches smaller and smaller."""
    found = sizes(lambda _size: 200.0, 20)
    assert found[-1] >= FIRST_OFFSETS
    found = sizes(lambda size: 20 + size / 10_000, 20)
    assert 0.7 * 130 <= found[-1] / 10_000 <= 1.1 * 130


@pytest.mark.parametrize(
    "seconds_of",
    [
        lambda size: 160 + size / 1_000,
        lambda size: 170 + size * 0.000_3,
        lambda size: max(180.0, size / 1_000),  # a long trigger interval
        lambda size: 100 + size / 500_000,
    ],
)
def test_a_large_constant_part_does_not_hide_the_other(seconds_of: Callable[[int], float]) -> None:
    """In `Pace._most`, let batches double whatever they took: each one ends after the limit, and all are in vain."""
    found = sizes(seconds_of, 60)
    assert max(map(seconds_of, found)) < STOP_TIMEOUT_S
    assert min(found) > FEWEST_OFFSETS


def test_few_offsets_say_nothing_about_many() -> None:
    """Fails if the time that a batch of one record takes limits the next ones to a few."""
    found = sizes(lambda _size: 0.5, 10, waiting=1)
    assert found == [1] * 10
    pace = Pace(STOP_TIMEOUT_S)
    for turn in range(10):
        pace.begin(1, turn)
        pace.end(turn + 0.5)
    assert pace.limit() == FEWEST_OFFSETS


def test_a_batch_never_takes_as_long_as_the_limit_if_times_vary() -> None:
    drawn = random.Random(1)
    found = sizes(lambda size: size / 50_000 * drawn.uniform(0.7, 1.3), 200)
    assert max(found) / 50_000 * 1.3 < STOP_TIMEOUT_S
    assert min(found[20:]) > FIRST_OFFSETS
