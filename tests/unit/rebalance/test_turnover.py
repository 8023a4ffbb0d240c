"""Changes of owners are kept for people: all of them, as long as there is room."""

from __future__ import annotations

import random

import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP, World
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.turnover import OwnerChange, Turnover


def owning(*partitions: int) -> OwnersRecord:
    return OwnersRecord(1, None, {("t", number): 0 for number in partitions})


def some(*partitions: int) -> frozenset[TopicPartition]:
    return frozenset(("t", number) for number in partitions)


def kept(**limits: int) -> Turnover:
    turnover = Turnover(**limits)
    turnover.is_kept = True
    turnover.begin("g", 1)
    return turnover


def changes(turnover: Turnover, group: str = "g") -> list[OwnerChange]:
    known = turnover.of(group)
    assert known is not None
    return list(known.changes)


def test_what_was_gained_and_lost_is_noted_and_no_change_is_none() -> None:
    turnover = kept()
    turnover.note("g", 5, "a", None, owning(1, 2))
    turnover.note("g", 6, "a", owning(1, 2), owning(2, 3))
    turnover.note("g", 7, "a", owning(2, 3), owning(2, 3))
    turnover.note("g", 8, "a", owning(2, 3), None)
    assert changes(turnover) == [
        OwnerChange(5, "a", some(1, 2), some()),
        OwnerChange(6, "a", some(3), some(1)),
        OwnerChange(8, "a", some(), some(2, 3)),
    ]


def test_the_oldest_changes_of_all_groups_go_first() -> None:
    """In `Turnover.note`, drop nothing, or compare with one limit only."""
    turnover = kept(max_changes=2, max_partitions=5)
    turnover.begin("h", 2)
    turnover.note("g", 5, "a", None, owning(1))
    turnover.note("h", 6, "b", None, owning(1))
    turnover.note("g", 7, "a", owning(1), None)
    assert [change.at_ms for change in (*changes(turnover), *changes(turnover, "h"))] == [7, 6]
    turnover.note("h", 8, "b", None, owning(1, 2, 3, 4, 5, 6))
    assert (changes(turnover), changes(turnover, "h")) == ([], [])
    (known,) = [turnover.of("h")]
    assert known is not None
    assert known.since_ms == 8


@pytest.mark.parametrize(("max_changes", "max_partitions"), [(1, 9), (4, 9), (20, 9), (4, 1_000)])
def test_the_last_changes_that_fit_are_kept_whatever_was_forgotten(max_changes: int, max_partitions: int) -> None:
    """In `Turnover.clear`, keep the number of partitions; in `_drop_oldest`, do not subtract them."""
    chance = random.Random(1)
    turnover = Turnover(max_changes, max_partitions)
    turnover.is_kept = True
    lives: dict[str, int] = {}
    kept: list[tuple[int, OwnerChange]] = []  # of all groups, each with its group's life
    for at_ms in range(2_000):
        group, what = chance.choice("gh"), chance.choice(["note"] * 7 + ["begin", "begin", "forget", "clear"])
        if what == "note":
            numbers = chance.sample(range(6), chance.randrange(6))
            turnover.note(group, at_ms, "a", None, owning(*numbers))
            if group in lives and numbers:
                kept.append((lives[group], OwnerChange(at_ms, "a", some(*numbers), some())))
            while len(kept) > max_changes or sum(change.size for _life, change in kept) > max_partitions:
                kept.pop(0)
        elif what == "clear":
            turnover.clear()
            lives, kept = {}, []
        elif what == "begin":
            turnover.begin(group, at_ms)
            lives[group] = at_ms
        else:
            turnover.forget(group)
            lives.pop(group, None)
        for each in "gh":
            known = turnover.of(each)
            assert (known is None) == (each not in lives)
            assert known is None or [*known.changes] == [change for life, change in kept if life == lives[each]]


def test_nothing_is_kept_before_that_is_wanted_and_nothing_of_unknown_groups() -> None:
    turnover = Turnover()
    turnover.begin("g", 1)
    turnover.note("g", 5, "a", None, owning(1))
    assert turnover.of("g") is None
    kept().note("other", 5, "a", None, owning(1))


def followed(*clients: str) -> World:
    """Return a world whose leader keeps changes, with a member that joined afterwards."""
    world = World()
    world.set_topic("t", 4)
    world.create_group()
    world.add_coordinator().machine.turnover.is_kept = True
    for client in clients:
        world.add_agent(client)
    world.pass_time(2_000)
    return world


def replayed(world: World) -> dict[TopicPartition, str]:
    """Return the owners that follow from the changes alone."""
    owners: dict[TopicPartition, str] = {}
    for change in changes(world.leader().machine.turnover, GROUP):
        for partition in change.lost:
            if owners.get(partition) == change.member:
                del owners[partition]
        owners |= dict.fromkeys(change.gained, change.member)
    return owners


def owned(world: World) -> dict[TopicPartition, str]:
    return {partition: name for name, partitions in world.owned().items() for partition in partitions}


def test_the_changes_lead_to_the_present_owners_whatever_happens() -> None:
    """In `Group.handle`, do not note what a member owned that left."""
    world = followed("a", "b")
    assert replayed(world) == owned(world) != {}
    world.add_agent("c")
    world.pass_time(2_000)
    assert replayed(world) == owned(world)
    world.kill_agent(world.agents["a"])
    world.pass_time(7_000)
    assert replayed(world) == owned(world)
    world.set_topic("t", 6)
    world.pass_time(400_000)  # a reconciliation, which does not begin anew
    assert replayed(world) == owned(world)
    assert len(owned(world)) == 6
    for client in ("b", "c"):
        world.kill_agent(world.agents[client])
    world.pass_time(7_000)
    assert replayed(world) == owned(world) == {}


def test_a_leader_that_nobody_looks_at_keeps_no_changes() -> None:
    assert world_with(GroupSettings(), "a").leader().machine.turnover.of(GROUP) is None


def test_a_deleted_group_is_forgotten() -> None:
    """In `Coordinator._drop`, do not tell `Turnover`."""
    world = world_with()
    machine = world.leader().machine
    machine.turnover.is_kept = True
    machine.turnover.begin(GROUP, 1)
    machine._drop(GROUP)
    assert machine.turnover.of(GROUP) is None
