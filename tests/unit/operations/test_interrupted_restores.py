"""A restore that is killed at any step: nobody leads a part of a tree before it is complete, or accepted."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import cast

import pytest

from tests.support.backups import OFFSETS, backed_up, client, empty_world, nothing, offsets, restored
from tests.support.client import Client, KilledError
from tests.support.secured_model import COORDINATOR
from tests.support.world import GROUP, World
from zkrebalancer.observe import inspection
from zkrebalancer.operations import backup as operation
from zkrebalancer.operations import change_shards
from zkrebalancer.operations.backup import PartialTreeError, RestoreLostError, RestoreRefusedError
from zkrebalancer.operations.backup_file import check, read, write
from zkrebalancer.operations.change_shards import NodeInTheWayError
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Create, Delete, Done, Multi, Refusal, Refused, Reply
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError
from zkrebalancer.rebalance.election import ElectionState
from zkrebalancer.runtime.zk import BlockingZk


def leads(world: World) -> bool:
    """Whether a coordinator leads in a while, if one runs; it is killed, because a restore refuses a leader."""
    process = world.add_coordinator()
    world.pass_time(40_000)
    does_lead = process.machine.coordinator_elector.state is ElectionState.LEADING
    world.kill_coordinator(process)
    world.pass_time(10_000)
    return does_lead


@pytest.mark.parametrize("is_last_lost", [True, False])
def test_nobody_leads_a_part_of_a_tree_wherever_its_restore_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_last_lost: bool
) -> None:
    """In `_Barrier.__enter__`, make the leader's node ephemeral: a standby leads a part, and deletes offsets."""
    monkeypatch.setattr(operation, "MAX_WRITES", 5)
    monkeypatch.setattr(operation, "MAX_READS", 7)
    file = backed_up(tmp_path)
    whole = empty_world()
    done = restored(whole, file)
    assert done.created + done.replaced + done.unchanged == check(file)  # each node once
    expected = {path: node.content for path, node in whole.zk.nodes.items()}
    partial, calls = set[bool](), 0
    while True:
        calls, world = calls + 1, empty_world()
        try:
            restored(world, file, calls=calls, is_last_lost=is_last_lost)
        except KilledError:
            pass
        else:
            break
        is_whole = expected.items() <= {path: node.content for path, node in world.zk.nodes.items()}.items()
        is_begun = paths.group(GROUP) in world.zk.nodes
        does_lead = leads(world)
        assert does_lead == (paths.RESTORE not in world.zk.nodes)
        assert is_whole or not (is_begun and does_lead)
        partial.add(is_begun and not is_whole)
        restored(world, file, overwrite=True)
        assert expected.items() - {path: node.content for path, node in world.zk.nodes.items()}.items() <= {
            (paths.COORDINATOR_EPOCH, expected[paths.COORDINATOR_EPOCH])  # if somebody has led meanwhile
        }
        assert leads(world)
        assert offsets(world) == OFFSETS
    assert (calls > 15, partial) == (True, {False, True})


def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[World, Path]:
    """Return a tree whose restore was killed, and the file."""
    monkeypatch.setattr(operation, "MAX_WRITES", 5)
    file, world, calls = backed_up(tmp_path), empty_world(), 0
    while paths.group(GROUP) not in world.zk.nodes:
        calls, world = calls + 1, empty_world()
        with pytest.raises(KilledError):
            restored(world, file, calls=calls, is_last_lost=False)
    assert paths.RESTORE in world.zk.nodes
    return world, file


def test_an_interrupted_restore_is_said_until_an_operator_accepts_what_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, file = interrupted(tmp_path, monkeypatch)
    process = world.add_coordinator()
    world.pass_time(100_000)
    text = process.machine.coordinator_elector.unfinished_restore
    assert text is not None
    assert "(restore) runs, or was interrupted: nobody leads until it is complete" in text
    assert sum(text in line for line in world.warnings) == 3  # at once, and again at growing intervals
    assert not [line for line in world.warnings if "belongs to no session" in line]
    assert inspection.read_unfinished_restore(client(world)) == text
    with pytest.raises(PartialTreeError, match="a backup of this tree would keep a part only"):
        operation.back_up(client(world), tmp_path / "new", 1, nothing)
    with pytest.raises(NodeInTheWayError, match="a restore is not complete"):
        change_shards.change(client(world, principal=COORDINATOR), 2)
    with pytest.raises(RestoreRefusedError, match="such as g; see --overwrite"):  # and the barrier stays
        restored(world, file)
    assert operation.accept_partial(client(world, principal=COORDINATOR))
    assert not operation.accept_partial(client(world, principal=COORDINATOR))
    world.pass_time(1_000)
    assert world.leader() is process
    assert process.machine.coordinator_elector.unfinished_restore is None
    assert inspection.read_unfinished_restore(client(world)) is None


