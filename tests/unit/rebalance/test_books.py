"""What a leader keeps beside its decisions: figures, times, reasons, the last transitions, problems of nodes."""

from __future__ import annotations

import itertools

import pytest

from tests.support.groups import events, world_with
from tests.support.world import GROUP
from zkrebalancer.protocol.command import Cause, Command, StartFetcher, StopFetcher
from zkrebalancer.protocol.history import MAX_NAME, MAX_REASONS, Reason, Slowest
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.causes import Request
from zkrebalancer.rebalance.census import count
from zkrebalancer.rebalance.problems import MAX_PROBLEMS_LOGGED, MAX_SHOWN, Problems
from zkrebalancer.rebalance.rubbish import ENTRIES_PER_SLICE, Rubbish
from zkrebalancer.rebalance.scheduler import Scheduler
from zkrebalancer.rebalance.states import GroupState, InvalidTransitionError
from zkrebalancer.rebalance.story import MAX_STORY_LINES, Story
from zkrebalancer.rebalance.timing import Timing

CAUSE = Cause("c", "member-joined")


def stop(name: str) -> Command:
    return StopFetcher(name, 1, 1, CAUSE, None)


def start(name: str) -> Command:
    return StartFetcher(name, 1, 1, CAUSE, {})


# ---- figures


def test_the_figures_of_a_group_that_moves_and_of_one_that_is_settled() -> None:
    world = world_with(GroupSettings(), "a", "b", partitions=5)
    world.agents["a"].silent = True
    world.add_agent("c")
    world.set_topic("unread", 7)
    world.pass_time(1_500)
    group = world.leader().machine.groups[GROUP]
    moving = count(group, world.now_us)
    assert (moving.group, moving.state) == (GROUP, GroupState.MOVING)
    assert moving.age_s == pytest.approx(1.5, abs=0.1)
    assert (moving.members, moving.partitions, moving.pending_commands) == (3, 5, 1)
    assert moving.looks == 1 + 3 + 1
    assert moving.line() == (
        f"group {GROUP}: moving for {moving.age_s:.1f} s, generation {moving.generation},"
        f" 3 members, 5 partitions, {moving.unowned} of them without an owner, 1 pending commands"
    )
    world.agents["a"].silent = False
    world.pass_time(2_000)
    settled = count(group, world.now_us)
    assert (settled.state, settled.unowned, settled.pending_commands) == (GroupState.IDLE, 0, 0)
    assert settled.generation == world.generation()
    assert count(group, settled.since_us - 1).age_s == 0


def test_partitions_that_no_member_holds_are_counted_without_those_of_deleted_topics() -> None:
    world = world_with(GroupSettings(frozen=True), "a", partitions=4)
    world.agents["a"].silent = True
    world.set_topic("t", 6)
    world.pass_time(1_000)
    group = world.leader().machine.groups[GROUP]
    held = len(world.owned()["a-1"])
    pending = sum(len(member.pending) for member in group.view.members.values())
    assert (count(group, world.now_us).partitions, pending) == (6, 1)
    assert count(group, world.now_us).unowned == 6 - held - 2  # two are on their way
    world.delete_topic("t")
    world.pass_time(1_000)
    assert (count(group, world.now_us).partitions, count(group, world.now_us).unowned) == (0, 0)


# ---- times


def test_the_time_of_stops_and_starts_is_from_the_first_to_the_last_acknowledgement() -> None:
    timing = Timing()
    assert (timing.span_ms(of_stops=True), timing.span_ms(of_stops=False), timing.slowest) == (None, None, None)
    timing.sent(stop("1"), 1_000)
    timing.sent(stop("2"), 2_000)
    timing.acknowledged("a", stop("1"), 5_000)
    timing.sent(start("3"), 6_000)
    assert (timing.span_ms(of_stops=True), timing.span_ms(of_stops=False)) == (4.0, None)
    timing.acknowledged("b", stop("2"), 6_000)
    timing.acknowledged("c", start("3"), 9_500)
    assert (timing.span_ms(of_stops=True), timing.span_ms(of_stops=False)) == (5.0, 3.5)
    assert timing.slowest == Slowest("a", 4.0)  # b took as long, and was later


def test_only_commands_of_this_plan_count_and_each_once() -> None:
    timing = Timing()
    timing.acknowledged("a", stop("former"), 1_000)
    timing.sent(stop("1"), 1_000)
    timing.acknowledged("a", stop("1"), 2_000)
    timing.acknowledged("a", stop("1"), 9_000)
    assert (timing.span_ms(of_stops=True), timing.slowest) == (1.0, Slowest("a", 1.0))


# ---- reasons


