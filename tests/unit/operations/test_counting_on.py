"""Generations of a restored tree are above all that any life of its groups has had: sinks refuse lower ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.backups import PARTITIONS, client, empty_world, nothing, restored
from tests.support.world import GROUP, World
from zkrebalancer.operations import backup as operation
from zkrebalancer.operations.backup_file import Node, taken_at_ms, write
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Delete, Multi, SetContent

TAKEN_MS = 1_795_000_000_000
DAY_MS = 86_400_000
AHEAD = 1_000 * (TAKEN_MS + 2 * DAY_MS)  # of a tree that was restored with a clock that was wrong
OF_A_TRANSACTION = 0x2A_0000_5000  # a group that was created again after the backup counts on from it
ABOVE = [Node(paths.CONSUMERS, b""), Node(paths.GROUPS, b"")]


def backup_of_a_group(tmp_path: Path, reached: int) -> Path:
    """Return a backup of a group that had reached this generation."""
    file, counters = tmp_path / "group", (paths.generation(GROUP), paths.given(GROUP))
    write(file, [*ABOVE, Node(paths.group(GROUP), b""), *(Node(path, b"%d" % reached) for path in counters)], TAKEN_MS)
    return file


def delete_group(world: World) -> None:
    below = sorted((path for path in world.zk.nodes if path.startswith(paths.group(GROUP))), key=len, reverse=True)
    world.zk.perform(Multi(tuple(map(Delete, below))))


def serve(world: World) -> None:
    world.add_coordinator()
    world.add_agent("a")
    world.pass_time(60_000)
    assert sum(map(len, world.owned().values())) == PARTITIONS


@pytest.mark.parametrize("reached", [450, AHEAD])
def test_a_file_that_is_restored_again_continues_above_its_own_former_life(tmp_path: Path, reached: int) -> None:
    """In `CountingOn`, add the same each time, or look at the clock alone."""
    file, former = backup_of_a_group(tmp_path, reached), OF_A_TRANSACTION
    for now_ms in (TAKEN_MS + DAY_MS, TAKEN_MS + DAY_MS + 60_000):
        world = empty_world()
        restored(world, file, now_ms=now_ms)
        assert world.generation() > max(former, reached)
        assert world.zk.nodes[paths.given(GROUP)].content == b"%d" % world.generation()
        former = world.generation() + 1_000  # plans


def test_a_clock_that_is_behind_the_backup_takes_no_generation_back(tmp_path: Path) -> None:
    """In `CountingOn`, believe it."""
    file, world = backup_of_a_group(tmp_path, 450), empty_world()
    restored(world, file, now_ms=0)
    assert world.generation() >= 1_000 * TAKEN_MS


@pytest.mark.parametrize("is_in_file", [True, False])
def test_a_group_that_is_created_after_a_restore_begins_above_all_lives_before(
    tmp_path: Path, *, is_in_file: bool
) -> None:
    """Also one that the file does not have. In `restore`, write no `served`; in `Loading._served_read`, add nothing."""
    file, world = backup_of_a_group(tmp_path, 450), empty_world()
    if not is_in_file:
        file = tmp_path / "empty"
        write(file, ABOVE, TAKEN_MS)
    restored(world, file, now_ms=TAKEN_MS + DAY_MS)
    if is_in_file:
        delete_group(world)
    world.create_group()
    serve(world)
    assert world.generation() > 1_000 * (TAKEN_MS + DAY_MS)


def test_a_group_that_is_deleted_in_a_restored_tree_and_created_again_continues(tmp_path: Path) -> None:
    """In `Loading._created_again`, add nothing: the ids of a new ensemble's transactions are low."""
    world = empty_world()
    restored(world, backup_of_a_group(tmp_path, 450), now_ms=TAKEN_MS)
    serve(world)
    former = world.generation()
    world.kill_agent(world.agents["a"])
    world.pass_time(60_000)
    delete_group(world)
    world.run()
    world.create_group()
    world.add_agent("b")
    world.pass_time(60_000)
    assert world.generation() > former


@pytest.mark.parametrize(("damage", "is_gone"), [(b"junk", True), (b"5", False)])
def test_a_generation_that_is_damaged_in_a_restored_tree_continues(
    tmp_path: Path, damage: bytes, *, is_gone: bool
) -> None:
    """In `GroupReader`, ignore the mark: in `_commands_incarnations_and_statics`, or in `_note_generation`."""
    world = empty_world()
    restored(world, backup_of_a_group(tmp_path, 450), now_ms=TAKEN_MS)
    serve(world)
    if is_gone:
        world.kill_agent(world.agents["a"])
        world.pass_time(60_000)
    former = world.generation()
    world.zk.perform(Multi((SetContent(paths.generation(GROUP), damage),)))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.add_agent("b")
    world.pass_time(60_000)
    assert world.generation() > former


def test_a_backup_of_a_restored_tree_continues_above_what_that_tree_has(tmp_path: Path) -> None:
    """In `counting_on.COUNTER`, leave `served` out: groups that the second file does not have would begin lower."""
    world, again = empty_world(), empty_world()
    restored(world, backup_of_a_group(tmp_path, AHEAD), now_ms=TAKEN_MS)
    delete_group(world)
    operation.back_up(client(world), tmp_path / "again", TAKEN_MS, nothing)
    restored(again, tmp_path / "again", now_ms=TAKEN_MS)
    again.create_group()
    serve(again)
    assert again.generation() > AHEAD


def test_the_time_of_a_backup_is_known(tmp_path: Path) -> None:
    assert taken_at_ms(backup_of_a_group(tmp_path, 450)) == TAKEN_MS
