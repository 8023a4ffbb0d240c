"""Clocks that are set apart and drift are aligned within bounds that hold."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.observe.clocks import MAX_DRIFT, Envelope, Evidence, Moment, align

DRIFTS = st.integers(-450, 450)  # ppm of each clock
OFFSETS = st.integers(-(10**13), 10**13)


class World:
    """True times, and three clocks that each show something else."""

    def __init__(self, seed: int, offsets: tuple[int, ...], drifts: tuple[int, ...]) -> None:
        self.chance = random.Random(seed)
        self.offsets, self.drifts = offsets, drifts
        self.evidence = Evidence()
        for number in range(len(offsets)):
            self.evidence.events[str(number)] = 10 - number

    def shows(self, clock: int, true_us: int) -> int:
        return true_us + true_us * self.drifts[clock] // 1_000_000 + self.offsets[clock]

    def message(self, sender: int, receiver: int, sent_us: int) -> None:
        came_us = sent_us + self.chance.randrange(200, 50_000)
        cause, effect = (str(sender), self.shows(sender, sent_us)), (str(receiver), self.shows(receiver, came_us))
        self.evidence.add(cause, effect)


@given(st.integers(0, 1_000), st.tuples(OFFSETS, OFFSETS, OFFSETS), st.tuples(DRIFTS, DRIFTS, DRIFTS))
def test_the_truth_is_within_the_bounds(seed: int, offsets: tuple[int, ...], drifts: tuple[int, ...]) -> None:
    world = World(seed, offsets, drifts)
    for step in range(40):
        world.message(*world.chance.choice([(0, 1), (1, 0), (1, 2), (2, 1)]), step * 500_000)
    alignment = align(world.evidence)
    assert alignment.contradictions == ()
    for clock in (0, 1, 2):
        moments = sorted(world.chance.randrange(0, 25_000_000) for _ in range(10))
        placed = [alignment.place(str(clock), world.shows(clock, at_us)) for at_us in moments]
        assert [each.at_us for each in placed] == sorted(each.at_us for each in placed)
        for at_us, each in zip(moments, placed, strict=True):
            truth = world.shows(0, at_us)
            assert each.earliest_us is None or each.earliest_us <= truth + 1
            assert each.latest_us is None or each.latest_us >= truth - 1


@given(st.integers(0, 1_000), DRIFTS)
def test_an_effect_is_never_placed_before_its_cause(seed: int, drift: int) -> None:
    world = World(seed, (0, 7_000_000, -3_000_000), (0, drift, -drift))
    for step in range(20):
        for other in (1, 2):
            world.message(0, other, step * 1_000_000)
            world.message(other, 0, step * 1_000_000 + 100_000)
    alignment = align(world.evidence)
    for (sender, receiver), times in world.evidence.pairs.items():
        for cause, effect in times:
            assert alignment.place(sender, cause).is_before(alignment.place(receiver, effect))


def test_the_error_is_half_of_a_round_trip_and_grows_with_the_distance() -> None:
    evidence = Evidence(events=Counter({"a": 2, "b": 1}))
    evidence.add(("a", 1_000_000), ("b", 9_001_000))  # 1 ms after it, if the offset is 8 s
    evidence.add(("b", 9_003_000), ("a", 1_004_000))
    alignment = align(evidence)
    error_us = alignment.place("b", 9_002_000).error_us
    assert error_us is not None
    assert 900 <= error_us <= 1_010
    later = alignment.place("b", 9_002_000 + 60_000_000)
    assert later.error_us is not None
    assert later.error_us >= 60_000


def test_without_pairs_wall_clocks_give_a_guess_without_a_bound() -> None:
    evidence = Evidence()
    evidence.note("a", 1_000, 1_700_000_001_000)
    evidence.note("a", 2_000, 1_700_000_002_500)
    evidence.note("b", 50_000, 1_700_000_003_000)
    placed = align(evidence).place("b", 50_000)
    assert (placed.at_us, placed.earliest_us, placed.latest_us, placed.error_us) == (3_000, None, None, None)
    assert not placed.is_before(align(evidence).place("a", 10**9))


def test_a_clock_that_jumped_is_told_and_has_no_bound() -> None:
    evidence = Evidence(events=Counter({"a": 2, "b": 1}))
    evidence.add(("a", 1_000), ("b", 2_000))
    evidence.add(("b", 2_500), ("a", 1_600))
    evidence.add(("a", 9_000), ("b", 3_000))  # b stood still for 7 ms
    alignment = align(evidence)
    assert alignment.contradictions == ("the clocks of b and a contradict each other: one has jumped",)
    assert alignment.place("b", 2_200).error_us is None


def test_a_moment_passes_over_many_clocks_in_one_walk() -> None:
    """In `Alignment._moved`, ask for both bounds at each clock: a host that was booted thirty times is never judged."""
    evidence = Evidence()
    for number in range(30):
        evidence.note(f"c{number:02}", 0, None, count=30 - number)
    for number in range(29):
        one, other = f"c{number:02}", f"c{number + 1:02}"  # the next clock is 100 us ahead, known within 2 us
        evidence.add((one, 1_000), (other, 1_101))
        evidence.add((other, 1_099), (one, 1_000))
    placed = align(evidence).place("c29", 1_000 + 29 * 100)
    assert placed.earliest_us is not None
    assert placed.latest_us is not None
    assert placed.earliest_us <= 1_000 <= placed.latest_us
    assert placed.latest_us - placed.earliest_us == pytest.approx(29 * 2, abs=29 * 8)


MOMENTS = st.lists(st.tuples(st.integers(0, 60_000), st.integers(-40, 40)), min_size=1, max_size=12)


@given(MOMENTS, st.booleans(), st.randoms(use_true_random=False))
def test_bounds_may_be_added_in_any_order(moments: list[Moment], is_upper: bool, chance: random.Random) -> None:
    """In `Envelope.add`, drop no bound that a later one makes useless; or return the moment of the bound itself."""
    envelope, shuffled = Envelope(is_upper=is_upper), chance.sample(moments, len(moments))
    for number, moment in enumerate(shuffled):
        before = {at_us: envelope.at(at_us) for at_us in range(-500, 61_000, 97)}
        since_us = envelope.add(*moment)
        known = shuffled[: number + 1]
        for at_us, bound_us in before.items():
            reached = [us + (1 if is_upper else -1) * -(-abs(at_us - at) // MAX_DRIFT) for at, us in known]
            assert envelope.at(at_us) == (min(reached) if is_upper else max(reached))
            assert envelope.at(at_us) == bound_us or (since_us is not None and since_us <= at_us)
    again = Envelope(moments, is_upper=is_upper)
    assert (again.times, again.values) == (envelope.times, envelope.values)


def test_the_reference_seldom_changes() -> None:
    """In `align`, take the clock with the most events: with each event more, another one may have most."""
    reference, changes = "", 0
    for number in range(1, 3_000):
        now = align(Evidence(events=Counter({"a": number, "b": number + number % 3 - 1, "c": number // 3}))).reference
        changes, reference = changes + (now != reference), now
    assert changes < 30


def test_a_clock_is_related_to_the_one_about_which_most_is_known_most_of_the_time() -> None:
    """In `Relation.looseness`, take the narrowest bounds: one quick answer would decide for days."""
    evidence = Evidence(events=Counter({"a": 4, "b": 2, "c": 1}))
    for number in range(5):
        at_us = number * 100_000_000
        for one, other, trip_us in (("a", "b", 10), ("b", "c", 1_000), ("a", "c", 10_000 if number else 2)):
            for cause, effect in ((one, other), (other, one)):
                evidence.add((cause, at_us), (effect, at_us + trip_us))
    assert align(evidence).relations["c"].parent == "b"
