"""The checker finds each broken promise, and nothing where none was broken."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.unit.observe.history import History, moved
from zkrebalancer.observe.checker import Fault
from zkrebalancer.observe.reading import MAX_PROBLEMS


def test_a_clean_move_is_fine() -> None:
    verdict = moved().verdict()
    assert verdict.ok
    assert (verdict.produced, verdict.delivered, verdict.lost, verdict.duplicated) == (10, 10, 0, 0)
    assert (verdict.duplicated_outside_crash, verdict.out_of_order, verdict.overlaps) == (0, 0, 0)


# Lost ---------------------------------------------------------------------------------------------------------------


def test_a_record_that_nobody_was_given_is_lost() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).stopped("a", 5).started("b", 6)
    verdict = history.delivered("b", 6, 9).verdict()
    assert verdict.lost == 1
    assert verdict.problems == ("group g, t/0: 1 records lost: offsets 5",)


def test_the_last_records_are_lost_too() -> None:
    assert History().produced(0, 9).started("a", 0).delivered("a", 0, 8).verdict().lost == 1


def test_what_was_produced_before_the_group_began_is_not_missed() -> None:
    verdict = History().produced(0, 9).started("a", 7).delivered("a", 7, 9).verdict()
    assert verdict.ok
    assert verdict.produced == 3


def test_a_partition_that_the_group_never_started_is_not_missed() -> None:
    assert moved().produced(0, 9, partition=1).verdict().ok


def test_each_group_has_to_be_given_every_record() -> None:
    history = moved().add("fetcher_started", group="h", member="c", topic="t", partitions=[0], positions=[0])
    verdict = history.verdict()
    assert (verdict.produced, verdict.delivered, verdict.lost) == (20, 10, 10)


# Overlaps -----------------------------------------------------------------------------------------------------------


def test_two_owners_at_once_are_an_overlap() -> None:
    history = History().produced(0, 0).started("a", 0).delivered("a", 0, 0).started("b", 1).stopped("a", 1)
    verdict = history.verdict()
    assert verdict.overlaps == 1
    assert verdict.problems == ("0.003 s: group g, t/0: b started while a held it, since 0.001 s",)


def test_two_groups_may_have_one_partition_at_once() -> None:
    history = moved().add("fetcher_started", group="h", member="c", topic="t", partitions=[0], positions=[10])
    assert history.verdict().ok


def test_a_dead_consumers_interval_ends_when_the_coordinator_says_so() -> None:
    assert History().produced(0, 0).started("a", 0).delivered("a", 0, 0).ended("a").started("b", 1).verdict().ok


def test_a_lost_consumer_that_notices_late_does_no_harm() -> None:
    history = History().started("a", 0).ended("a").started("b", 0).stopped("a", 0, reason="lost")
    assert history.verdict().ok


def test_starting_twice_without_a_stop_is_a_problem() -> None:
    verdict = History().started("a", 0).started("a", 0).verdict()
    assert verdict.problems == ("0.001 s: group g, t/0: a started what it has held since 0.000 s",)


def test_delivery_without_the_partition_is_a_problem() -> None:
    verdict = moved().produced(10, 10).delivered("a", 10, 10).verdict()
    assert verdict.problems == ("0.008 s: group g, t/0: a was given offsets 10 without holding it",)


def test_delivery_by_somebody_who_never_started_is_a_problem() -> None:
    assert not History().produced(0, 0).delivered("a", 0, 0).verdict().ok


# Twice --------------------------------------------------------------------------------------------------------------


def test_a_second_delivery_after_a_clean_stop_is_inexcusable() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).stopped("a", 4).started("b", 4)
    verdict = history.delivered("b", 4, 9).verdict()
    assert (verdict.duplicated, verdict.duplicated_outside_crash) == (1, 1)
    assert verdict.problems == (
        "0.005 s: group g, t/0: b was given offsets 4-9, of which offsets 4 again without a crash",
    )


def test_a_second_delivery_after_a_crash_is_excused_from_the_committed_offset_on() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).committed("a", 3).ended("a").started("b", 3)
    verdict = history.delivered("b", 3, 9).verdict()
    assert (verdict.duplicated, verdict.duplicated_outside_crash) == (2, 0)
    assert verdict.ok


def test_a_second_delivery_below_the_committed_offset_is_inexcusable_even_after_a_crash() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).committed("a", 3).ended("a").started("b", 2)
    assert history.delivered("b", 2, 9).verdict().duplicated_outside_crash == 1


def test_one_crash_excuses_one_delivery_more_not_two() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 9).ended("a")
    history.started("b", 0).delivered("b", 0, 9).stopped("b", 10).started("c", 0).delivered("c", 0, 9)
    verdict = history.verdict()
    assert (verdict.duplicated, verdict.duplicated_outside_crash) == (20, 10)


def test_a_second_crash_excuses_a_third_delivery() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 9).ended("a")
    history.started("b", 0).delivered("b", 0, 9).ended("b").started("c", 0).delivered("c", 0, 9)
    assert history.verdict().ok


def test_a_lost_session_excuses_as_a_crash_does() -> None:
    history = History().produced(0, 1).started("a", 0).delivered("a", 0, 1).stopped("a", 2, "lost").started("b", 0)
    assert history.delivered("b", 0, 1).verdict().ok


@pytest.mark.parametrize(("reason", "is_excused"), [("expired", True), ("evicted", True), ("closed", False)])
def test_a_stop_counts_unless_its_consumer_died_before_the_acknowledgement(reason: str, is_excused: bool) -> None:
    history = History().produced(0, 4).started("a", 0).delivered("a", 0, 4).committed("a", 3)
    history.stopped("a", 5, "closed" if reason == "closed" else "revoked")
    history.ended("a").left("a", reason).started("b", 3).delivered("b", 3, 4)
    assert history.verdict().ok is is_excused


def test_a_death_after_somebody_else_has_started_excuses_nothing() -> None:
    history = History().produced(0, 4).started("a", 0).delivered("a", 0, 4).stopped("a", 5).started("b", 3)
    history.ended("a").left("a", "expired").delivered("b", 3, 4)
    assert history.verdict().duplicated_outside_crash == 2


def test_a_stop_without_its_ack_is_excused_although_the_successor_starts_before_the_departure_is_told() -> None:
    """It died between writing the stop down and acknowledging it; `member_left` comes when its channel was listed."""
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).stopped("a", 5).ended("a").started("b", 0)
    verdict = history.delivered("b", 0, 9).add("member_left", member="a", reason="expired").verdict()
    assert (verdict.duplicated, verdict.duplicated_outside_crash) == (5, 0)


def test_a_consumer_that_left_in_good_order_excuses_nothing() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).stopped("a", 5, "closed").ended("a")
    assert history.started("b", 0).delivered("b", 0, 9).verdict().duplicated_outside_crash == 5


# Order --------------------------------------------------------------------------------------------------------------


def test_going_back_within_an_interval_is_out_of_order() -> None:
    verdict = History().produced(0, 5).started("a", 0).delivered("a", 3, 5).delivered("a", 0, 2).verdict()
    assert verdict.out_of_order == 1
    assert verdict.problems == ("0.003 s: group g, t/0: a was given offsets 0-2 after later ones",)


def test_gaps_between_offsets_are_in_order() -> None:
    verdict = (
        History().produced(0, 1).produced(4, 5).started("a", 0).delivered("a", 0, 1).delivered("a", 4, 5).verdict()
    )
    assert verdict.ok


# Going on elsewhere ---------------------------------------------------------------------------------------------------


def read_five() -> History:
    return History().produced(0, 9).started("a", 0).delivered("a", 0, 4)


def test_what_is_read_again_because_the_application_went_back_is_no_fault() -> None:
    verdict = read_five().repositioned("a", 2).delivered("a", 2, 9).verdict()
    assert verdict.ok
    assert (verdict.duplicated, verdict.duplicated_outside_crash, verdict.out_of_order) == (3, 0, 0)


def test_going_back_excuses_one_delivery_more_not_two() -> None:
    verdict = read_five().repositioned("a", 2).delivered("a", 2, 4).delivered("a", 3, 9).verdict()
    assert (verdict.duplicated_outside_crash, verdict.out_of_order) == (2, 1)


def test_going_back_excuses_nothing_below_where_it_went() -> None:
    verdict = read_five().repositioned("a", 2).delivered("a", 1, 9).verdict()
    assert (verdict.duplicated_outside_crash, verdict.out_of_order) == (1, 1)


def test_what_the_application_passes_over_is_not_lost_and_was_not_to_be_given() -> None:
    verdict = read_five().repositioned("a", 7).delivered("a", 7, 9).verdict()
    assert verdict.ok
    assert (verdict.produced, verdict.delivered, verdict.lost) == (8, 8, 0)


def test_what_comes_after_where_it_went_is_lost_as_ever() -> None:
    verdict = read_five().repositioned("a", 7).delivered("a", 8, 9).verdict()
    assert (verdict.produced, verdict.delivered, verdict.lost) == (8, 7, 1)


def test_who_does_not_hold_a_partition_excuses_nothing_by_going_elsewhere() -> None:
    verdict = read_five().repositioned("b", 0).delivered("a", 0, 9).verdict()
    assert verdict.duplicated_outside_crash == 5


# The end ------------------------------------------------------------------------------------------------------------


def test_a_partition_without_an_owner_in_a_living_group_is_not_converged() -> None:
    history = History().started("a", 0).started("a", 0, partition=1).stopped("a", 0)
    verdict = history.verdict()
    assert not verdict.converged
    assert verdict.problems == ("group g at the end: 1 of 2 partitions have exactly one owner, with 1 live consumers",)


def test_a_group_whose_consumers_have_all_closed_has_nothing_to_converge_to() -> None:
    assert moved().stopped("b", 10, "closed").verdict().converged


def test_the_last_plan_says_how_many_partitions_should_have_an_owner() -> None:
    assert not moved().planned(3, "c3", partitions=2).verdict().converged
    assert (
        moved()
        .produced(0, 0, 1)
        .started("b", 0, 2, 1)
        .delivered("b", 0, 0, 1)
        .stopped("b", 1, partition=1)
        .planned(3, "c3", partitions=1)
        .verdict()
        .converged
    )


def test_consumers_that_own_nothing_are_missed_only_while_somebody_leads() -> None:
    history = moved().stopped("b", 10).add("member_joined", member="b").add("leader_elected", epoch=1, brokerid=1)
    assert not history.verdict().converged
    assert history.add("leader_resigned", epoch=1, brokerid=1).verdict().converged


def test_a_consumer_that_closed_is_not_alive_even_if_no_leader_noticed() -> None:
    history = moved().add("leader_elected", epoch=1, brokerid=1).left("a", "closed").stopped("b", 10, "closed")
    assert history.verdict().converged


def test_a_partition_with_two_owners_at_the_end_is_not_converged() -> None:
    history = moved().started("c", 10).started("b", 0, partition=1)
    verdict = history.planned(3, "c3", partitions=1).verdict()
    assert verdict.problems[-1].startswith("group g at the end: 1 of 1 partitions")


def test_the_records_of_a_deleted_topic_are_judged_apart_from_those_of_its_successor() -> None:
    history = moved().add("topic_deleted", group=None, topic="t").delivered("b", 0, 3).stopped("b", 10).produced(0, 1)
    verdict = history.started("a", 0).delivered("a", 0, 1).verdict()
    assert verdict.ok
    assert verdict.produced == verdict.delivered == 12


def test_a_record_lost_before_its_topic_was_deleted_is_lost() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 8)
    assert history.add("topic_deleted", group=None, topic="t").stopped("a", 9).verdict().lost == 1


# Rebalances and faults ----------------------------------------------------------------------------------------------


def test_a_rebalance_is_joined_from_its_events() -> None:
    history = History().requested("c1", "member-joined").planned(1, "c1")
    history.add("fetcher_started", cause_id="c1", member="a", topic="t", partitions=[0], positions=[0])
    history.add(
        "fetcher_stopped", cause_id="c1", member="a", topic="t", partitions=[0], positions=[0], reason="revoked"
    )
    history.add("fetcher_started", cause_id="c1", member="b", topic="t", partitions=[0], positions=[0])
    (rebalance,) = history.finished(1, "c1").verdict().rebalances
    assert asdict(rebalance) == {
        "group": "g",
        "generation": 1,
        "mode": "eager",
        "cause": "member-joined",
        "members": 2,
        "partitions": 1,
        "moved": 1,
        "settled_ms": 31.0,
        "pause_ms_max": 1.0,
        "outcome": "finished",
    }


def test_the_pause_is_measured_even_where_the_start_is_written_after_the_end_of_the_plan() -> None:
    history = moved().ended("b").planned(3, "c").finished(3, "c").started("c", 10, generation=3)
    assert history.verdict().rebalances[0].pause_ms_max == 3.0


def test_the_longest_pause_counts() -> None:
    history = moved().started("b", 0, 2, partition=1).stopped("b", 10).committed("b", 10).stopped("b", 0, partition=1)
    history.planned(3, "c").started("c", 10, generation=3).started("c", 0, generation=3, partition=1).finished(3, "c")
    assert history.verdict().rebalances[0].pause_ms_max == 4.0


def test_a_rebalance_without_a_pause_has_paused_for_no_time() -> None:
    assert History().planned(1, "c").finished(1, "c").verdict().rebalances[0].pause_ms_max == 0.0


def test_a_plan_whose_leader_died_is_superseded_by_the_next_one() -> None:
    history = History().planned(1, "c1").planned(2, "c2")
    assert [rebalance.outcome for rebalance in history.verdict().rebalances] == ["superseded", "under way"]


def test_faults_have_their_time_from_the_first_event_on() -> None:
    history = moved().add("fault", group=None, name="kill-leader", target="coordinator-1")
    assert history.verdict().faults == (Fault("kill-leader", "coordinator-1", 0.007),)


def test_kinds_that_prove_nothing_are_passed_over() -> None:
    assert moved().add("something_new").verdict() == moved().verdict()


def test_problems_are_bounded_and_the_rest_is_counted() -> None:
    history = History()
    for number in range(MAX_PROBLEMS + 3):
        history.started("a", 0, partition=number).started("b", 0, partition=number)
    verdict = history.verdict()
    assert len(verdict.problems) == MAX_PROBLEMS + 1
    assert verdict.problems[-1] == "and 4 problems more"
    assert verdict.overlaps == MAX_PROBLEMS + 3