def test_a_restore_that_runs_is_neither_accepted_nor_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_refuse_running`, do not look: two would write at once."""
    file, world = backed_up(tmp_path), empty_world()
    refused: list[str] = []

    def meanwhile(_count: int, _total: int | None) -> None:
        for act in (
            lambda: operation.accept_partial(client(world, principal=COORDINATOR)),
            lambda: restored(world, file, overwrite=True),
        ):
            with pytest.raises(RestoreRefusedError) as why:
                act()
            refused.append(str(why.value))

    monkeypatch.setattr(operation, "MAX_READS", 10)
    restored(world, file, progress=meanwhile)
    assert refused
    assert all(line.startswith("a restore runs here") for line in refused)
    assert paths.COORDINATOR not in world.zk.nodes


def test_what_a_former_leader_still_sends_fails_once_a_restore_has_begun(tmp_path: Path) -> None:
    """In `_Barrier.__enter__`, leave the epoch as it is."""
    file, world = backed_up(tmp_path), empty_world()
    process = world.add_coordinator()
    world.pass_time(1_000)
    fence = process.machine.scheduler.fence
    assert isinstance(world.zk.perform(Multi((fence,))), Done)
    world.kill_coordinator(process)
    world.pass_time(10_000)
    restored(world, file, overwrite=True)
    assert isinstance(world.zk.perform(Multi((fence,))), Refused)


@pytest.mark.parametrize("is_led", [False, True])
def test_a_restore_ends_if_somebody_takes_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_led: bool
) -> None:
    """In `_Barrier.write`, check nothing: it would write beside a leader, and delete the leader's node."""
    monkeypatch.setattr(operation, "MAX_READS", 3)
    world = empty_world()
    leader = (Create(paths.COORDINATOR, b"the leader", ephemeral=True),) if is_led else ()

    def lose(_count: int, _total: int | None) -> None:
        below = tuple(Delete(f"{paths.RESTORE}/{name}") for name in world.zk.children(paths.RESTORE))
        world.zk.perform(Multi((*below, Delete(paths.RESTORE), Delete(paths.COORDINATOR), *leader)))

    with pytest.raises(RestoreLostError, match="its session ended, or its node was deleted; restore again"):
        restored(world, backed_up(tmp_path), progress=lose)
    assert (paths.COORDINATOR in world.zk.nodes) == is_led


def test_a_restore_that_loses_its_node_at_the_end_does_not_count_as_complete(tmp_path: Path) -> None:
    """In `_Barrier.__exit__`, ignore the reply."""
    file, world = backed_up(tmp_path), empty_world()
    perform = world.zk.perform

    def lose(call: Call, session_id: int = 0) -> Reply:
        if isinstance(call, Multi) and Delete(paths.RESTORE) in call.operations:
            perform(Multi(tuple(Delete(f"{paths.RESTORE}/{name}") for name in world.zk.children(paths.RESTORE))))
        return perform(call, session_id)

    world.zk.perform = lose  # type: ignore[method-assign]
    with pytest.raises(RestoreLostError, match="restore again with --overwrite"):
        restored(world, file)
    assert paths.RESTORE in world.zk.nodes


def test_an_accepted_part_has_no_offsets_without_what_says_which_topic_they_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `restore`, write nodes in the order of the file: offsets of a former topic would count for the present one."""
    monkeypatch.setattr(operation, "MAX_WRITES", 1)
    monkeypatch.setattr(operation, "MAX_READS", 1)
    nodes = sorted(read(backed_up(tmp_path)), key=lambda node: "/incarnations" in node.path)
    file, calls, parts = tmp_path / "another-order", 0, 0
    write(file, iter(nodes), 1)
    while True:
        calls, world = calls + 1, empty_world()
        try:
            restored(world, file, calls=calls)
        except KilledError:
            present = world.zk.nodes.keys()
            if any(path.startswith(f"{paths.group(GROUP)}/offsets/") for path in present):
                assert f"{paths.group(GROUP)}/incarnations/t" in present
                parts += 1
        else:
            break
    assert parts > 1


class Torn(Client):
    """Raises `error` instead of the reply to the transaction that begins a restore, and once more after it.

    `is_gone`: the connection does not come back.
    """

    error: BaseException
    is_gone = False
    is_sent = True
    losses = 0

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        if self.is_gone and self.left == 0:
            raise ZooKeeperUnavailableError("gone")
        if self.losses:
            self.losses -= 1
            raise ZooKeeperUnavailableError("away")
        begins = isinstance(call, Multi) and any(Create(paths.RESTORE) == one for one in call.operations)
        reply = super().perform(call, expected) if self.is_sent or not begins else Done()
        if begins:
            self.left, self.losses = 0 if self.is_gone else self.left, 1
            raise self.error
        return reply


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZooKeeperUnavailableError("broke")], ids=["Ctrl-C", "broken"])
@pytest.mark.parametrize("is_sent", [True, False])
def test_a_restore_that_ends_as_it_begins_keeps_no_coordinator_from_leading(
    tmp_path: Path, error: BaseException, *, is_sent: bool
) -> None:
    """In `_Barrier.__enter__`, let the error pass: no coordinator leads until `--accept-partial`, of a whole tree."""
    file, world = backed_up(tmp_path), empty_world()
    torn = Torn(world, 10_000)
    torn.principal, torn.session_id, torn.error = COORDINATOR, world.zk.open().session_id, error
    torn.is_sent = is_sent
    with pytest.raises(type(error)):
        operation.restore(
            cast("BlockingZk", torn), file, overwrite=False, adopt_topics=False, now_ms=1, progress=nothing
        )
    assert paths.RESTORE not in world.zk.nodes
    assert leads(world)


class TornAtEnd(Client):
    """Raises an interrupt instead of the reply to the transaction that ends a restore."""

    is_sent = True
    is_torn = False

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        if self.is_torn or not isinstance(call, Multi) or Delete(paths.RESTORE) not in call.operations:
            return super().perform(call, expected)
        self.is_torn = True
        if self.is_sent:
            super().perform(call, expected)
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_sent", [True, False])
def test_who_interrupts_the_end_of_a_restore_keeps_no_coordinator_from_leading(
    tmp_path: Path, *, is_sent: bool
) -> None:
    """In `_Barrier.__exit__`, let the interrupt pass: no coordinator leads, and nobody is told."""
    file, world = backed_up(tmp_path), empty_world()
    torn = TornAtEnd(world, 10_000)
    torn.principal, torn.session_id, torn.is_sent = COORDINATOR, world.zk.open().session_id, is_sent
    with pytest.raises(KeyboardInterrupt):
        operation.restore(
            cast("BlockingZk", torn), file, overwrite=False, adopt_topics=False, now_ms=1, progress=nothing
        )
    assert paths.group(GROUP) in world.zk.nodes
    assert paths.RESTORE not in world.zk.nodes
    assert leads(world)


def test_what_a_restore_cannot_take_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(operation, "RECONNECT_S", 0.0)
    file, world = backed_up(tmp_path), empty_world()
    torn = Torn(world, 10_000)
    torn.principal, torn.session_id, torn.error = COORDINATOR, world.zk.open().session_id, KeyboardInterrupt()
    torn.is_gone = True
    with pytest.raises(KeyboardInterrupt):
        operation.restore(
            cast("BlockingZk", torn), file, overwrite=False, adopt_topics=False, now_ms=1, progress=nothing
        )
    assert [line for line in caplog.messages if "restore" in line] == [
        f"nothing was restored, but no coordinator may be able to lead: gone; {operation._REMEDY}"
    ]


def test_who_interrupts_a_restore_is_told_that_no_coordinator_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In `_Barrier._give_up`, say it only if nothing was written: an alert says it ten minutes later."""
    monkeypatch.setattr(operation, "MAX_READS", 7)

    def interrupt(_count: int, _total: int | None) -> None:
        raise KeyboardInterrupt

    file, world = backed_up(tmp_path), empty_world()
    with pytest.raises(KeyboardInterrupt):
        restored(world, file, progress=interrupt)
    assert paths.RESTORE in world.zk.nodes
    assert caplog.messages[-1].startswith("the tree is restored in part, so no coordinator can lead: ")


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_backup_during_which_a_restore_begins_fails(tmp_path: Path, is_complete: bool) -> None:
    """In `back_up`, look for a restore only at first: a file that looks whole would have nodes of two trees."""
    file, world = backed_up(tmp_path), empty_world()
    restored(world, file)

    def meanwhile(count: int, _total: int | None) -> None:
        if count == 1 and is_complete:
            restored(world, file, overwrite=True, now_ms=5)
        calls = 0
        while count == 1 and not is_complete and paths.RESTORE not in world.zk.nodes:
            calls += 1
            with pytest.raises(KilledError):
                restored(world, file, calls=calls, is_last_lost=False, overwrite=True, now_ms=5)

    with pytest.raises(PartialTreeError, match="a restore has begun meanwhile"):
        operation.back_up(client(world), tmp_path / "new", 1, meanwhile)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
