"""Thousands of members that come, go, or left something behind are handled in slices. Counted are requests per step."""

from __future__ import annotations

import pytest

from tests.support.groups import world_with
from tests.support.requests import requests
from tests.support.world import GROUP, World
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Children, Create, Delete, Done, Multi
from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.complaints import MAX_REASONS
from zkrebalancer.protocol.ownership import EvictionRecord, OwnersRecord
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance import listing, loading, scheduler
from zkrebalancer.rebalance.departures import Departures
from zkrebalancer.rebalance.effects import Event, Request
from zkrebalancer.rebalance.leases import UNKNOWN_LEASE_MS, lease_wait_us
from zkrebalancer.rebalance.view import GroupView, Member

MANY = 120
PER_STEP = 10
NOTHING = ownership.encode_owners(OwnersRecord(0, None, {}))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a led group whose coordinator's steps are short."""
    monkeypatch.setattr(scheduler, "MAX_WORK_PER_STEP", PER_STEP)
    monkeypatch.setattr(listing, "NAMES_PER_SLICE", PER_STEP)
    monkeypatch.setattr(listing, "WORK_OF_A_SLICE", 1)
    monkeypatch.setattr(loading, "MAX_READS_PER_STEP", PER_STEP)
    return world_with(GroupSettings(), "a")


def requests_per_step(world: World) -> list[list[str]]:
    """Return a list that gets the paths of the requests of each later step of the youngest coordinator."""
    steps: list[list[str]] = []
    machine = world.coordinators[-1].machine
    step = machine.step

    def noting(event: Event, now: object) -> list[object]:
        effects = step(event, now)  # type: ignore[arg-type]
        calls = [one.call for effect in effects for one in requests(effect)]
        steps.append([call.operations[-1].path if isinstance(call, Multi) else call.path for call in calls])
        return list(effects)

    machine.step = noting  # type: ignore[method-assign,assignment]
    return steps


def most(steps: list[list[str]], below: str) -> int:
    return max(sum(path.startswith(below + "/x") for path in step) for step in steps)


def make(world: World, *places: str, content: bytes = NOTHING) -> None:
    for number in range(MANY):
        names = [f"{paths.group(GROUP)}/{place}/x{number}" for place in places]
        world.zk.perform(Multi(tuple(Create(name, content) for name in names)))


def test_thousands_that_join_at_once_are_read_some_per_step(world: World) -> None:
    """In `Membership._ids_listed`, read all newcomers, and all that are gone."""
    steps = requests_per_step(world)
    world.zk.perform(Multi(tuple(Create(paths.ids(GROUP, f"x{number}"), b"0") for number in range(MANY))))
    world.run()
    assert 0 < most(steps, paths.ids(GROUP)) <= PER_STEP
    steps.clear()
    world.zk.perform(Multi(tuple(Delete(paths.ids(GROUP, f"x{number}")) for number in range(MANY))))
    world.run()
    assert most(steps, paths.owners(GROUP)) <= PER_STEP


@pytest.mark.parametrize("place", ["channel", "given"])
def test_what_thousands_left_behind_is_swept_some_per_step(world: World, place: str) -> None:
    """In `Departures.adopt`, yield no work."""
    make(world, place, content=b"" if place == "channel" else ownership.encode_given(frozenset()))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    steps = requests_per_step(world)
    world.run()
    world.pass_time(5_000)
    assert not [path for path in world.zk.nodes if path.startswith(f"{paths.group(GROUP)}/{place}/x")]
    assert 0 < most(steps, paths.channel(GROUP)) <= PER_STEP


def test_the_leases_of_thousands_are_awaited_although_a_step_is_short(world: World) -> None:
    """In `Leases.adopt`, await the lease of the first ones only."""
    make(world, "evicted", content=ownership.encode_eviction(EvictionRecord(1, {}, 5, 4_000)))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(30_000)
    assert not world.zk.children(paths.evicted(GROUP))


@pytest.mark.parametrize(("name", "readable"), [("t{}", True), ("t{}" + "x" * 200, False)])
def test_the_eviction_of_a_member_that_may_hold_anything_fits_into_a_request(name: str, readable: bool) -> None:
    """In `Departures._coarser`, name the topics, however many there are: no eviction would ever be accepted."""
    topics = {name.format(number): Topic(frozenset({0}), "1") for number in range(100)}
    books, view = scheduler.Scheduler(RequestLimit(3_000)), GroupView(GROUP, topics)
    view.members["a"] = Member("a", owners=None, given=None)
    departures = Departures(books.part(GROUP), view, lambda _fact: None)
    departures.evict("a", "what it holds cannot be read")
    (listing_, *_rest) = [effect for effect in books.take_effects() if isinstance(effect, Request)]
    books.answer(listing_.call_id, Children(()))
    (written,) = [effect for effect in books.take_effects() if isinstance(effect, Request)]
    assert isinstance(written.call, Multi)
    assert books.limit.fits(written.call.operations)
    create = written.call.operations[-1]
    assert isinstance(create, Create)
    assert bool(create.content) is readable
    books.answer(written.call_id, Done((None,) * len(written.call.operations)))
    assert not view.is_free_for("b", (next(iter(topics)), 0))
    deadline_us = books.next_deadline_us()
    assert deadline_us is not None
    assert deadline_us >= lease_wait_us(UNKNOWN_LEASE_MS)


def test_thousands_of_names_that_are_none_cost_a_few_lines_and_no_memory(world: World) -> None:
    """In `_is_legal` of topics and groups, log each name once: all would be kept for ever."""
    before = len(world.warnings)
    for number in range(MANY):
        world.zk.perform(Multi((Create(f"{paths.GROUPS}/a b{number}"), Create(f"{paths.BROKER_TOPICS}/a {number}x"))))
    world.pass_time(1_000)
    lines = [text for text in world.warnings[before:] if "'a " in text]
    assert 2 <= len(lines) <= 2 * MAX_REASONS
