"""Offsets that were deleted with their topic are put back, also by a restore that was killed before."""

from __future__ import annotations

from typing import cast

import pytest

from tests.support import world as world_module
from tests.support.client import MAX_CALLS, Client, KilledError
from tests.support.groups import copies, world_with
from tests.support.world import GROUP, CoordinatorProcess, World
from tests.support.zk_model import Right
from tests.unit.operations.group_commands import on, run
from zkrebalancer.operations import restore_offsets as operation
from zkrebalancer.operations import starts_pause
from zkrebalancer.operations.restore_offsets import NothingToRestoreError, Restored, restore_offsets
from zkrebalancer.operations.starts_pause import OffsetsRefusedError, starts_paused
from zkrebalancer.operations.topic_offsets import UnknownTopicError
from zkrebalancer.protocol import offset_copy, paths, settings
from zkrebalancer.protocol.calls import Create, Delete, Multi, SetContent
from zkrebalancer.protocol.errors import ZooKeeperRefusedError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.offset_copy import OffsetCopy
from zkrebalancer.rebalance import offset_copies, topic_reset
from zkrebalancer.rebalance.expiry import PAUSE_LIMIT_US
from zkrebalancer.runtime.zk import BlockingZk

PARTITIONS = 4
OFFSETS = {number: 100 + number for number in range(PARTITIONS)}


@pytest.fixture(autouse=True)
def small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts_pause, "MAX_WRITES_PER_TRANSACTION", 1)
    monkeypatch.setattr(topic_reset, "MAX_DELETES_PER_TRANSACTION", 3)  # so that there are two copies


def with_offsets() -> World:
    """Return a group with one member, which has stored offsets."""
    world = world_with(partitions=PARTITIONS)
    world.add_agent("a")
    world.pass_time(1_000)
    for number, offset in OFFSETS.items():
        world.zk.perform(Multi((Create(paths.offsets(GROUP, "t", number), str(offset).encode()),)))
    return world


def leave(world: World) -> None:
    world.leave(world.agents.pop("a"))
    world.pass_time(1_000)


def begin_anew(world: World) -> CoordinatorProcess:
    """Let the topic be created anew, which the leader is about to hear of; return the leader."""
    world.delete_topic("t")
    world.run()
    leader = world.leader()
    world.set_topic("t", PARTITIONS, "id-2")
    return leader


def step(world: World, leader: CoordinatorProcess) -> None:
    """Let the leader do one thing."""
    if leader.session.sent:
        world.zk.perform_next(leader.session)
    elif leader.session.inbox:
        world.deliver(leader)
    elif leader.computing:
        world.compute(leader)
    else:
        world.now_us = world.next_deadline_us() or world.now_us
        world.tick()


def with_copies(partitions: int = PARTITIONS) -> World:
    """Return a group without members, whose topic was created anew."""
    world = with_offsets()
    world.delete_topic("t")
    world.set_topic("t", partitions, "id-2")
    world.pass_time(2_000)
    leave(world)
    assert stored(world) == {}
    assert [copy.offsets for copy in copies(world)] == [{0: 100, 1: 101, 2: 102}, {3: 103}]
    return world


def stored(world: World) -> dict[int, int]:
    return {
        number: int(world.zk.nodes[paths.offsets(GROUP, "t", number)].content)
        for number in range(PARTITIONS)
        if paths.offsets(GROUP, "t", number) in world.zk.nodes
    }


def restore(client: Client, *names: str, topics: tuple[str, ...] = ()) -> dict[TopicPartition, Restored]:
    return restore_offsets(cast("BlockingZk", client), GROUP, topics, names, dry_run=False)


