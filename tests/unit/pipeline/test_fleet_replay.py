from __future__ import annotations

from dataclasses import asdict, replace

import pandas as pd
import pytest

from zkrebalancer.pipeline.fleet import job
from zkrebalancer.pipeline.fleet.replay import (
    AS_RECORDED,
    SETTINGS,
    Outcome,
    Setting,
    Step,
    central_eager,
    replay,
)
from zkrebalancer.pipeline.sweep.model import DEBOUNCE_MS, ROUND_TRIP_MS, Change

S = 1_000_000
NOW = Setting(AS_RECORDED)
SEED = "1/g"


def joined(at_s: float, name: str, partitions: int = 12, mode: str = "incremental") -> Step:
    return Step(round(at_s * S), name, name.rstrip("0123456789"), joins=True, partitions=partitions, mode=mode)


def left(at_s: float, name: str, silent_s: float = 0.0, partitions: int = 12, mode: str = "incremental") -> Step:
    return replace(joined(at_s, name, partitions, mode), joins=False, silent_us=round(silent_s * S))


def cost(*steps: Step, setting: Setting = NOW) -> Outcome:
    return replay(steps, setting, 0.0, SEED)


THREE = (joined(0, "a"), joined(1, "b"), joined(2, "c"))


def test_the_first_member_and_the_last_to_leave_cost_nothing() -> None:
    assert cost(joined(0, "a"), left(9, "a", silent_s=5)) == Outcome()


def test_a_join_moves_what_the_strategy_moves_and_each_move_costs_a_round_trip() -> None:
    found = cost(joined(0, "a"), joined(1, "b"))
    assert (found.rebalances, found.moved) == (1, 6)
    assert found.unowned_partition_s == pytest.approx(6 * ROUND_TRIP_MS / 1_000)


def test_an_orphan_waits_for_its_start_and_for_the_debounce_if_it_was_not_quiet() -> None:
    """In `_batches`, let every step wait, or none: see `Causes.add`."""
    before, after = cost(*THREE), cost(*THREE, left(60, "c"))
    assert after.unowned_partition_s - before.unowned_partition_s == pytest.approx(4 * ROUND_TRIP_MS / 1_000)
    assert (after.rebalances, after.moved) == (3, before.moved)
    hasty = cost(*THREE, left(60, "c"), left(60.02, "b"))
    waited = (4 * ROUND_TRIP_MS + 6 * (DEBOUNCE_MS + ROUND_TRIP_MS)) / 1_000
    assert hasty.unowned_partition_s - before.unowned_partition_s == pytest.approx(waited)
    assert hasty.rebalances == 4


def test_the_joins_of_one_deployment_are_two_rebalances_as_in_the_coordinator() -> None:
    """In `_batches`, look at the debounce of other settings only."""
    many = (joined(0, "a"), *(joined(60 + number / 1_000, f"b{number}") for number in range(40)))
    kafka = Setting("kafka", protocol="cooperative", heartbeat_ms=3_000)
    assert (cost(*many).rebalances, cost(*many, setting=kafka).rebalances) == (2, 1)


def test_orphans_wait_for_kafkas_round_once() -> None:
    """In `_State.apply`, charge the time until a round begins with every protocol, though the model charges it, too."""
    kafka = Setting("kafka", protocol="cooperative", heartbeat_ms=3_000)
    before, after = cost(*THREE, setting=kafka), cost(*THREE, left(60, "c"), setting=kafka)
    assert after.unowned_partition_s - before.unowned_partition_s <= 4 * (3 + ROUND_TRIP_MS / 1_000)


def test_with_kip848_each_join_is_one_rebalance_and_costs_less_than_with_the_classic_protocols() -> None:
    """In `SETTINGS`, leave out KIP-848: a fleet's page compared this project with Kafka's older protocols only."""
    joins = (joined(0, "a"), *(joined(60 * number, f"b{number}") for number in range(1, 9)))
    by_name = {setting.name: setting for setting in SETTINGS}
    spent = {
        name: cost(*joins, setting=by_name[f"Kafka, {name}"])
        for name in (
            "cooperative, heartbeat 0.5 s",
            "KIP-848, heartbeat 5 s",
            "KIP-848, heartbeat 0.5 s",
            "KIP-848, heartbeat 50 ms",
        )
    }
    classic, slow, tuned, short = (one.unowned_partition_s for one in spent.values())
    assert short < tuned < slow
    assert tuned < classic
    assert {one.rebalances for one in spent.values()} == {8}
    storm = (joined(0, "a"), *(joined(60 + number / 100, f"b{number}") for number in range(10)))
    assert cost(*storm, setting=by_name["Kafka, KIP-848, heartbeat 0.5 s"]).rebalances == 10


