"""Which names and hosts `groups drain` adds to a group's settings and removes from them, and what it says otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.observe import inspection
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.operations.drain import (
    NotDrainedError,
    draining,
    draining_host,
    groups_of_host,
    undraining,
    undraining_host,
)
from zkrebalancer.operations.evict import NoSuchConsumerError
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

UUID = "0123abcd-0123-0123-0123-0123456789ab"


def report_of(world: World, **drained: tuple[str, ...]) -> GroupReport:
    report = inspection.read_group(client(world), GROUP)
    report.view.settings = replace(report.settings, **drained)  # type: ignore[arg-type]
    return report


def client(world: World) -> BlockingZk:
    return cast("BlockingZk", ModelClient(world.zk))


@pytest.fixture(scope="module")
def world() -> World:
    """Return a group with the members a-1, b-1 and s-1; the last one is the instance `pod-0`."""
    world = world_with(GroupSettings(), "a", "b")
    world.add_agent("s", instance_id="pod-0")
    world.pass_time(2_000)
    return world


def test_members_are_added_by_name_or_instance_and_other_settings_stay(world: World) -> None:
    report = report_of(world, drained_members=("b-1",), drained_hosts=("h9",))
    after = draining(["pod-0", "a-1"])(report)
    assert after == replace(report.settings, drained_members=("a-1", "b-1", "pod-0"))


def test_a_static_member_that_is_away_can_be_drained(world: World) -> None:
    report = report_of(world)
    report.view.statics["pod-9"] = report.view.statics["pod-0"]
    assert draining(["pod-9"])(report).drained_members == ("pod-9",)


def test_names_of_processes_that_are_gone_are_dropped_and_instances_stay(world: World) -> None:
    """A process never comes back under its name, an instance may. In `draining`, keep all, or only the known ones."""
    gone, near = f"c-{UUID}", (f"c-{UUID}x", f"c{UUID}", f"c-{UUID[:-1]}", f"c-{UUID.upper()}")
    report = report_of(world, drained_members=("b-1", gone, "pod-7", *near))
    assert set(draining(["a-1"])(report).drained_members) == {"a-1", "b-1", "pod-7", *near}


def test_who_is_no_member_cannot_be_drained(world: World) -> None:
    with pytest.raises(NoSuchConsumerError) as raised:
        draining(["a-1", "c-1"])(report_of(world))
    assert str(raised.value) == f"group {GROUP} has no member c-1; it has a-1, b-1, pod-0, s-1"


def test_at_most_five_names_are_shown() -> None:
    world = world_with(GroupSettings(), *"abcdef")
    with pytest.raises(NoSuchConsumerError, match=r"it has a-1, b-1, c-1, d-1, e-1, …$"):
        draining(["x" * 100])(report_of(world))
    five = world_with(GroupSettings(), *"abcde")
    with pytest.raises(NoSuchConsumerError, match=rf"no member {'x' * 80}; it has a-1, b-1, c-1, d-1, e-1$"):
        draining(["x" * 100])(report_of(five))
    with pytest.raises(NoSuchConsumerError, match=r"; it has none$"):
        draining(["x"])(report_of(world_with(GroupSettings())))


def test_the_end_of_a_drain_concerns_the_named_members_or_everything(world: World) -> None:
    report = report_of(world, drained_members=("a-1", "b-1", "gone"), drained_hosts=("h9",))
    assert undraining(["b-1", "gone"])(report) == replace(report.settings, drained_members=("a-1",))
    assert undraining([])(report) == replace(report.settings, drained_members=(), drained_hosts=())


def test_who_is_not_drained_is_named(world: World) -> None:
    with pytest.raises(NotDrainedError) as raised:
        undraining(["a-1", "b-1"])(report_of(world, drained_members=("a-1", "c-1")))
    drained = "it drains the members: a-1, c-1; and the hosts: none"
    assert str(raised.value) == f"group {GROUP} does not drain b-1; {drained}"


def test_hosts_are_added_and_removed_and_members_stay(world: World) -> None:
    report = report_of(world, drained_members=("a-1",), drained_hosts=("h5", "h9"))
    assert draining_host("h7")(report) == replace(report.settings, drained_hosts=("h5", "h7", "h9"))
    assert draining_host("h5")(report) == report.settings
    assert undraining_host("h5")(report) == replace(report.settings, drained_hosts=("h9",))
    with pytest.raises(NotDrainedError) as raised:
        undraining_host("h7")(report)
    drained = "it drains the members: a-1; and the hosts: h5, h9"
    assert str(raised.value) == f"group {GROUP} does not drain the host h7; {drained}"


def company() -> World:
    """Return the group g with members on the host h, and the group `other` without members, which drains h9."""
    world = world_with(GroupSettings(), "a")
    ModelClient(world.zk).create(paths.group("other"), settings.encode(GroupSettings(drained_hosts=("h9",))))
    return world


def test_a_host_is_drained_in_the_groups_that_have_members_there() -> None:
    world = company()
    assert groups_of_host(client(world), "h", is_drain=True) == ([GROUP], [])
    with pytest.raises(NoSuchConsumerError) as raised:
        groups_of_host(client(world), "h9", is_drain=True)
    assert str(raised.value) == "no group has members on h9; members are on h"


def test_the_drain_of_a_host_ends_in_the_groups_that_drain_it() -> None:
    world = company()
    assert groups_of_host(client(world), "h9", is_drain=False) == (["other"], [])
    with pytest.raises(NotDrainedError, match=r"^no group drains the host h$"):
        groups_of_host(client(world), "h", is_drain=False)


@pytest.mark.parametrize(("is_drain", "expected"), [(True, [GROUP]), (False, [])])
def test_a_group_that_may_not_be_read_is_named(*, is_drain: bool, expected: list[str]) -> None:
    """The host would be taken down while a group that was not seen still uses it."""
    world = company()
    world.zk.identity = str
    world.zk.denied.add(("0", paths.group("other"), Right.READ))
    found, (refused,) = groups_of_host(client(world), "h", is_drain=is_drain)
    assert found == expected
    assert paths.group("other") in str(refused)


def test_a_group_whose_settings_cannot_be_read_may_drain_any_host() -> None:
    """In `groups_of_host`, take its settings for the default ones: a drain would stay, and nobody would know."""
    world = company()
    ModelClient(world.zk).set(paths.group("other"), b"{garbage")
    assert groups_of_host(client(world), "h5", is_drain=False) == (["other"], [])


@pytest.mark.parametrize("right", [Right.READ, None])
def test_a_group_with_a_member_whose_host_is_not_known_is_named(right: Right | None) -> None:
    """In `groups_of_host`, leave out such members: the host is taken down while one of them still reads there."""
    world, registration = company(), paths.ids(GROUP, "a-1")
    if right is None:
        ModelClient(world.zk).set(registration, b"{garbage")
    else:
        world.zk.identity = str
        world.zk.denied.add(("0", registration, right))
    found, (doubt,) = groups_of_host(client(world), "h7", is_drain=True)
    assert (found, str(doubt)) == ([], f"group {GROUP} (members that cannot be read may be there: a-1)")
    world.configure(settings.encode(GroupSettings(drained_hosts=("h7",))))  # as `groups drain g --host h7` does
    with pytest.raises(NoSuchConsumerError, match=r"members are on none$"):
        groups_of_host(client(world), "h7", is_drain=True)