def assert_goes_on(world: World) -> None:
    """The restored offsets stay, and a consumer is started on every partition."""
    expected = stored(world)
    world.add_agent("b")
    world.pass_time(PAUSE_LIMIT_US // 1_000 + 5_000)
    assert not settings.decode(world.zk.nodes[paths.group(GROUP)].content).starts_paused
    assert len(world.owned()["b-1"]) == PARTITIONS
    assert stored(world) == expected


def test_what_was_deleted_with_a_topic_is_put_back() -> None:
    """Fails if the mark is not written: then the coordinator deletes the offsets again."""
    world = with_copies()
    changes = restore(Client(world))
    assert {number: change.after for (_topic, number), change in changes.items()} == OFFSETS
    assert {change.copy for change in changes.values()} == set(world.zk.children(paths.deleted_offsets(GROUP)))
    assert stored(world) == OFFSETS
    assert_goes_on(world)


def test_offsets_of_a_topic_that_has_no_offsets_node_any_more_are_put_back() -> None:
    world = with_offsets()
    world.delete_topic("t")
    world.pass_time(3_700_000)
    leave(world)
    assert paths.offsets(GROUP, "t") not in world.zk.nodes
    with pytest.raises(UnknownTopicError, match="topic t does not exist"):
        restore(Client(world))
    world.set_topic("t", PARTITIONS, "id-2")
    world.pass_time(1_000)
    restore(Client(world))
    assert stored(world) == OFFSETS
    assert_goes_on(world)


@pytest.mark.parametrize("is_last_lost", [True, False], ids=["before", "after"])
def test_a_restore_that_was_killed_at_any_call_can_be_run_again(is_last_lost: bool) -> None:
    finished = 0
    for calls in range(1, MAX_CALLS):
        world = with_copies()
        try:
            restore(Client(world, calls, is_last_lost=is_last_lost))
            finished += 1
        except KilledError:
            world.pass_time(PAUSE_LIMIT_US // 1_000 + 5_000)
            restore(Client(world))
        assert stored(world) == OFFSETS
        if finished:
            break
    assert finished
    assert_goes_on(world)


@pytest.mark.parametrize("killed_after", range(1, 40, 2))
def test_a_leader_that_dies_while_it_deletes_offsets_loses_none(killed_after: int) -> None:
    """Copy and deletion in two transactions: they are in both, or in neither."""
    world = with_offsets()
    leader = begin_anew(world)
    for _ in range(killed_after):
        step(world, leader)
    in_copies = {number: offset for copy in copies(world) for number, offset in copy.offsets.items()}
    assert {**in_copies, **stored(world)} == OFFSETS
    assert not in_copies.keys() & stored(world).keys()
    world.kill_coordinator(leader)
    world.add_coordinator()
    world.pass_time(5_000)
    leave(world)
    assert stored(world) == {}
    restore(Client(world))
    assert stored(world) == OFFSETS


def test_only_the_last_incarnation_is_put_back_unless_others_are_named() -> None:
    world = with_copies()
    older = sorted(world.zk.children(paths.deleted_offsets(GROUP)))
    world.add_agent("a")
    world.zk.perform(Multi((Create(paths.offsets(GROUP, "t", 1), b"7"),)))
    world.delete_topic("t")
    world.set_topic("t", PARTITIONS, "id-3")
    world.pass_time(2_000)
    leave(world)
    assert restore(Client(world)).keys() == {("t", 1)}
    assert stored(world) == {1: 7}
    restore(Client(world), older[0])
    assert stored(world) == {0: 100, 1: 101, 2: 102}


def test_partitions_that_do_not_exist_any_more_are_left_out() -> None:
    world = with_copies(partitions=2)
    assert restore(Client(world)).keys() == {("t", 0), ("t", 1)}


def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(NothingToRestoreError, match="has no copy; "):
        restore(Client(world_with(partitions=PARTITIONS)))
    world = with_copies()
    for names, topics in ((("no-copy",), ()), ((), ("u",)), (("1-0000000000",), ("t",)), ((), ("t", "u"))):
        with pytest.raises(NothingToRestoreError, match="has no copy of"):
            restore(Client(world), *names, topics=topics)
    world.add_agent("b")
    world.pass_time(1_000)
    with pytest.raises(OffsetsRefusedError, match="has consumers"):
        restore(Client(world))
    assert stored(world) == {}


def test_members_that_may_not_be_listed_may_be_there() -> None:
    """In `refuse_consumers`, take a refusal for an empty list."""
    world = with_copies()
    world.zk.identity = str
    world.zk.denied.add(("0", paths.ids(GROUP), Right.READ))
    with pytest.raises(ZooKeeperRefusedError, match="right READ is missing"):
        restore(Client(world))
    assert stored(world) == {}


def test_a_dry_run_shows_and_writes_nothing() -> None:
    world = with_copies()
    shown = operation.restore_offsets(cast("BlockingZk", Client(world)), GROUP, (), (), dry_run=True)
    assert [(change.before, change.after) for change in shown.values()] == [
        (None, offset) for offset in (100, 101, 102, 103)
    ]
    assert stored(world) == {}


def test_an_offset_that_is_written_while_it_is_deleted_is_copied_as_it_was_written() -> None:
    """Delete at any version: then the copy has the offset before."""
    world = with_offsets()
    world.zk.perform(Multi((Create(paths.deleted_offsets(GROUP)),)))
    leader = begin_anew(world)
    while not any(
        isinstance(call, Multi) and isinstance(call.operations[-1], Delete) for _id, call in leader.session.sent
    ):
        step(world, leader)
    world.zk.perform(Multi((SetContent(paths.offsets(GROUP, "t", 0), b"555"),)))
    world.pass_time(2_000)
    assert {number: offset for copy in copies(world) for number, offset in copy.offsets.items()} == {**OFFSETS, 0: 555}


def test_the_last_copies_are_kept_whatever_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts' clocks jump. In `offset_copy.oldest_first`, sort by the time."""
    monkeypatch.setattr(offset_copy, "MAX_COPIES", 3)
    world = with_copies()
    for incarnation, epoch_ms in zip(range(3, 6), (world_module.EPOCH_OFFSET_MS * 2, 10**9, 0), strict=True):
        monkeypatch.setattr(world_module, "EPOCH_OFFSET_MS", epoch_ms)
        world.add_agent("a")
        world.zk.perform(Multi((Create(paths.offsets(GROUP, "t", 0), str(incarnation).encode()),)))
        world.delete_topic("t")
        world.set_topic("t", PARTITIONS, f"id-{incarnation}")
        world.pass_time(2_000)
        leave(world)
    assert sorted(copy.offsets[0] for copy in copies(world)) == [3, 4, 5]
    monkeypatch.undo()
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(100_000)
    assert sorted(copy.offsets[0] for copy in copies(world)) == [3, 4, 5]
    restore(Client(world))
    assert stored(world) == {0: 5}


def test_copies_of_a_restored_tree_are_older_than_those_that_are_made_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper counts anew there. In `offset_copy.oldest_first`, sort by the number alone."""
    monkeypatch.setattr(offset_copy, "MAX_COPIES", 3)
    world, above = with_offsets(), paths.deleted_offsets(GROUP)
    former = OffsetCopy("t", "id-0", 5, dict.fromkeys(range(PARTITIONS), 1))
    for create in (Create(above), *(Create(f"{above}/5-000000030{at}", offset_copy.encode(former)) for at in range(2))):
        world.zk.perform(Multi((create,)))
    world.delete_topic("t")
    world.set_topic("t", PARTITIONS, "id-2")
    world.pass_time(2_000)
    leave(world)
    assert len(copies(world)) == 3, "one was too many"
    restore(Client(world))
    assert stored(world) == OFFSETS


@pytest.mark.parametrize("name", ["x", "1", "1-", "-1", "1-x", "x-1", "1-2-3"])
def test_names_that_are_no_copys_are_left_alone(name: str) -> None:
    names = [f"5-{number:010d}" for number in range(offset_copy.MAX_COPIES + 1)]
    assert offset_copy.superfluous([name, *names], len(names)) == names[:1]


def test_a_copy_that_cannot_be_read_is_named_as_it_may_be_the_last_of_its_topic() -> None:
    """Written by a newer version. In `_read_copies`, leave it out: then offsets of an older topic are restored."""
    world = with_copies()
    good = world.zk.children(paths.deleted_offsets(GROUP))
    late = paths.deleted_offsets(GROUP, "1900000000000-0000000009")
    for content in (b'{"version":2}', offset_copy.encode(OffsetCopy("t", "id-2", 2**62, {0: 7}))):
        world.zk.perform(Multi((Create(late, content),)))
        with pytest.raises(NothingToRestoreError, match=r"copy 1900000000000-0000000009: .*--copy"):
            restore(Client(world))
        assert stored(world) == {}
        world.zk.perform(Multi((Delete(late),)))
    world.zk.perform(Multi((Create(late, b"x"),)))
    restore(Client(world), *good)
    assert stored(world) == OFFSETS


@pytest.mark.parametrize("kept", ["mark", "record"])
def test_offsets_of_a_former_topic_do_not_get_the_mark_of_the_present_one(kept: str) -> None:
    """No coordinator has seen yet that the topic was created anew. In `refuse_former_topics`, refuse nothing."""
    world = with_copies()
    world.zk.perform(Multi((Create(paths.offsets(GROUP, "t", 3), b"999"),)))
    world.kill_coordinator(world.leader())
    world.delete_topic("t")
    world.set_topic("t", PARTITIONS, "id-3")
    other = paths.incarnations(GROUP, "t") if kept == "mark" else paths.offsets(GROUP, "t")
    world.zk.perform(Multi((SetContent(other, b"\xff"),)))
    with pytest.raises(OffsetsRefusedError, match="offsets of a former topic t"):
        restore(Client(world))
    world.add_coordinator()
    world.pass_time(3_000)
    assert stored(world) == {}
    restore(Client(world), *world.zk.children(paths.deleted_offsets(GROUP))[:2])
    assert stored(world) == OFFSETS
    assert_goes_on(world)


def test_an_operation_that_ends_leaves_the_pause_of_another_one() -> None:
    """In `starts_pause._resume`, end any pause: then consumers start between two writes of the other one."""
    world = with_copies()
    zk = cast("BlockingZk", Client(world))
    first, second = starts_paused(zk, GROUP, "one"), starts_paused(zk, GROUP, "two")
    beaten = first.__enter__()
    pause = second.__enter__()
    with pytest.raises(OffsetsRefusedError, match="changed"):
        beaten.write(zk)
    first.__exit__(None, None, None)
    assert settings.decode(world.zk.nodes[paths.group(GROUP)].content).starts_paused
    pause.write(zk)
    second.__exit__(None, None, None)
    assert not settings.decode(world.zk.nodes[paths.group(GROUP)].content).starts_paused


@pytest.mark.parametrize("foreign", [False, True])
def test_all_superfluous_copies_are_removed_though_one_cannot_be(
    foreign: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `OffsetCopies._removed`, look at nothing."""
    monkeypatch.setattr(offset_copies, "MAX_REMOVED", 2)
    monkeypatch.setattr(offset_copy, "MAX_COPIES", 3)
    world = with_copies()
    first = paths.deleted_offsets(GROUP, world.zk.children(paths.deleted_offsets(GROUP))[0])
    for number in range(5):
        name = paths.deleted_offsets(GROUP, offset_copy.name_prefix(1_000 + number))
        world.zk.perform(Multi((Create(name, b"x", sequence=True),)))
    if foreign:
        world.zk.perform(Multi((Create(f"{first}/x"),)))
    world.leader().machine.groups[GROUP]._topic_reset._copies.look(6)
    world.tick()
    world.pass_time(200_000)
    left = [paths.deleted_offsets(GROUP, name) for name in sorted(world.zk.children(paths.deleted_offsets(GROUP)))]
    assert len(left) == 3 + foreign
    assert (first in left) == foreign
    assert any(f"refuses {first}: not empty" in text for text in world.warnings) == foreign


def test_the_command_asks_before_it_replaces_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `groups offsets restore`, do not ask."""
    world = with_copies()
    restore(Client(world))
    world.zk.perform(Multi((SetContent(paths.offsets(GROUP, "t", 0), b"7"),)))
    on(monkeypatch, world)
    refused = run("offsets", "restore", GROUP)
    assert (refused.exit_code, stored(world)[0]) == (2, 7)
    assert "1 stored offsets would be replaced; confirm with --yes" in refused.stderr
    assert run("offsets", "restore", GROUP, "--yes").exit_code == 0
    assert stored(world)[0] == 100
