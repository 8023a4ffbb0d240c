"""Regions in virtual time: each record is in one state, once, whatever dies, freezes or is cut off."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutations.editing import Edit, edited
from tests.simulation.region import FAULTS, RegionRun
from tests.support import examples

SEEDS = examples.count() // 3
BUGS = {
    "a partition that moves during a reset is not sought": (
        (Edit("Member._answer_rest", "self._source.seek(targets)", "pass"),),
        (1,),
    ),
    "all names are enough for a checkpoint": ((Edit("leader._uncovered", "if not uncovered:", "if True:"),), (16,)),
    "a lost member is forgotten": ((Edit("leader._with_members", "open=None, pending=reason", "open=None"),), (1,)),
    "a reset during a reset is swallowed": (
        (Edit("Member.advance", "order.reset > self.done", "self.state is not RegionState.RESET_COMPLETE"),),
        (0,),
    ),
}


def test_no_records_effect_is_lost_or_doubled() -> None:
    seen = Counter[str]()
    for seed in range(SEEDS):
        run = RegionRun(seed)
        run.run()
        seen += run.seen
    assert seen["checkpoints"] > SEEDS
    assert seen["records"] > 500 * SEEDS
    assert seen.keys() - {"grow", "reset-initial"} >= FAULTS.keys() - {"grow", "reset-initial"}


@pytest.mark.parametrize(("edits", "seeds"), BUGS.values(), ids=list(BUGS))
def test_deliberate_bugs_are_found(edits: tuple[Edit, ...], seeds: tuple[int, ...]) -> None:
    """`seeds`: the first that finds the bug."""
    with edited(edits):
        assert any(_fails(seed) for seed in seeds)


def _fails(seed: int) -> bool:
    try:
        RegionRun(seed).run()
    except (AssertionError, KeyError):
        return True
    return False
