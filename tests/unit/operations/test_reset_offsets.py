"""Wherever a reset of offsets is interrupted, the group recovers by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from tests.support.client import Client, KilledError
from tests.support.groups import events, world_with
from tests.support.world import GROUP, World
from zkrebalancer.operations import starts_pause
from zkrebalancer.operations.reset_offsets import reset_offsets
from zkrebalancer.operations.starts_pause import OffsetsRefusedError
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Create, Multi, SetContent
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.expiry import PAUSE_LIMIT_US
from zkrebalancer.runtime.zk import BlockingZk

PARTITIONS = 4
MAX_CALLS = 100
PAUSE_LIMIT_MS = PAUSE_LIMIT_US // 1_000


@pytest.fixture(autouse=True)
def one_offset_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts_pause, "MAX_WRITES_PER_TRANSACTION", 1)


def with_offsets() -> World:
    world = world_with(partitions=PARTITIONS)
    mark = world.topics()["t"].incarnation.encode()
    made = [Create(paths.offsets(GROUP, "t"), mark)]
    made += [Create(paths.offsets(GROUP, "t", number), b"5") for number in range(PARTITIONS)]
    world.zk.perform(Multi(tuple(made)))
    world.pass_time(1_000)
    return world


def to_nine(partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
    return dict.fromkeys(partitions, 9)


def reset(client: Client) -> None:
    reset_offsets(cast("BlockingZk", client), GROUP, to_nine, dry_run=False)


def stored_settings(world: World) -> GroupSettings:
    return settings.decode(world.zk.nodes[paths.group(GROUP)].content)


def stored_offsets(world: World) -> set[bytes]:
    return {world.zk.nodes[paths.offsets(GROUP, "t", number)].content for number in range(PARTITIONS)}


def assert_goes_on(world: World) -> None:
    world.add_agent("a")
    world.pass_time(PAUSE_LIMIT_MS + 1_000)
    assert len(world.owned()["a-1"]) == PARTITIONS
    assert not stored_settings(world).starts_paused


@pytest.mark.parametrize("is_last_lost", [True, False])
def test_a_reset_that_is_killed_at_any_call_leaves_a_group_that_goes_on_by_itself(*, is_last_lost: bool) -> None:
    """In `Group._loaded` and `_settings_read`, do not look at the pause."""
    pauses = 0
    for calls in range(1, MAX_CALLS):
        world = with_offsets()
        client = Client(world, calls, is_last_lost=is_last_lost)
        try:
            reset(client)
        except KilledError:
            pauses += stored_settings(world).starts_paused
            assert_goes_on(world)
        else:
            break
    assert pauses > PARTITIONS
    assert stored_offsets(world) == {b"9"}
    assert_goes_on(world)


def test_a_reset_renews_its_pause_for_as_long_as_it_goes_on() -> None:
    """In `Pause.write`, leave `paused_by` as it is."""
    world = with_offsets()
    reset(Client(world, pause_ms=PAUSE_LIMIT_MS // 2))
    assert stored_offsets(world) == {b"9"}
    triggers = [event["trigger"] for event in events(world, "rebalance_requested")]
    assert triggers.count("settings-changed") == 2, "it is paused and resumed; a renewal is no reason to plan"
    assert_goes_on(world)


def test_a_reset_that_is_too_slow_writes_nothing_after_its_pause_has_ended() -> None:
    """In `Pause.write`, do not check the version."""
    world = with_offsets()
    with pytest.raises(OffsetsRefusedError, match="changed while"):
        reset(Client(world, pause_ms=PAUSE_LIMIT_MS + 1_000))
    assert stored_offsets(world) == {b"5"}
    assert_goes_on(world)


def test_the_pause_of_an_older_version_ends_too_and_unknown_settings_stay() -> None:
    world = with_offsets()
    world.configure(b'{"version":1,"starts_paused":true,"custom":7}')
    world.add_agent("a")
    world.pass_time(PAUSE_LIMIT_MS - 1_000)
    assert world.owned() == {"a-1": {}}
    world.pass_time(2_000)
    assert len(world.owned()["a-1"]) == PARTITIONS
    assert b'"custom":7' in world.zk.nodes[paths.group(GROUP)].content


def test_a_pause_ends_although_the_group_is_read_anew_and_asked_to_rebalance_all_the_time() -> None:
    """In `Pause.look`, count from now each time."""
    world = with_offsets()
    content = b'{"version":1,"starts_paused":true}'
    world.configure(content)
    world.pass_time(100)
    for _ in range(4):
        world.pass_time(PAUSE_LIMIT_MS // 4)
        if stored_settings(world).starts_paused:
            world.zk.perform(Multi((SetContent(paths.group(GROUP), content),)))
            world.leader().machine.groups[GROUP].load("reconciliation")
            world.tick()
    assert_goes_on_at_once(world)


def assert_goes_on_at_once(world: World) -> None:
    world.add_agent("a")
    world.pass_time(1_000)
    assert len(world.owned()["a-1"]) == PARTITIONS


def test_a_node_that_is_no_offset_is_reset_too() -> None:
    """In `_changes`, leave out what cannot be read: its consumer would begin anywhere."""
    world = with_offsets()
    world.zk.perform(Multi((SetContent(paths.offsets(GROUP, "t", 1), b"\xff"),)))
    reset(Client(world))
    assert stored_offsets(world) == {b"9"}