def test_a_crash_costs_the_time_since_the_last_sign_of_life_and_half_of_it_with_half_the_session() -> None:
    crash = (*THREE, left(60, "c", silent_s=10))
    clean = cost(*THREE, left(60, "c")).unowned_partition_s
    assert cost(*crash).unowned_partition_s - clean == pytest.approx(4 * 10)
    halved = cost(*crash, setting=Setting("halved", session_share=0.5))
    assert halved.unowned_partition_s - clean == pytest.approx(4 * 5)


def test_a_static_member_that_returns_within_its_grace_moves_nothing_but_its_partitions_wait() -> None:
    restart = (*THREE, left(60, "c"), joined(67, "c1"), left(90, "c1"), joined(94, "c2"))
    static = Setting("static", grace_us=30 * S)
    usual, found, before = cost(*restart), cost(*restart, setting=static), cost(*THREE)
    assert usual.rebalances == before.rebalances + 4
    assert (found.rebalances, found.moved) == (before.rebalances, before.moved)
    assert found.unowned_partition_s - before.unowned_partition_s == pytest.approx(4 * (7 + 4))


def test_a_static_member_that_has_returned_twice_leaves_at_last_with_all_that_it_had() -> None:
    """In `_held`, know it by the name that it had before its last return: it would own its partitions for ever."""
    restarts = (*THREE, left(60, "c"), joined(67, "c1"), left(90, "c1"), joined(94, "c2"))
    static = Setting("static", grace_us=30 * S)
    before, after = (cost(*steps, setting=static) for steps in (restarts, (*restarts, left(200, "c2"))))
    assert after.rebalances == before.rebalances + 1
    assert after.unowned_partition_s - before.unowned_partition_s == pytest.approx(4 * 30, rel=0.01)


def test_a_static_member_that_crashed_is_back_before_its_session_is_over() -> None:
    """In `_returns`, look only at joins after the end: its partitions would move, and wait for the grace as well."""
    crash = (*THREE, joined(53, "c1"), left(60, "c", silent_s=10), left(200, "c1"))
    static = Setting("static", grace_us=30 * S)
    before, found, usual = cost(*THREE), cost(*crash, setting=static), cost(*crash)
    assert (found.rebalances, found.moved) == (before.rebalances + 1, before.moved)  # when it leaves for ever
    assert found.unowned_partition_s - before.unowned_partition_s == pytest.approx(4 * (10 + 30), rel=0.01)
    assert usual.rebalances == before.rebalances + 3


def test_who_joined_or_left_while_a_session_ended_may_be_another_one() -> None:
    """In `_returns`, take the join of the member that ended, or of one that has left since, for its return."""
    static = Setting("static", grace_us=30 * S)
    gone = (*THREE, joined(53, "c1"), left(55, "c1"), left(60, "c", silent_s=10))
    own = (joined(0, "a"), joined(55, "c"), left(60, "c", silent_s=10))
    for steps, waited in ((gone, 3 * 30 + 4 * (10 + 30)), (own, 6 * (10 + 30))):
        assert cost(*steps, setting=static).unowned_partition_s == pytest.approx(waited, rel=0.01)


def test_a_static_member_that_stays_away_costs_the_whole_grace() -> None:
    away = (*THREE, left(60, "c"), joined(91, "c1"))
    found = cost(*away, setting=Setting("static", grace_us=30 * S))
    usual = cost(*away)
    assert found.rebalances == usual.rebalances
    assert found.unowned_partition_s - usual.unowned_partition_s == pytest.approx(4 * 30)


def test_one_return_covers_one_end() -> None:
    two = (joined(0, "a"), joined(1, "c"), joined(2, "c1"), left(60, "c"), left(61, "c1"), joined(62, "c2"))
    found = cost(*two, setting=Setting("static", grace_us=30 * S))
    assert found.unowned_partition_s == pytest.approx(cost(*two[:3]).unowned_partition_s + 4 * 2 + 4 * 30, rel=0.01)


def test_a_debounce_merges_steps_that_follow_each_other_and_makes_orphans_wait() -> None:
    storm = (joined(0, "a"), *(joined(60 + second, f"b{second}") for second in range(5)))
    calm = Setting("calm", debounce_us=5 * S)
    assert (cost(*storm).rebalances, cost(*storm, setting=calm).rebalances) == (5, 2)  # the first one, and all others
    assert cost(*storm, setting=calm).moved < cost(*storm).moved
    leaving = (*THREE, joined(60, "d"), left(61, "c"))
    assert cost(*leaving, setting=calm).unowned_partition_s == pytest.approx(3 * 5, rel=0.1)


