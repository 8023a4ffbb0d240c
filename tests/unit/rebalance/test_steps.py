"""No step of the coordinator grows with the number of groups: what many groups need is done in slices.

The steps are measured in executed lines of the core, which are the same on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import FrameType

import pytest

from tests.benchmarks import many_groups
from tests.benchmarks.many_groups import Phase
from tests.support.groups import world_with
from tests.support.watched import Watched
from tests.support.world import GROUP
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Delete, Get, Multi
from zkrebalancer.protocol.registration import STATIC, Registration
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance import listing, planning, rubbish, scheduler, timers
from zkrebalancer.rebalance.effects import Now
from zkrebalancer.rebalance.scheduler import Scheduler
from zkrebalancer.rebalance.subscriptions import Subscriptions
from zkrebalancer.rebalance.timers import MAX_ENDED_TIMERS
from zkrebalancer.rebalance.turns import Turns

FEW, MANY = 40, 160
TINY_WORK = 200  # of a step, so that few groups are too many for one
TINY_SLICE = 10
ALLOWED_GROWTH = 1.1


class Lines:
    """Counts the lines of the core that are executed within steps."""

    def __init__(self) -> None:
        self._count = 0
        self._is_within = False

    def clock(self) -> int:
        """Return the count so far; asked before and after each step: tracing what is between steps costs time only."""
        self._is_within = not self._is_within
        sys.settrace(self._trace if self._is_within else None)  # type: ignore[arg-type]
        return self._count

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> object:
        return self._line if "/zkrebalancer/rebalance/" in frame.f_code.co_filename else None

    def _line(self, _frame: FrameType, _event: str, _argument: object) -> object:
        self._count += 1
        return self._line


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    monkeypatch.setattr(many_groups, "size_of", lambda _machine: 0)  # of all objects, in each phase
    before = sys.gettrace()
    yield Lines()
    sys.settrace(before)


def test_four_times_as_many_groups_make_no_step_longer(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Scheduler.forget`, look at all that is awaited; in `TopicListener._notify_groups`, notify all of them.

    In `Listing._go_on`, or in `Rubbish._free`, do all at once.
    """
    monkeypatch.setattr(scheduler, "MAX_WORK_PER_STEP", TINY_WORK)
    monkeypatch.setattr(listing, "NAMES_PER_SLICE", TINY_SLICE)
    monkeypatch.setattr(rubbish, "ENTRIES_PER_SLICE", TINY_SLICE)
    monkeypatch.setattr(timers, "MAX_ENDED_TIMERS", 2)
    few, many = ({phase.name: phase for phase in many_groups.measure(count, FEW, lines.clock)} for count in (FEW, MANY))
    assert few.keys() == many.keys()
    assert _longer(few, many) == {}


