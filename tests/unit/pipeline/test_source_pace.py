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
    """In `Pace._growth`, let batches double whatever they took: each one ends after the limit, and all are in vain."""
    found = sizes(seconds_of, 60)
    assert max(map(seconds_of, found)) < STOP_TIMEOUT_S
    assert min(found) > FEWEST_OFFSETS


@pytest.mark.parametrize("seconds", [115.0, 140.0, 200.0, 230.0, 240.0, 290.0, 300.0, 3_600.0])
def test_a_constant_part_makes_no_batch_smaller_for_long(seconds: float) -> None:
    """In `Pace._each_s` or `_growth`, take all the time for the offsets': a query reads less and less, for ever."""
    found = sizes(lambda _size: seconds, 60)
    assert min(found[2:]) >= FIRST_OFFSETS
    assert found[-1] > 5 * FIRST_OFFSETS
    assert sizes(lambda _size: seconds, 60, waiting=20_000).count(20_000) == 59
    assert sizes(lambda _size: seconds, 60, waiting=1_500).count(1_500) == 59


def test_batches_of_similar_sizes_do_not_shrink_while_they_end_in_time() -> None:
    """In `Pace._each_s`, return the most that one of them shows: what varies makes them smaller and smaller."""
    found = sizes(lambda size: max(180.0, size / 100), 100)
    assert min(found[10:]) > 9_000
    drawn = random.Random(1)
    found = sizes(lambda size: (160 + size / 1_000) * drawn.uniform(0.9, 1.1), 200)
    assert 20_000 < min(found[10:]) < max(found[10:]) < 110_000


def test_after_a_quiet_night_batches_are_as_large_as_before() -> None:
    """In `Pace.end`, forget what went well: it takes hours to grow from what little there was to read.

    Or let a late batch of the night count, such as one whose sink was away.
    """
    for late in (None, 30):
        pace, now_s = Pace(STOP_TIMEOUT_S), 0.0
        for turn, waiting in enumerate([10**9] * 20 + [5, 10, 12] * 20):
            pace.begin(min(waiting, pace.limit()), now_s)
            now_s += 400.0 if turn == late else 200.0
            pace.end(now_s)
        assert pace.limit() > FIRST_OFFSETS


def test_a_batch_that_no_size_ends_in_time_is_not_much_longer_than_it_has_to_be() -> None:
    """In `Pace._room_s`, let such batches be of any size: each takes twice as long as the one before it."""
    hour_s = 3_600.0
    found = sizes(lambda size: max(hour_s, size / 1_000), 100)
    assert max(found) / 1_000 <= 3 * hour_s
    assert sum(found[20:]) / 1_000 > 0.4 * sum(max(hour_s, size / 1_000) for size in found[20:])


@pytest.mark.parametrize(("seconds", "is_too_long"), [(200.0, False), (290.0, True), (3_600.0, True)])
def test_that_no_size_helps_is_known(seconds: float, *, is_too_long: bool) -> None:
    pace = Pace(STOP_TIMEOUT_S)
    for turn in range(20):
        pace.begin(pace.limit(), seconds * turn)
        pace.end(seconds * (turn + 1))
    assert (pace.is_too_long, pace.constant_s) == (is_too_long, seconds)


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