def test_the_first_reasons_are_named_and_all_are_counted() -> None:
    request = Request(CAUSE, 0, 0)
    for number in range(MAX_REASONS + 2):
        request.add(Reason("member-joined", f"{number}"))
    assert request.count == MAX_REASONS + 2
    assert request.reasons == [Reason("member-joined", f"{number}") for number in range(MAX_REASONS)]


def test_a_long_name_is_cut_and_no_name_stays_none() -> None:
    request = Request(CAUSE, 0, 0)
    request.add(Reason("topic-created", "x" * (MAX_NAME + 1), "eve@ops1"))
    request.add(Reason("retry"))
    assert request.reasons == [Reason("topic-created", "x" * MAX_NAME, "eve@ops1"), Reason("retry")]


def test_changes_wait_for_a_quiet_time_and_no_longer_than_the_cap() -> None:
    """In `Causes.add`, forget the cap; in `Causes.begin`, ask for the debounce at once."""
    world = world_with(GroupSettings(rebalance_debounce_ms=100, rebalance_debounce_cap_ms=250), "a", partitions=40)
    world.pass_time(10_000)
    planned = len(events(world, "rebalance_planned"))

    def plans() -> int:
        return len(events(world, "rebalance_planned")) - planned

    world.add_agent("b0")
    world.run()
    assert plans() == 1  # it was quiet
    for number in range(1, 5):  # at 60, 120, 180 and 240 ms
        world.pass_time(60)
        world.add_agent(f"b{number}")
        world.run()
        assert plans() == 1
    world.pass_time(69)
    assert plans() == 1
    world.pass_time(1)  # 250 ms after the first of them
    assert plans() == 2


# ---- transitions, problems


def test_a_story_has_the_last_transitions_and_since_when_the_state_lasts() -> None:
    story = Story("g")
    story.go(GroupState.LOADING, 500_000, "leader-elected")
    story.go(GroupState.LOADING, 700_000, "again")
    assert story.since_us == 500_000
    story.go(GroupState.QUEUED, 1_500_000, "member-joined")
    assert (story.state, story.since_us) == (GroupState.QUEUED, 1_500_000)
    assert story.lines()[-1] == "1.500000 loading -> queued: member-joined"
    for number in range(2 * MAX_STORY_LINES):
        story.go(GroupState.LOADING, 2_000_000 + number, "again")
    assert len(story.lines()) == MAX_STORY_LINES


def test_an_illegal_transition_is_an_error_that_tells_the_story() -> None:
    story = Story("g")
    story.go(GroupState.QUEUED, 1_000_000, "member-joined")
    with pytest.raises(InvalidTransitionError) as raised:
        story.go(GroupState.IDLE, 2_000_000, "too early")
    assert str(raised.value).splitlines() == [
        "group g:",
        "1.000000 loading -> queued: member-joined",
        "2.000000 queued -> idle: too early",
    ]


def test_of_many_problems_of_a_place_the_first_are_told_and_all_are_counted() -> None:
    problems = Problems()
    problems.add("ids", "first")
    for number in range(MAX_SHOWN):
        problems.add("owners", f"{number}")
    assert problems.lines() == ["first", *map(str, range(MAX_SHOWN))]
    problems.add("owners", "hidden")
    assert problems.lines()[-1] == "owners: 1 more problems"
    assert problems.logged() == [
        *["first", *map(str, range(MAX_SHOWN))][:MAX_PROBLEMS_LOGGED],
        f"{MAX_SHOWN + 2 - MAX_PROBLEMS_LOGGED} more nodes cannot be read",
    ]
    few = Problems()
    for number in range(MAX_PROBLEMS_LOGGED):
        few.add("ids", f"{number}")
    assert few.logged() == list(map(str, range(MAX_PROBLEMS_LOGGED)))


def test_large_containers_are_emptied_in_portions_that_leave_others_their_turn() -> None:
    """In `Rubbish._free`, empty everything in one step."""
    scheduler = Scheduler()
    large = dict.fromkeys(range(30 * ENTRIES_PER_SLICE + 1))
    small = [1, 2, 3]
    Rubbish(scheduler).add(large, small)
    assert not small  # the last one first
    steps = [len(large)]
    while large:
        scheduler.take_effects()
        at_us = scheduler.next_deadline_us()
        assert at_us is not None
        scheduler.now = type(scheduler.now)(at_us, 0)
        scheduler.run_next_due()
        steps.append(len(large))
    assert len(steps) >= 3
    assert max(before - after for before, after in itertools.pairwise(steps)) <= 10 * ENTRIES_PER_SLICE
    assert scheduler.next_deadline_us() is None