def test_four_times_as_many_topics_make_no_step_of_the_listener_longer(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `TopicListener._go_on`, read all of them; in `Planning.look`, resolve all of a pattern."""
    monkeypatch.setattr(scheduler, "MAX_WORK_PER_STEP", TINY_WORK // 2)
    monkeypatch.setattr(listing, "NAMES_PER_SLICE", TINY_SLICE)
    monkeypatch.setattr(rubbish, "ENTRIES_PER_SLICE", TINY_SLICE)
    monkeypatch.setattr(planning, "MAX_LOOKS_PER_STEP", 2 * TINY_SLICE)
    few, many = (
        {phase.name: phase for phase in many_groups.measure_topics(count, lines.clock)} for count in (FEW, MANY)
    )
    assert few.keys() == many.keys()
    assert _longer(few, many) == {}


def _longer(few: Mapping[str, Phase], many: Mapping[str, Phase]) -> dict[str, tuple[float, float, str]]:
    return {
        name: (few[name].longest_ms, each.longest_ms, each.longest_method)
        for name, each in many.items()
        if each.longest_ms > ALLOWED_GROWTH * few[name].longest_ms
    }


def test_a_timer_that_is_moved_again_and_again_is_kept_once() -> None:
    """In `Scheduler.wake`, always push."""
    books, rung = Scheduler(), list[int]()
    for at_us in range(1_000):
        books.wake("g", "reconcile", 1_000 + at_us, rung.append, (at_us,))
        books.wake("h", "reconcile", 1_000 - at_us % 2, rung.append, (-1,))
    assert len(books._heap) < 10
    while (deadline_us := books.next_deadline_us()) is not None:
        books.now = Now(deadline_us, 0)
        books.run_next_due()
    assert (rung, books.now.mono_us) == ([-1, 999], 1_999)


def test_of_many_timers_that_have_ended_a_few_are_cleared_away_at_once() -> None:
    """In `Scheduler.next_deadline_us`, clear all of them away."""
    books, rung = Scheduler(), list[str]()
    for number in range(10 * MAX_ENDED_TIMERS):
        books.wake(f"g-{number}", "reconcile", 1_000, rung.append, ("ended",))
    books.wake("g", "reconcile", 2_000, rung.append, ("due",))
    for number in range(10 * MAX_ENDED_TIMERS):
        books.forget(f"g-{number}")
    left = [len(books._heap)]
    books.now = Now(2_000, 0)
    while books.next_deadline_us() is not None:
        books.run_next_due()
        left.append(len(books._heap))
    assert rung == ["due"]
    assert max(before - after for before, after in pairwise(left)) <= 2 * MAX_ENDED_TIMERS + 1


def test_the_end_of_a_leadership_forgets_what_groups_wait_for_and_nothing_else() -> None:
    """In `Scheduler.forget_all_but`, forget all timers."""
    books, rung = Scheduler(), list[str]()
    for owner in ("/election", "g", "h"):
        books.part(owner).ask(Get("/"), rung.append)
        books.part(owner).wake("retry", 10, rung.append, owner)
    left = books.forget_all_but("/election")
    assert [awaited.owner for awaited in books.awaited.values()] == ["/election"]
    books.now = Now(10, 0)
    while books.next_deadline_us() is not None:
        books.run_next_due()
    assert rung == ["/election"]
    books.forget("/election")
    assert (books.awaited, books.due) == ({}, {})
    assert any(left), "it is left to be freed"


def test_groups_have_their_turns_in_order_and_each_once() -> None:
    turns = Turns()
    turns.extend(["c", "a"], "listed")
    turns.add("b", "retry")
    turns.add("a", "retry")
    turns.remove("c")
    turns.add("c", "again")
    assert (len(turns), "c" in turns, "d" in turns) == (3, True, False)
    assert [turns.next() for _ in range(3)] == [("c", "again"), ("a", "listed"), ("b", "retry")]
    for _ in range(100):
        turns.add("c", "again")
        turns.remove("c")
    assert (len(turns), len(turns._order)) == (0, 1)
    turns.become(["d"], "reconnected")
    turns.add("c", "again")
    assert [turns.next() for _ in range(2)] == [("d", "reconnected"), ("c", "again")]


def test_groups_that_were_listed_and_not_read_when_the_connection_breaks_are_read_afterwards() -> None:
    """In `Coordinator._read_everything`, keep what was listed."""
    lab = many_groups.ManyLab(FEW, 1)
    while len(lab.machine.groups) < FEW // 2:
        lab.step_once()
    assert len(lab.machine.groups_to_load) > 0
    lab.reconnect()
    lab.phase("reconnect")
    assert {name for name, group in lab.machine.groups.items() if group.view.members} == set(lab.names)


def test_a_group_that_is_deleted_and_made_anew_before_it_was_dropped_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Coordinator._groups_listed`, go on to drop what was not listed before."""
    monkeypatch.setattr(scheduler, "MAX_WORK_PER_STEP", 1)
    lab = many_groups.ManyLab(FEW, 1)
    lab.phase("start")
    lab.delete_groups()
    while not lab.machine._to_drop:
        lab.step_once()
    for name in lab.names:
        lab.create_group(name)
    lab.phase("made anew")
    zxids = {name: group.view.created_zxid for name, group in lab.machine.groups.items()}
    assert zxids == {name: lab.zk.nodes[paths.group(name)].created_zxid for name in lab.names}


def test_a_group_that_goes_is_looked_for_in_its_own_topics_only() -> None:
    """In `Subscriptions.forget_group`, look through all topics."""
    known = Subscriptions()
    for number in range(1_000):
        known.add(f"g-{number}", Registration(STATIC, {f"t-{number}": 1}, "", "c", "h", 6_000))
    watched = Watched(known.consumer_groups_per_topic)
    known.consumer_groups_per_topic = watched  # type: ignore[assignment]
    known.forget_group("g-7")
    assert (watched.looks, len(watched), "t-7" in watched) == (0, 999, False)


def test_a_record_of_a_dead_consumer_that_was_deleted_by_hand_is_not_reported() -> None:
    """In `Departures._swept`, keep it among the records."""
    world = world_with(GroupSettings(), "a")
    world.zk.perform(Multi((Delete(paths.given(GROUP, "a-1")),)))
    world.kill_agent(world.agents["a"])
    world.pass_time(10_000)
    assert world.zk.children(paths.channel(GROUP)) == []
    assert world.warnings == []
