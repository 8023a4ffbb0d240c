"""The checker finds each kind of violation and reports no false ones."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.unit.observe.history import History, moved
from zkrebalancer.observe.checker import Fault
from zkrebalancer.observe.reading import MAX_PROBLEMS


def test_a_clean_move_passes() -> None:
    verdict = moved().verdict()
    assert verdict.ok
    assert (verdict.produced, verdict.delivered, verdict.lost, verdict.duplicated) == (10, 10, 0, 0)
    assert (verdict.duplicated_outside_crash, verdict.out_of_order, verdict.overlaps) == (0, 0, 0)


# Lost ---------------------------------------------------------------------------------------------------------------


def test_a_record_that_was_never_delivered_is_lost() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).stopped("a", 5).started("b", 6)
    verdict = history.delivered("b", 6, 9).verdict()
    assert verdict.lost == 1
    assert verdict.problems == ("group g, t/0: 1 records lost: offsets 5",)


def test_an_undelivered_last_record_is_lost() -> None:
    assert History().produced(0, 9).started("a", 0).delivered("a", 0, 8).verdict().lost == 1


def test_records_before_the_groups_first_position_are_not_lost() -> None:
    verdict = History().produced(0, 9).started("a", 7).delivered("a", 7, 9).verdict()
    assert verdict.ok
    assert verdict.produced == 3


def test_records_of_a_partition_that_the_group_never_started_are_not_lost() -> None:
    assert moved().produced(0, 9, partition=1).verdict().ok


def test_each_group_must_receive_every_record() -> None:
    history = moved().add("fetcher_started", group="h", member="c", topic="t", partitions=[0], positions=[0])
    verdict = history.verdict()
    assert (verdict.produced, verdict.delivered, verdict.lost) == (20, 10, 10)


# Overlaps -----------------------------------------------------------------------------------------------------------


def test_two_owners_at_once_are_an_overlap() -> None:
    history = History().produced(0, 0).started("a", 0).delivered("a", 0, 0).started("b", 1).stopped("a", 1)
    verdict = history.verdict()
    assert verdict.overlaps == 1
    assert verdict.problems == ("0.003 s: group g, t/0: b started, but a has owned it since 0.001 s",)


def test_two_groups_may_own_a_partition_at_once() -> None:
    history = moved().add("fetcher_started", group="h", member="c", topic="t", partitions=[0], positions=[10])
    assert history.verdict().ok


def test_ownership_ended_closes_a_dead_consumers_interval() -> None:
    assert History().produced(0, 0).started("a", 0).delivered("a", 0, 0).ended("a").started("b", 1).verdict().ok


def test_a_late_stop_of_a_lost_consumer_is_ignored() -> None:
    history = History().started("a", 0).ended("a").started("b", 0).stopped("a", 0, reason="lost")
    assert history.verdict().ok


def test_starting_twice_without_a_stop_is_a_problem() -> None:
    verdict = History().started("a", 0).started("a", 0).verdict()
    assert verdict.problems == ("0.001 s: group g, t/0: a started, but has owned it since 0.000 s",)


def test_delivery_after_a_stop_is_a_problem() -> None:
    verdict = moved().produced(10, 10).delivered("a", 10, 10).verdict()
    assert verdict.problems == ("0.008 s: group g, t/0: a received offsets 10 without owning the partition",)


def test_delivery_without_a_start_is_a_problem() -> None:
    assert not History().produced(0, 0).delivered("a", 0, 0).verdict().ok


def test_events_that_a_process_could_not_write_are_a_problem() -> None:
    """What they say is missing, so nothing else that is found proves anything."""
    history = moved().add("events_dropped", group=None, process="agent-3", dropped_count=14)
    assert history.verdict().problems == (
        "agent-3 dropped 14 events: it could not write them, so their contents are missing",
    )


@pytest.mark.parametrize("reason", ["expired", "evicted"])
def test_a_dead_consumer_may_not_start_again(reason: str) -> None:
    verdict = History().started("a", 0).ended("a", reason).started("a", 0).verdict()
    assert verdict.problems[0] == "0.002 s: group g, t/0: a started after its ownership had ended"


def test_a_suspended_process_of_an_experiment_may_start_again() -> None:
    """Its name stays the same."""
    assert History().started("a", 0).ended("a", "frozen").started("a", 0).verdict().ok


def test_an_owner_that_has_left_is_none() -> None:
    """Nothing says that its partitions became free, so at the end nobody reads them."""
    verdict = moved().left("b", "expired").verdict()
    assert verdict.problems == ("group g at the end: b owns partitions, and has left",)
    assert not verdict.converged


def test_a_record_under_an_older_generation_is_a_problem() -> None:
    """A sink that refuses older generations would have accepted it."""
    history = History().produced(0, 9).started("a", 0, generation=4).delivered("a", 0, 4, generation=4).ended("a")
    verdict = history.committed("a", 5).started("b", 5, generation=3).delivered("b", 5, 9, generation=3).verdict()
    assert verdict.problems == ("0.006 s: group g, t/0: b received offsets 5-9 under generation 3, after a higher one",)


def test_events_without_a_generation_hide_no_older_one() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4, generation=4)
    verdict = history.delivered("a", 5, 5, generation=None).delivered("a", 6, 9, generation=3).verdict()
    assert len(verdict.problems) == 1


def test_every_record_under_an_older_generation_is_a_problem() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4, generation=4)
    verdict = history.delivered("a", 5, 5, generation=2).delivered("a", 6, 9, generation=3).verdict()
    assert len(verdict.problems) == 2


def test_the_generations_of_a_deleted_topic_do_not_count() -> None:
    history = History().started("a", 0).delivered("a", 0, 4, generation=4).add("topic_deleted", topic="t").ended("a")
    assert history.produced(0, 4).started("b", 0).delivered("b", 0, 4, generation=1).verdict().ok


def test_an_interrupt_may_not_skip_records() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).repositioned("a", 7, reason="interrupt")
    verdict = history.delivered("a", 7, 9).verdict()
    assert verdict.problems == ("0.003 s: group g, t/0: a skipped offsets 5-6 because of an interrupt",)


def test_an_interrupt_returns_records_again() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).repositioned("a", 0, reason="interrupt")
    assert history.delivered("a", 0, 9).verdict().ok


@pytest.mark.parametrize(
    ("found", "is_ok"),
    [((5, 8, 10), True), ((5, 0, 4), True), ((5, 0, 5), False), ((5, 5, 10), False), (None, False)],
)
def test_a_reset_needs_an_offset_that_kafka_does_not_have(found: tuple[int, int, int] | None, is_ok: bool) -> None:
    """It excuses the records that it skips."""
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4)
    if found is not None:
        history.out_of_range("a", *found)
    verdict = history.repositioned("a", 8, reason="reset").delivered("a", 8, 9).verdict()
    assert verdict.ok is is_ok


def test_one_missing_offset_is_a_reason_for_one_reset() -> None:
    history = History().produced(0, 9).started("a", 0).out_of_range("a", 0, 4, 10).repositioned("a", 4, reason="reset")
    verdict = history.delivered("a", 4, 5).repositioned("a", 8, reason="reset").delivered("a", 8, 9).verdict()
    assert verdict.problems == ("0.005 s: group g, t/0: a was reset to 8, though Kafka had its offset",)


# Repeats ------------------------------------------------------------------------------------------------------------


def test_a_repeat_after_a_clean_stop_is_forbidden() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).stopped("a", 4).started("b", 4)
    verdict = history.delivered("b", 4, 9).verdict()
    assert (verdict.duplicated, verdict.duplicated_outside_crash) == (1, 1)
    assert verdict.problems == (
        "0.005 s: group g, t/0: b received offsets 4-9, of which offsets 4 again without a crash",
    )


def test_a_repeat_after_a_crash_is_allowed_from_the_committed_offset_on() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).committed("a", 3).ended("a").started("b", 3)
    verdict = history.delivered("b", 3, 9).verdict()
    assert (verdict.duplicated, verdict.duplicated_outside_crash) == (2, 0)
    assert verdict.ok


def test_a_repeat_below_the_committed_offset_is_forbidden_even_after_a_crash() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).committed("a", 3).ended("a").started("b", 2)
    assert history.delivered("b", 2, 9).verdict().duplicated_outside_crash == 1


def test_a_commit_of_another_consumer_says_nothing_of_one_that_has_stopped() -> None:
    """In `PartitionHistory.commit`, take it for one of the owner before."""
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).committed("a", 3).stopped("a", 5)
    history.committed("b", 5).ended("a").started("c", 3).delivered("c", 3, 9)
    assert history.verdict().duplicated_outside_crash == 0


def test_one_crash_allows_one_repeat_not_two() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 9).ended("a")
    history.started("b", 0).delivered("b", 0, 9).stopped("b", 10).started("c", 0).delivered("c", 0, 9)
    verdict = history.verdict()
    assert (verdict.duplicated, verdict.duplicated_outside_crash) == (20, 10)


def test_a_second_crash_allows_a_second_repeat() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 9).ended("a")
    history.started("b", 0).delivered("b", 0, 9).ended("b").started("c", 0).delivered("c", 0, 9)
    assert history.verdict().ok


def test_a_lost_session_allows_repeats_like_a_crash() -> None:
    history = History().produced(0, 1).started("a", 0).delivered("a", 0, 1).stopped("a", 2, "lost").started("b", 0)
    assert history.delivered("b", 0, 1).verdict().ok


@pytest.mark.parametrize(("reason", "is_allowed"), [("expired", True), ("evicted", True), ("closed", False)])
def test_a_stop_forbids_repeats_unless_the_consumer_died_before_its_ack(reason: str, is_allowed: bool) -> None:
    history = History().produced(0, 4).started("a", 0).delivered("a", 0, 4).committed("a", 3)
    history.stopped("a", 5, "closed" if reason == "closed" else "revoked")
    history.ended("a").left("a", reason).started("b", 3).delivered("b", 3, 4)
    assert history.verdict().ok is is_allowed


@pytest.mark.parametrize(("reason", "forbidden"), [("expired", 0), ("evicted", 0), ("closed", 2)])
def test_a_consumer_that_is_gone_without_a_session_that_ended_has_not_acknowledged(reason: str, forbidden: int) -> None:
    """It held nothing any more, so no ownership ended. In `Run._left`, leave its stop as it is."""
    history = History().produced(0, 4).started("a", 0).delivered("a", 0, 4).committed("a", 3).stopped("a", 5)
    history.left("a", reason).started("b", 3).delivered("b", 3, 4)
    assert history.verdict().duplicated_outside_crash == forbidden


def test_a_death_after_the_next_start_allows_no_repeats() -> None:
    history = History().produced(0, 4).started("a", 0).delivered("a", 0, 4).stopped("a", 5).started("b", 3)
    history.ended("a").left("a", "expired").delivered("b", 3, 4)
    assert history.verdict().duplicated_outside_crash == 2


def test_a_stop_without_ack_allows_repeats_even_if_the_successor_starts_before_member_left() -> None:
    """The consumer died between its stop event and its ack; `member_left` follows once its channel is listed."""
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).stopped("a", 5).ended("a").started("b", 0)
    verdict = history.delivered("b", 0, 9).add("member_left", member="a", reason="expired").verdict()
    assert (verdict.duplicated, verdict.duplicated_outside_crash) == (5, 0)


def test_a_closed_consumer_allows_no_repeats() -> None:
    history = History().produced(0, 9).started("a", 0).delivered("a", 0, 4).stopped("a", 5, "closed").ended("a")
    assert history.started("b", 0).delivered("b", 0, 9).verdict().duplicated_outside_crash == 5


def test_records_that_were_unfinished_when_they_were_given_up_come_once_more() -> None:
    history = History().started("a", 0).delivered("a", 0, 4).repositioned("a", 3, reason="unfinished").stopped("a", 5)
    assert history.started("b", 2).delivered("b", 2, 9).verdict().duplicated_outside_crash == 1


# Order --------------------------------------------------------------------------------------------------------------


def test_going_back_within_an_interval_is_out_of_order() -> None:
    verdict = History().produced(0, 5).started("a", 0).delivered("a", 3, 5).delivered("a", 0, 2).verdict()
    assert verdict.out_of_order == 1
    assert verdict.problems == ("0.003 s: group g, t/0: a received offsets 0-2 after later ones",)


def test_gaps_between_offsets_are_in_order() -> None:
    verdict = (
        History().produced(0, 1).produced(4, 5).started("a", 0).delivered("a", 0, 1).delivered("a", 4, 5).verdict()
    )
    assert verdict.ok


# Repositioning --------------------------------------------------------------------------------------------------------


def read_five() -> History:
    return History().produced(0, 9).started("a", 0).delivered("a", 0, 4)


def test_a_seek_backwards_allows_repeats() -> None:
    verdict = read_five().repositioned("a", 2).delivered("a", 2, 9).verdict()
    assert verdict.ok
    assert (verdict.duplicated, verdict.duplicated_outside_crash, verdict.out_of_order) == (3, 0, 0)


def test_a_seek_backwards_allows_one_repeat_not_two() -> None:
    verdict = read_five().repositioned("a", 2).delivered("a", 2, 4).delivered("a", 3, 9).verdict()
    assert (verdict.duplicated_outside_crash, verdict.out_of_order) == (2, 1)


def test_a_seek_allows_no_repeats_below_its_position() -> None:
    verdict = read_five().repositioned("a", 2).delivered("a", 1, 9).verdict()
    assert (verdict.duplicated_outside_crash, verdict.out_of_order) == (1, 1)


def test_records_skipped_by_a_seek_are_neither_lost_nor_expected() -> None:
    verdict = read_five().repositioned("a", 7).delivered("a", 7, 9).verdict()
    assert verdict.ok
    assert (verdict.produced, verdict.delivered, verdict.lost) == (8, 8, 0)


def test_a_missing_record_after_a_seek_is_lost() -> None:
    verdict = read_five().repositioned("a", 7).delivered("a", 8, 9).verdict()
    assert (verdict.produced, verdict.delivered, verdict.lost) == (8, 7, 1)


def test_after_a_seek_backwards_the_last_commit_counts_not_the_highest() -> None:
    """In `PartitionHistory.commit`, keep the highest offset."""
    history = read_five().committed("a", 5).repositioned("a", 2).committed("a", 2).delivered("a", 2, 9).ended("a")
    verdict = history.started("b", 2).delivered("b", 2, 9).verdict()
    assert (verdict.duplicated, verdict.duplicated_outside_crash) == (11, 0)


def test_a_seek_without_ownership_allows_no_repeats() -> None:
    verdict = read_five().repositioned("b", 0).delivered("a", 0, 9).verdict()
    assert verdict.duplicated_outside_crash == 5


# The end ------------------------------------------------------------------------------------------------------------


def test_a_group_with_an_unowned_partition_and_a_live_consumer_has_not_converged() -> None:
    history = History().started("a", 0).started("a", 0, partition=1).stopped("a", 0)
    verdict = history.verdict()
    assert not verdict.converged
    assert verdict.problems == ("group g at the end: 1 of 2 partitions have exactly one owner, with 1 live consumers",)


def test_two_owners_of_one_partition_do_not_make_up_for_another_without_an_owner() -> None:
    """In `Run._is_converged`, compare the number of owners with that of partitions."""
    history = History().started("a", 0).started("b", 0).started("a", 0, partition=1).stopped("a", 0, partition=1)
    assert not history.verdict().converged


def test_a_leader_that_resigns_late_does_not_end_the_leadership_of_its_successor() -> None:
    """In `Run._resigned`, take every leader's resignation for the present one's."""
    history = History().add("leader_elected", group=None, epoch=1).add("leader_elected", group=None, epoch=2)
    history.add("leader_resigned", group=None, epoch=1).started("a", 0).stopped("a", 0)
    assert not history.verdict().converged  # `a` lives, and has nothing under a leader


def test_a_group_without_consumers_has_converged() -> None:
    assert moved().stopped("b", 10, "closed").verdict().converged


def test_the_last_plan_determines_how_many_partitions_need_an_owner() -> None:
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


def test_without_a_leader_a_consumer_that_owns_nothing_does_not_count_as_live() -> None:
    history = moved().stopped("b", 10).add("member_joined", member="b").add("leader_elected", epoch=1, brokerid=1)
    assert not history.verdict().converged
    assert history.add("leader_resigned", epoch=1, brokerid=1).verdict().converged


def test_a_closed_consumer_is_not_live_even_if_no_leader_noticed() -> None:
    history = moved().add("leader_elected", epoch=1, brokerid=1).left("a", "closed").stopped("b", 10, "closed")
    assert history.verdict().converged


def test_a_group_with_two_owners_of_a_partition_has_not_converged() -> None:
    history = moved().started("c", 10).started("b", 0, partition=1)
    verdict = history.planned(3, "c3", partitions=1).verdict()
    assert verdict.problems[-1].startswith("group g at the end: 1 of 1 partitions")


def test_a_deleted_topics_records_are_judged_apart_from_its_successors() -> None:
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


def test_a_start_event_after_the_end_of_the_plan_still_counts_for_the_pause() -> None:
    history = moved().ended("b").planned(3, "c").finished(3, "c").started("c", 10, generation=3)
    assert history.verdict().rebalances[0].pause_ms_max == 3.0


def test_the_longest_pause_counts() -> None:
    history = moved().started("b", 0, 2, partition=1).stopped("b", 10).committed("b", 10).stopped("b", 0, partition=1)
    history.planned(3, "c").started("c", 10, generation=3).started("c", 0, generation=3, partition=1).finished(3, "c")
    assert history.verdict().rebalances[0].pause_ms_max == 4.0


def test_a_rebalance_without_starts_has_a_pause_of_zero() -> None:
    assert History().planned(1, "c").finished(1, "c").verdict().rebalances[0].pause_ms_max == 0.0


def test_the_next_plan_supersedes_one_whose_leader_died() -> None:
    history = History().planned(1, "c1").planned(2, "c2")
    assert [rebalance.outcome for rebalance in history.verdict().rebalances] == ["superseded", "under way"]


def test_fault_times_count_from_the_first_event() -> None:
    history = moved().add("fault", group=None, name="kill-leader", target="coordinator-1")
    assert history.verdict().faults == (Fault("kill-leader", "coordinator-1", 0.007),)


def test_irrelevant_kinds_are_ignored() -> None:
    assert moved().add("something_new").verdict() == moved().verdict()


def test_problems_are_limited_and_the_rest_is_counted() -> None:
    history = History()
    for number in range(MAX_PROBLEMS + 3):
        history.started("a", 0, partition=number).started("b", 0, partition=number)
    verdict = history.verdict()
    assert len(verdict.problems) == MAX_PROBLEMS + 1
    assert verdict.problems[-1] == "and 4 more problems"
    assert verdict.overlaps == MAX_PROBLEMS + 3
