"""Regions in virtual time: each record is in one state, once, whatever dies, freezes or is cut off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.mutations.editing import Edit, edited
from tests.simulation.region import FAULTS, TOPICS, RegionRun
from tests.simulation.region_parts import SimulatedMember
from tests.support import examples
from tests.support.world import GROUP
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Content, Create, Done, Multi, Refusal, Refused, SetContent, Stat
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.rebalance import region_writes
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Initial
from zkrebalancer.region.roles import Phase

MANY = 100  # partitions
SEEDS = examples.count() // 3
BEGINNING = range(0, 120, 4)  # steps of the world, until all members are registered and read
LEAVING_SEEDS = range(6)
BUGS = {
    "a partition that moves during a reset is not sought": (
        (Edit("Member._answer_rest", "self._source.seek(targets)", "pass"),),
        (2,),
    ),
    "all names are enough for a checkpoint": ((Edit("leader._uncovered", "if not uncovered:", "if True:"),), (2,)),
    "a lost member is forgotten": ((Edit("leader._with_members", "open=None, pending=reason", "open=None"),), (1,)),
    "a reset during a reset is swallowed": (
        (Edit("Member.advance", "order.reset > self.done", "self.state is not RegionState.RESET_COMPLETE"),),
        (0,),
    ),
    "partitions without a holder are in no merge": (
        (Edit("RegionWrites._merge", "merged(answers, before, unheld, marks)", "merged(answers, before, {}, marks)"),),
        (0,),
    ),
    "partitions without a holder are merged where they were before": (
        (Edit("RegionWrites._merge", "if not is_forced:", "if False:"),),
        (3,),
    ),
    "partitions without a holder are reset to their beginning": (
        (Edit("RegionWrites._place", "offsets.get(tp, initial.offset)", "initial.offset"),),
        (0,),
    ),
    "partitions without a holder stay where they are in a reset": (
        (Edit("RegionWrites._place", "elif stored.content != content:", "elif False:"),),
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
    with edited((Edit("Member._create", "is_refused(created, Refusal.NODE_EXISTS)", "False"),)):
        assert any(_stalls(at) for at in reversed(BEGINNING))  # a late one does


def _stalls(at: int) -> bool:
    try:
        _cut_off_and_leave(at)
    except AssertionError as error:
        return "no checkpoint" in str(error)
    return False


def test_a_new_leader_completes_no_checkpoint_of_a_former_one() -> None:
    """In `Region.look`, ignore `_opened_us`: what moved before is unknown, and parts of a merge may be stored."""
    run = RegionRun(5, faults=0)
    run.step_until(lambda: (order := run.order()) is not None and order.open is not None)
    former = run.order()
    assert former is not None
    assert former.open is not None
    run.world.kill_coordinator(run.world.leader())
    run.complete_another()
    after = run.order()
    assert after is not None
    assert (after.complete or 0) > former.open.id
    reasons = [event.fields["reason"] for event in run.world.events if event.kind == "region_checkpoint_abandoned"]
    assert "its leader did not complete it" in reasons


@pytest.mark.parametrize("stored", range(1, 6))
def test_a_leader_that_dies_between_two_writes_of_a_merge_costs_that_checkpoint_only(stored: int) -> None:
    """Between any two pieces, and between the last of them and the order; the next one deletes the pieces."""
    run = RegionRun(5, faults=0, limit=RequestLimit(max_bytes=2_000))
    run.moves = 1
    run.step_until(lambda: run.seen["checkpoints"] > 0)

    def pieces() -> list[str]:
        order = run.order()
        number = None if order is None or order.open is None or order.is_resetting else order.open.id
        return [name for name in run.world.zk.children(paths.region(GROUP, "merged")) if name.startswith(f"{number}.")]

    run.step_until(lambda: len(pieces()) == stored)
    torn = pieces()
    run.world.kill_coordinator(run.world.leader())
    run.world.add_coordinator(limit=RequestLimit(max_bytes=2_000))
    run.moves = 6
    run.complete_another()
    run.step_until(lambda: (order := run.order()) is not None and order.open is None)
    assert not set(torn) & set(run.world.zk.children(paths.region(GROUP, "merged")))


def test_no_checkpoint_is_opened_in_vain_while_an_evicted_member_may_read_on() -> None:
    """In `Region._is_quiet`, forget `evicted`: every member would store a copy, for a round that cannot be complete."""
    run = RegionRun(7, faults=0)
    run.step_until(lambda: run.seen["checkpoints"] > 0)
    run.members[0].frozen_until = run.world.now_us + 20_000_000
    run.members[0].source.subscribe(TOPICS[:1])
    run.step_until(lambda: bool(run.world.zk.children(paths.evicted(GROUP))))
    run.configure(frozen=True)  # so that nothing waits for its partitions
    while run.world.zk.children(paths.evicted(GROUP)):
        run.ask("checkpoint")
        for _ in range(50):
            run.step()  # which checks it
    run.members[0].frozen_until = 0
    run.run()


def test_a_reset_places_partitions_again_that_had_a_holder_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Region._confirm`, forget the generation: the short holder has stored the offset before the reset again."""
    monkeypatch.setattr(region_writes, "MAX_AT_ONCE", 1)  # so that a plan fits in
    run = RegionRun(5, faults=0)
    some, others = ([(topic, number) for number in range(MANY)] for topic in ("u", "v"))
    for topic in ("u", "v"):
        run.world.set_topic(topic, MANY)
    run.log.ends |= dict.fromkeys([*some, *others], 20)
    for member in run.members:
        member.source.subscribe(["t", "u", "v"])
    run.step_until(lambda: all(run.offset(tp) >= 20 for tp in [*some, *others]))
    for member in run.members:
        member.source.subscribe(["t"])
    run.step_until(lambda: not any(run.holder(tp) for tp in [*some, *others]))
    run.ask("reset-initial")
    run.step_until(lambda: run.offset(some[1]) == 0)
    holder = run.members[0]
    holder.source.subscribe(["t", "u"])
    _step_without(run, holder, lambda: any(holder.source.positions.get(tp) for tp in some))
    _step_without(run, holder, lambda: run.offset(some[-1]) == 0)
    holder.source.subscribe(["t"])
    _step_without(run, holder, lambda: not any(run.holder(tp) for tp in some))
    assert run.offset(others[-1]) > 0  # the leader has not placed all yet
    run.step_until(lambda: (order := run.order()) is not None and order.open is None)
    assert {run.offset(tp) for tp in [*some, *others]} == {0}


