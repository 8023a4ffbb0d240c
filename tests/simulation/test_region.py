"""Regions in virtual time: each record is in one state, once, whatever dies, freezes or is cut off."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutations.editing import Edit, edited
from tests.simulation.region import FAULTS, RegionRun
from tests.support import examples
from tests.support.world import GROUP
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Multi, SetContent
from zkrebalancer.region.roles import Phase

SEEDS = examples.count() // 3
BEGINNING = range(0, 120, 4)  # steps of the world, until all members are registered and read
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


def test_a_checkpoint_completes_wherever_a_member_is_cut_off_or_leaves() -> None:
    """The reply to a member's registration, or to anything after it, is lost; some time later another one leaves."""
    for at in BEGINNING:
        _cut_off_and_leave(at)


def _cut_off_and_leave(at: int) -> None:
    run = RegionRun(at, faults=0)
    first, second = run.members[:2]
    for _ in range(at):
        run.step()
    run.step_until(lambda: first.running is not None)
    first.step(run.draw, cut=True)
    run.complete_another()
    run.step_until(lambda: second.is_joined and second.running is None)
    second.member.leave()
    second.phase = Phase.WAIT
    for _ in range(at):
        run.step()
    run.complete_another()
    run.step_until(lambda: second.has_left)


def test_a_registration_that_cannot_be_repeated_stops_all_checkpoints() -> None:
    """As it was: its own registration, whose reply was lost, kept a member out for as long as its session lived."""
    with edited((Edit("Member._create", "_is_refused(created, Refusal.NODE_EXISTS)", "False"),)):
        assert any(_stalls(at) for at in BEGINNING)


def _stalls(at: int) -> bool:
    try:
        _cut_off_and_leave(at)
    except AssertionError as error:
        return "no checkpoint" in str(error)
    return False


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


@pytest.mark.parametrize("what", ["order", "contribution", "request"])
def test_foreign_bytes_stop_neither_the_region_nor_the_group(what: str) -> None:
    """An order is put into quarantine and made anew; a contribution voids its round; a request is deleted."""
    run = RegionRun(3, faults=0)
    zk = run.world.zk
    run.step_until(lambda: run.seen["checkpoints"] >= 2)
    if what == "order":
        zk.perform(Multi((SetContent(paths.region(GROUP, "order"), b"foreign"),)))
    elif what == "request":
        zk.perform(Multi((Create(paths.region(GROUP, "requests", "reset-9"), b"foreign"),)))
    else:
        run.step_until(lambda: (order := run.order()) is not None and order.open is not None)
        order = run.order()
        assert order is not None
        assert order.open is not None
        zk.perform(Multi((Create(paths.region(GROUP, "contributions", f"{order.open.id}/m0.9"), b"foreign"),)))
    run.run()
    assert any(f"/{'contributions' if what == 'contribution' else what}" in text for text in run.world.warnings)
    assert bool(zk.children(paths.quarantine(GROUP))) == (what == "order")
    assert zk.children(paths.region(GROUP, "requests")) == []
    assert run.seen["checkpoints"] > 2