def test_a_debounce_hides_no_crash_even_if_all_leave_within_it() -> None:
    ending = (*THREE, left(60, "c", silent_s=10), left(62, "b"), left(64, "a"))
    found = cost(*ending, setting=Setting("calm", debounce_us=5 * S))
    assert found.unowned_partition_s >= 4 * (10 + 4 + 5)


def test_a_debounce_has_a_cap() -> None:
    endless = (joined(0, "a"), *(joined(10 + 4 * number, f"b{number}") for number in range(100)))
    calm = Setting("calm", debounce_us=5 * S)
    assert cost(*endless, setting=calm).rebalances == 9  # the first one, then 396 s in batches of 50 s


def test_partitions_that_are_added_have_no_owner_at_first() -> None:
    grown = (joined(0, "a", 4), joined(1, "b", 4), joined(2, "c", 40))
    assert cost(*grown).unowned_partition_s > 36 * ROUND_TRIP_MS / 1_000


def test_central_eager_stops_everything_until_the_slowest_has_answered() -> None:
    change = Change(["a", "b", "gone"], ["a", "b", "a"], {"gone"}, {}, {"a": 10.0, "b": 30.0})
    settled_ms, pauses_ms = central_eager(change)
    trips = 2 * ROUND_TRIP_MS
    assert pauses_ms == [20.0 + trips, trips, DEBOUNCE_MS + 30.0 + trips]
    assert settled_ms == DEBOUNCE_MS + 30.0 + trips


def test_the_recorded_mode_applies_unless_the_setting_has_one() -> None:
    as_eager = [replace(step, mode="eager") for step in THREE]
    by_name = {setting.name: setting for setting in SETTINGS}
    assert cost(*as_eager).unowned_partition_s > cost(*THREE).unowned_partition_s
    assert cost(*as_eager, setting=by_name["mode=incremental"]) == cost(*THREE)


def test_the_recorded_strategy_applies_unless_the_setting_has_one() -> None:
    """In `_strategy`, always take the default one. One round of `cooperative_sticky` would leave what moves."""
    by_name = {setting.name: setting for setting in SETTINGS}
    as_range = [replace(step, strategy="range") for step in THREE]
    assert cost(*as_range) == cost(*THREE, setting=by_name["strategy=range"]) != cost(*THREE)
    for name in ("cooperative_sticky", "of another program"):
        assert cost(*(replace(step, strategy=name) for step in THREE)) == cost(*THREE)


def test_the_mode_of_a_later_version_is_replayed_as_the_usual_one() -> None:
    """In `_protocol`, require a known mode: one group would end the replay of all."""
    assert cost(*(replace(step, mode="of a later version") for step in THREE)) == cost(*THREE)


def test_members_that_came_before_the_changes_that_are_replayed_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `job._replayer`, forget them: a single client that comes and goes all the time would cost nothing."""
    older = (joined(0, "a"), joined(1, "b"), joined(2, "x"), left(3, "x"))
    newest = [step for at_s in (60, 120, 180) for step in (joined(at_s, f"c{at_s}"), left(at_s + 30, f"c{at_s}"))]
    monkeypatch.setattr(job, "MAX_STEPS", len(newest))
    rows = pd.DataFrame([asdict(step) | {"group": "g", "answer_ms": 0.0} for step in (*older, *newest)])
    found = job._replayer(1)(rows).set_index("setting").loc[AS_RECORDED]
    assert [found[name] for name in ("rebalances", "moved", "steps", "left_out")] == [6, 12, 6, 4]
    assert found["unowned_partition_s"] == pytest.approx(6 * 4 * ROUND_TRIP_MS / 1_000)


def test_who_is_unknown_does_not_return() -> None:
    """In `_return`, compare with None: any member that joins would count as the one that left."""
    restart = [replace(step, client=None) for step in (*THREE, left(60, "c"), joined(67, "c1"))]
    assert cost(*restart, setting=Setting("static", grace_us=30 * S)).rebalances == cost(*restart).rebalances == 4


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_ends_with_the_same_members(setting: Setting) -> None:
    steps = (*THREE, left(60, "b"), joined(70, "b1"), left(300, "b1", silent_s=3), left(600, "c"), left(900, "a"))
    first, second = (replay(steps, setting, 5.0, SEED) for _ in range(2))
    assert first == second
    assert first.unowned_partition_s > 0
