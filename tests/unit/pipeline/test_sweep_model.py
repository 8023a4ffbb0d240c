from __future__ import annotations

from dataclasses import replace

import pytest

from zkrebalancer.pipeline.sweep.grid import Cell
from zkrebalancer.pipeline.sweep.model import (
    DEBOUNCE_MS,
    ROUND_TRIP_MS,
    Change,
    cooperative,
    eager,
    incremental,
    kip848,
    simulate,
)

# a has left; partition 1 stays with b, partition 2 moves from b to c, partition 3 stays with c
CHANGE = Change(
    before=["a", "b", "b", "c"],
    after=["b", "b", "c", "c"],
    gone={"a"},
    heartbeats_ms={"b": 100.0, "c": 2_000.0},
    answers_ms={"b": 8.0, "c": 3.0},
)
NO_MOVE = replace(CHANGE, after=["c", "b", "b", "c"])
CELL = Cell(members=6, partitions=40, skew=0.8, churn=0.2, strategy="sticky", repeat=0)


def test_eager_stops_everything_at_the_heartbeat_of_all() -> None:
    """In `eager`, let each member have its own: ten with 3 s had partitions without an owner for 459 s in three joins.

    Measured were 5.9 s, and a time to settled of 1.5 s, half an interval.
    """
    assert eager(CHANGE) == (105.0, [105.0, 5.0, 5.0, 5.0])


def test_cooperative_needs_a_second_round_for_moves() -> None:
    # b gave up a partition and begins the second round at once; c joins it at its next heartbeat
    assert cooperative(CHANGE) == (105.0 + 3_005.0, [105.0, 0.0, 3_005.0, 0.0])
    assert cooperative(NO_MOVE) == (105.0, [105.0, 0.0, 0.0, 0.0])
    both_give = replace(CHANGE, after=["b", "c", "b", "b"])
    assert cooperative(both_give) == (105.0 + 5.0, [105.0, 5.0, 0.0, 5.0])


def test_with_cooperative_a_new_member_learns_of_the_second_round_an_interval_after_it_joined() -> None:
    """In `cooperative`, look at members that stay only. Measured were 869 ms, and 14.8 s of 30 partitions."""
    join = Change(["b", "b"], ["b", "new"], set(), {"b": 300.0}, {"b": 8.0}, interval_ms=500.0)
    assert cooperative(join) == (305.0 + 505.0, [0.0, 505.0])


def test_incremental_touches_only_moved_partitions() -> None:
    orphan_ms, moved_ms = DEBOUNCE_MS + ROUND_TRIP_MS, 8.0 + ROUND_TRIP_MS
    assert incremental(CHANGE) == (DEBOUNCE_MS + moved_ms + ROUND_TRIP_MS, [orphan_ms, 0.0, moved_ms, 0.0])
    assert incremental(NO_MOVE) == (orphan_ms, [orphan_ms, 0.0, 0.0, 0.0])


def test_with_kip848_a_partition_waits_for_a_heartbeat_of_the_member_that_gets_it() -> None:
    """In `heartbeat_ms`, forget the interval: b gives partition 2 up after c's heartbeat, which comes again later."""
    # b learns after 100 ms, and gets the partition of a; c gets partition 2 at 2,000 ms
    assert kip848(CHANGE) == (2_005.0, [105.0, 0.0, 2_005.0 - 108.0, 0.0])
    late = replace(CHANGE, heartbeats_ms={"b": 2_500.0, "c": 2_000.0})
    assert kip848(late) == (5_005.0, [2_505.0, 0.0, 5_005.0 - 2_508.0, 0.0])


def test_with_kip848_a_join_takes_a_heartbeat() -> None:
    """As measured: 542 ms with 500 ms, 93 with 50. The new member's next heartbeat comes an interval after its join."""
    join = Change(["b", "b"], ["b", "new"], set(), {"b": 300.0}, {"b": 8.0}, interval_ms=500.0)
    assert kip848(join) == (510.0, [0.0, 510.0 - 308.0])
    assert kip848(join.with_interval(50.0)) == (60.0, [0.0, 60.0 - 38.0])
    takes_over = replace(join, before=["b", "gone"], gone={"gone"})
    assert kip848(takes_over) == (ROUND_TRIP_MS, [0.0, ROUND_TRIP_MS])


def test_the_change_of_one_member_waits_for_nothing() -> None:
    """In `simulate`, let every change wait: after a quiet time, the coordinator begins at once (`Causes.add`)."""
    one, several = (simulate(replace(CELL, churn=churn), 1)["incremental"].settled_ms for churn in (0.0, 0.5))
    assert one < DEBOUNCE_MS < several


def test_results_depend_on_the_seed_alone() -> None:
    assert simulate(CELL, 1) == simulate(CELL, 1)
    assert simulate(CELL, 1) != simulate(CELL, 2)
    assert simulate(CELL, 1) != simulate(replace(CELL, repeat=1), 1)


def test_all_strategies_see_the_same_changes() -> None:
    settled_ms = {simulate(replace(CELL, strategy=name), 1)["eager"].settled_ms for name in ("sticky", "range")}
    assert len(settled_ms) == 1


def test_strategies_show_their_known_strengths() -> None:
    costs = {name: simulate(replace(CELL, strategy=name), 1)["eager"] for name in ("sticky", "round_robin", "balanced")}
    assert costs["sticky"].moved < costs["round_robin"].moved
    assert costs["balanced"].peak < costs["sticky"].peak
    assert all(cost.peak >= 1 for cost in costs.values())


def test_all_members_may_leave() -> None:
    costs = simulate(replace(CELL, churn=1.0, members=1), 1)
    assert costs["eager"].unowned_partition_s > 0


@pytest.mark.parametrize("partitions", [1, 3])
def test_partitions_may_be_fewer_than_members(partitions: int) -> None:
    assert simulate(replace(CELL, partitions=partitions), 1)["incremental"].peak >= 1
