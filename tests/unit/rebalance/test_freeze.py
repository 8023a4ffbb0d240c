"""A freeze may end by itself, also under another leader."""

from __future__ import annotations

import pytest

from tests.support import world as world_module
from tests.support.groups import world_with
from tests.support.world import GROUP, World
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Get
from zkrebalancer.protocol.settings import GroupSettings

DAY_MS = 86_400_000


def stored(world: World) -> GroupSettings:
    return settings.decode(world.zk.nodes[paths.group(GROUP)].content)


def now_ms(world: World) -> int:
    return world.leader().machine.scheduler.now.epoch_ms


def freeze(world: World, milliseconds: int) -> None:
    until_ms = now_ms(world) + milliseconds
    world.configure(settings.encode(GroupSettings(frozen=True, frozen_until_ms=until_ms)))
    world.add_agent("b")
    world.pass_time(1_000)


def counts(world: World) -> dict[str, int]:
    return {name: len(owned) for name, owned in world.owned().items()}


def test_a_freeze_ends_at_its_time_and_what_it_held_back_moves() -> None:
    world = world_with(GroupSettings(), "a")
    freeze(world, 60_000)
    world.pass_time(55_000)
    assert (stored(world).frozen, counts(world)) == (True, {"a-1": 4, "b-1": 0})

    world.pass_time(10_000)

    assert (stored(world), counts(world)) == (GroupSettings(), {"a-1": 2, "b-1": 2})
    assert "the freeze has ended at its set time" in "\n".join(world.warnings)


def test_the_next_leader_ends_it_also_if_its_time_was_over_before() -> None:
    for pause_ms in (10_000, 100_000):
        world = world_with(GroupSettings(), "a")
        freeze(world, 60_000)
        world.kill_coordinator(world.leader())
        world.pass_time(pause_ms)
        world.add_coordinator()
        world.pass_time(80_000 - min(pause_ms, 60_000))
        assert (stored(world).frozen, counts(world)) == (False, {"a-1": 2, "b-1": 2})


def test_a_freeze_that_was_made_longer_or_endless_does_not_end_at_the_first_time() -> None:
    for until_ms in (0, 10**12):
        world = world_with(GroupSettings(), "a")
        freeze(world, 30_000)
        later = until_ms and now_ms(world) + 600_000
        world.configure(settings.encode(GroupSettings(frozen=True, frozen_until_ms=later)))
        world.pass_time(120_000)
        assert (stored(world).frozen, counts(world)) == (True, {"a-1": 4, "b-1": 0})


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
def test_a_jump_of_the_wall_clock_neither_ends_nor_prolongs_it(monkeypatch: pytest.MonkeyPatch, jump_ms: int) -> None:
    """In `Expiry.look`, measure again at each look what is left."""
    world = world_with(GroupSettings(), "a")
    freeze(world, 60_000)
    monkeypatch.setattr(world_module, "EPOCH_OFFSET_MS", world_module.EPOCH_OFFSET_MS + jump_ms)
    for passed_ms, is_frozen in ((10_000, True), (40_000, True), (12_000, False)):
        world.leader().machine.groups[GROUP].load("reconciliation")
        world.tick()
        world.pass_time(passed_ms)
        assert stored(world).frozen == is_frozen


def test_other_settings_of_the_node_stay() -> None:
    world = world_with(GroupSettings(), "a")
    node = settings.changed(b"", {"frozen": True, "frozen_until_ms": now_ms(world) + 5_000, "note": "stays"})
    world.configure(node)
    world.pass_time(10_000)

    content = world.zk.nodes[paths.group(GROUP)].content
    assert settings.changed(content, {}) == settings.thawed(node)


def test_unfreezing_before_leaves_no_timer() -> None:
    world = world_with(GroupSettings(), "a")
    freeze(world, 30_000)
    world.configure(settings.encode(GroupSettings()))
    world.pass_time(1_000)
    assert ("g", "freeze") not in {(owner, str(name)) for owner, name in world.leader().machine.scheduler.due}


def test_a_freeze_that_is_made_longer_while_it_is_being_ended_lasts() -> None:
    """In `Expiry._end`, do not compare what it waited for: the write has the version of the longer freeze."""
    world = world_with(GroupSettings(), "a")
    freeze(world, 30_000)
    until_ms = stored(world).frozen_until_ms
    while Get(paths.group(GROUP)) not in [call for _id, call in world.leader().session.sent]:
        world.run()
        world.now_us = max(world.now_us, world.next_deadline_us() or 0)
        world.tick()
    world.configure(settings.encode(GroupSettings(frozen=True, frozen_until_ms=until_ms + 600_000)))
    world.pass_time(60_000)
    assert (stored(world).frozen, counts(world)) == (True, {"a-1": 4, "b-1": 0})


@pytest.mark.parametrize("is_known", [False, True])
def test_two_members_with_one_instance_id_both_get_what_has_no_owner(is_known: bool) -> None:
    """In `Batch.add`, let both into one transaction: it writes the instance's record twice, and is always refused."""
    world = world_with(GroupSettings(), "a")
    if is_known:
        former = world.add_agent("p", instance_id="pod-1")
        world.pass_time(1_000)
        world.kill_agent(former)
        world.pass_time(1_000)
    world.configure(settings.encode(GroupSettings(frozen=True)))
    world.add_agent("b", instance_id="pod-1")
    world.add_agent("c", instance_id="pod-1")
    world.pass_time(1_000)
    world.kill_agent(world.agents["a"])

    world.pass_time(60_000)

    assert sorted(counts(world).items()) == [("b-1", 2), ("c-1", 2)]
    assert (paths.static(GROUP, "pod-1") in world.zk.nodes, world.warnings) == (True, [])


def test_a_pause_that_nothing_renews_ends_and_the_log_blames_no_certain_operation() -> None:
    """In `expiry.PAUSE`, name a reset: imports, restores and deletions pause starts, too."""
    world = world_with(GroupSettings(), "a")
    world.configure(settings.encode(GroupSettings(starts_paused=True, paused_by="restore-1")))
    world.pass_time(70_000)
    assert not stored(world).starts_paused
    assert "starts were paused by an operation that has made no progress for 60 s" in "\n".join(world.warnings)


@pytest.mark.parametrize("content", [b'{"version":2,"frozen":true}', b"\xff"])
def test_a_new_leader_that_cannot_read_the_settings_moves_nothing_until_it_can(content: bytes) -> None:
    """The former leader knew them. In `Loading.begin`, let the defaults be in force."""
    world = world_with(GroupSettings(frozen=True), "a")
    world.configure(content)
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.add_agent("b")
    world.pass_time(3_000)
    assert counts(world) == {"a-1": 4, "b-1": 0}
    assert any("a leader that knows none moves no owned partition" in text for text in world.warnings)

    world.kill_agent(world.agents["a"])
    world.add_agent("c")
    world.pass_time(3_000)
    assert sum(counts(world).values()) == 4, "what has no owner is assigned"

    world.configure(settings.encode(GroupSettings()))
    world.pass_time(3_000)
    assert counts(world) == {"b-1": 2, "c-1": 2}
