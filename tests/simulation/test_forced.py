"""Regions of unmodified clients in virtual time: each record is in one state, once, wherever Kafka moves partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.mutations.editing import Edit, edited
from tests.simulation.forced import FAULTS, ForcedRun
from tests.support import examples
from zkrebalancer.region.states import InvalidTransitionError

SEEDS = examples.count() // 3
DEAF_US = 15_000_000
BUGS = {
    "a revocation resets nobody": (
        Edit("Member.revoked", "if self.state is not RegionState.RECORDS_FETCHED:", "if True:"),
        2,
    ),
    "an assignment is placed where the last merge that the member knows says": (
        Edit("Member._read_merge", "self.last_merge.id == order.complete", "True"),
        1,
    ),
    "a reset during a reset is swallowed": (
        Edit("Member.advance", "order.reset > self.done", "self.state is not RegionState.RESET_COMPLETE"),
        0,
    ),
    "a client that comes back stays where it was": (
        Edit("Member._be_admitted", 'self.settings.recovery == "forced"', "False"),
        29,
    ),
    "records flow although a reset was asked for": (
        Edit("Member.begin_records", "if self.state is RegionState.RESET_PENDING:", "if False:"),
        7,
    ),
}


@pytest.mark.drawn
def test_no_records_effect_is_lost_or_doubled_in_a_classic_group() -> None:
    seen = Counter[str]()
    for seed in range(SEEDS):
        run = ForcedRun(seed)
        run.run()
        seen += run.seen
    assert seen["checkpoints"] > SEEDS
    assert seen["records"] > 500 * SEEDS
    assert seen.keys() - {"grow", "reset-initial"} >= FAULTS.keys() - {"grow", "reset-initial"}


def test_two_clients_that_read_one_partition_complete_no_checkpoint() -> None:
    """Kafka has expelled one of them, which hears of it late: both process the same records, to the same offset."""
    assert not _doubles()


def test_two_clients_that_read_one_partition_would_complete_one_if_only_offsets_were_compared() -> None:
    with edited((Edit("Answers.union", "(is_alone and was_alone)", "False"),)):
        assert _doubles()


def _doubles() -> bool:
    run = ForcedRun(5, faults=0)
    run.step_until(lambda: run.seen["checkpoints"] > 1)
    expelled = run.members[0].source
    for tp in run.log.ends:
        run.log.ends[tp] += 20
    expelled.deaf_until = run.world.now_us + DEAF_US
    run.kafka.expire(expelled, run.world.now_us)
    return _is_wrong(lambda: run.world.now_us >= expelled.deaf_until, run)


def test_a_member_answers_no_checkpoint_before_it_knows_what_was_revoked() -> None:
    """All others have answered, and its event thread has just given its partitions up."""
    assert not _misses_records()


def test_a_member_that_does_would_count_records_that_the_checkpoint_does_not_name() -> None:
    with edited((Edit("Member._checkpoint", "if self._source.has_given_up:", "if False:"),)):
        assert _misses_records()


def _misses_records() -> bool:
    run = ForcedRun(5, faults=0)
    last = run.members[0]
    run.step_until(lambda: run.seen["checkpoints"] > 1)
    before = last.processed
    run.step_until(lambda: last.processed > before + 20 and last.running is None and not last.in_hand)
    last.frozen_until = run.world.now_us + DEAF_US
    run.ask("checkpoint")
    run.step_until(run.is_nearly_answered)
    last.frozen_until = 0
    run.kafka.rebalance()
    assert last.source.act()
    assert last.source.has_given_up
    last.advance_at_once()
    seen = run.seen["checkpoints"]
    while run.world.move(run.world.leader()):
        pass  # before anybody else hears of it
    return _is_wrong(lambda: run.seen["checkpoints"] > seen, run)


def _is_wrong(is_so: Callable[[], bool], run: ForcedRun) -> bool:
    """Go on without new records until something is so, and then to the end; return whether a checkpoint is wrong."""
    try:
        while not is_so():
            run.step()
        run.run()
    except AssertionError as error:
        return "wanted" in str(error)
    return False


@pytest.mark.parametrize(("edit", "seed"), BUGS.values(), ids=list(BUGS))
def test_deliberate_bugs_are_found(edit: Edit, seed: int) -> None:
    """`seed`: the first that finds the bug."""
    with edited((edit,)):
        assert _fails(seed)


def _fails(seed: int) -> bool:
    try:
        ForcedRun(seed).run()
    except (AssertionError, KeyError, InvalidTransitionError):
        return True
    return False