def test_initial_offsets_of_deleted_topics_are_removed_but_not_those_of_the_next_one_of_that_name() -> None:
    """In `RegionWrites._gone_read`, delete whatever version is there: a member has stored it for the new topic."""
    run = RegionRun(5, faults=0)
    path = paths.region(GROUP, "initial", "u")
    run.step_until(lambda: len(run.world.zk.children(path)) == 2)
    run.delete_topic("u")
    run.moves = 1
    session = run.world.leader().session
    run.step_until(lambda: any(f"{path}/0" in str(call) and "Delete" in str(call) for _, call in session.sent))
    run.world.zk.perform(Multi((SetContent(f"{path}/0", documents.encode_initial(Initial(7, "id-2"))),)))
    run.world.set_topic("u", 2, "id-2")
    run.complete_another()
    assert documents.decode_initial(run.world.zk.nodes[f"{path}/0"].content).offset == 7
    run.delete_topic("u")
    run.step_until(lambda: path not in run.world.zk.nodes)
    assert run.world.zk.children(paths.region(GROUP, "initial", "t")) != []


def _step_without(run: RegionRun, blind: SimulatedMember, is_so: Callable[[], bool]) -> None:
    """Let everybody go on, but a member only with its consumer: it does not see the region's orders."""
    for _ in range(1_000):
        if is_so():
            return
        leader = run.world.leader()
        if leader.computing:  # it is not kept waiting by the calls
            run.world.compute(leader)
        run.world.move(leader)
        for member in run.members:
            if member is not blind:
                member.step(run.draw)
            if not member.source.let_arrive():
                member.source.act(within_poll=True)
        run.world.now_us += 50_000
        run.world.tick()
    raise AssertionError("not reached")


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


def test_an_order_that_was_read_without_a_sync_places_nothing() -> None:
    """In `Member.place`, do not look at the sync: who had the partitions before may have left with a later one."""
    run = RegionRun(5, faults=0)
    run.step_until(lambda: (order := run.order()) is not None and bool(order.complete) and order.open is None)
    stored = Content(run.world.zk.nodes[paths.region(GROUP, "order")].content, Stat(0, 0, 0, 0))
    steps = run.members[0].member.place([("t", 0)])
    assert next(steps)
    with pytest.raises(StopIteration) as ended:
        steps.send([Refused(Refusal.NOT_ALLOWED), stored])
    assert ended.value.value is None
    steps = run.members[0].member.place([("t", 0)])
    assert next(steps)
    assert steps.send([Done(), stored]), "the merge is read"


def test_a_member_that_dies_as_soon_as_it_has_left_leaves_its_offsets_behind() -> None:
    """Nobody is reset. The next owners begin at the group's offsets, and the last copy counts."""
    assert not any(_is_wrong_after_leaving(seed) for seed in LEAVING_SEEDS)


def test_its_records_would_count_twice_if_it_stored_them_after_it_has_left() -> None:
    with edited((Edit("Member._checkpoint", "self._source.store()", "True"),)):
        assert any(_is_wrong_after_leaving(seed) for seed in LEAVING_SEEDS)


def _is_wrong_after_leaving(seed: int) -> bool:
    run = RegionRun(seed, faults=0)
    leaver = run.members[0]
    leaver.dies_when_it_has_left = True
    run.step_until(lambda: run.seen["checkpoints"] > 1)
    before = leaver.processed
    run.step_until(lambda: leaver.processed > before + 20 and leaver.running is None)
    leaver.member.leave()
    leaver.phase = Phase.WAIT
    run.step_until(lambda: leaver.has_left)
    try:
        run.run()
    except AssertionError:
        return True
    return False
