"""The hostile profile: every promise holds whatever ZooKeeper refuses, holds or loses."""

from __future__ import annotations

import pytest

from tests.simulation import limits
from tests.simulation.__main__ import STORY_LINES, tell
from tests.simulation.plan import HOSTILE_WEIGHTS, TINY_LIMITS, Fault, Plan, Scenario, make_plan
from tests.simulation.run import run
from tests.simulation.shrink import shrink
from tests.support import examples

SEEDS = examples.count() // 3


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_promise_holds_in_a_hostile_world(seed: int) -> None:
    _result, failure = run(make_plan(seed, HOSTILE_WEIGHTS))

    assert failure is None, "\n".join(tell(shrink(failure), STORY_LINES))


def test_to_give_up_what_nobody_reads_needs_no_approval() -> None:
    """The only member unsubscribes from a topic while each move needs an approval."""
    faults = (
        Fault(3_557_867, "reset_offsets", 467510838),
        Fault(4_689_579, "configure", 3482833800),
        Fault(4_881_151, "resubscribe", 775242805),
    )
    _result, failure = run(Plan(100_134, Scenario.CHAOS, 2, 1, faults, is_hostile=True, limits=(("MAX_STARTS", 2),)))

    assert failure is None, failure.text


def test_a_member_that_may_not_be_evicted_does_not_stop_an_eager_group() -> None:
    """In `Moving.pass_over`, return: the others wait for its stop."""
    faults = Fault(1_168_604, "deny_place", 3508492327), Fault(4_637_779, "configure", 2009491077)
    limits = ("MAX_DELETES_PER_TRANSACTION", 2), ("MAX_STARTS", 2), ("MAX_OPERATIONS", 2)
    _result, failure = run(Plan(200_091, Scenario.CHAOS, 2, 2, faults, is_hostile=True, limits=limits))

    assert failure is None, failure.text


def test_a_member_whose_hidden_stop_is_answered_gets_a_share_again() -> None:
    """In `Moving.owners_read`, request no plan: what it has released was assigned by the next reconciliation only."""
    faults = (
        Fault(1_268_435, "deny_place", 3190273646),
        Fault(2_228_459, "deny_group", 3441039260),
        Fault(10_110_662, "block_application", 2732127668),
        Fault(10_151_133, "deny_pair", 3982510977),
        Fault(11_026_828, "deny_pair", 1787154769),
        Fault(11_357_034, "deny_pair", 656286039),
    )
    limits = (
        ("MAX_LOOKS_PER_STEP", 2),
        ("MAX_VACANT", 2),
        ("SURE_TO_FIT", 2),
        ("MAX_OPERATIONS", 2),
        ("MAX_OFFSET_READS", 2),
    )
    _result, failure = run(Plan(200_293, Scenario.CHAOS, 2, 2, faults, is_hostile=True, limits=limits))

    assert failure is None, failure.text


@pytest.mark.parametrize("pick", range(2))
def test_settings_that_were_repaired_unseen_are_found(pick: int) -> None:
    """In `Reconciling.read_watched`, read no settings: its plans fail for ever."""
    plan = Plan(7, Scenario.CHAOS, 2, 2, (Fault(2_000_000, "hide_repair", pick),), is_hostile=True)
    _result, failure = run(plan)

    assert failure is None, failure.text


def test_members_are_evicted_although_the_folder_of_evictions_was_deleted() -> None:
    """In `Departures._evicted`, take that for a race."""
    faults = Fault(2_000_000, "delete_place", 22), Fault(2_100_000, "restore_member", 1)
    _result, failure = run(Plan(7, Scenario.CHAOS, 2, 2, faults, is_hostile=True))

    assert failure is None, failure.text


@pytest.mark.parametrize("kind", ["deny_mark", "deny_member"])
@pytest.mark.parametrize("pick", range(4))
def test_a_hidden_node_of_one_topic_or_member_concerns_nothing_else(kind: str, pick: int) -> None:
    """In `expected_refusals`, expect only that it is missing: its group is read for as long as the right is."""
    plan = Plan(7, Scenario.ONE_BAD_NODE, 2, 2, (Fault(0, kind, pick),), is_hostile=True)
    _result, failure = run(plan)

    assert failure is None, failure.text


def test_a_limit_that_is_nowhere_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no module has a limit MAX_NONSENSE"), limits.set_to({"MAX_NONSENSE": 1}):
        pass


def test_every_limit_is_somewhere() -> None:
    with limits.set_to(TINY_LIMITS):
        pass
