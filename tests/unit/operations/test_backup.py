"""A tree is kept in a file and put back, also into another ensemble: no offset is lost, no generation used twice."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from errno import ENOENT
from pathlib import Path

import pytest

from tests.support.backups import OFFSETS, PARTITIONS, backed_up, client, empty_world, nothing, offsets, restored
from tests.support.client import Client, KilledError
from tests.support.groups import world_with
from tests.support.region_world import ORDER, RegionWorld
from tests.support.world import GROUP, World
from zkrebalancer.operations import backup as operation
from zkrebalancer.operations.backup import NothingToKeepError, RestoreLostError, RestoreRefusedError
from zkrebalancer.operations.backup_file import BackupFileError, Node, check, read, write
from zkrebalancer.operations.counting_on import GENERATION_STEP
from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import Call, Content, Create, Delete, Get, Multi, Reply, SetContent, Sync
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.region import documents
from zkrebalancer.region.documents import CHECKPOINT, Initial, Merge, Order, Request, Round, Settings


def generation(world: World) -> int:
    node = world.zk.perform(Get(paths.generation(GROUP)))
    assert isinstance(node, Content)
    return cluster_nodes.decode_counter("generation", node.content)


def test_another_ensemble_continues_with_every_offset_and_a_higher_generation(tmp_path: Path) -> None:
    file = backed_up(tmp_path)
    before = next(int(node.content) for node in read(file) if node.path == paths.generation(GROUP))
    world = empty_world()
    done = restored(world, file)
    assert (done.replaced, done.created > PARTITIONS) == (0, True)
    world.add_coordinator()
    world.pass_time(1_000)
    agent = world.add_agent("a", instance_id="i")
    world.pass_time(60_000)
    assert offsets(world) == OFFSETS
    assert sum(map(len, world.owned().values())) == PARTITIONS
    assert agent.name in world.owned()
    assert generation(world) > before + GENERATION_STEP


def test_marks_that_name_only_creations_do_not_delete_offsets(tmp_path: Path) -> None:
    """Keep `czxid-…` in `portable`: then the offsets are deleted, because the node was created by another number."""
    file = backed_up(tmp_path)
    nodes = [
        Node(node.path, b"czxid-999") if node.path.endswith(("/offsets/t", "/incarnations/t")) else node
        for node in read(file)
    ]
    other = tmp_path / "other"
    write(other, nodes, 1)
    world = empty_world()
    restored(world, other)
    world.add_coordinator()
    world.add_agent("a")
    world.pass_time(60_000)
    assert offsets(world) == OFFSETS


def test_a_topic_with_another_id_is_refused_unless_told_and_then_keeps_its_offsets(tmp_path: Path) -> None:
    file = backed_up(tmp_path)
    world = empty_world("id-2")
    with pytest.raises(RestoreRefusedError, match=r"1 topics have other ids here \(t\)"):
        restored(world, file)
    assert offsets(world) == {}
    restored(world, file, adopt_topics=True)
    world.add_coordinator()
    world.add_agent("a")
    world.pass_time(60_000)
    assert offsets(world) == OFFSETS


def test_what_ends_with_a_session_is_not_in_a_backup(tmp_path: Path) -> None:
    """In `_nodes`, keep ephemeral nodes: a restored one would never end."""
    world = world_with(partitions=PARTITIONS)
    gateway = world.zk.open()
    world.zk.perform(Multi((Create(paths.GATEWAYS),)))
    ephemeral = (Create(f"{paths.GATEWAYS}/one", ephemeral=True), Create(f"{paths.GATEWAYS}/kept"))
    world.zk.perform(Multi(ephemeral), gateway.session_id)
    operation.back_up(client(world), tmp_path / "new", 1, nothing)
    found = [node.path for node in read(tmp_path / "new")]
    assert (f"{paths.GATEWAYS}/one" in found, f"{paths.GATEWAYS}/kept" in found) == (False, True)


def test_members_and_their_commands_are_not_in_a_backup(tmp_path: Path) -> None:
    found = [node.path for node in read(backed_up(tmp_path))]
    assert paths.COORDINATOR not in found
    assert not [path for path in found if any(f"/{kind}/" in path for kind in ("ids", "owners", "channel", "given"))]
    assert {paths.given(GROUP), paths.served(GROUP), paths.COORDINATOR_EPOCH} <= {*found}


def test_who_is_who_and_the_leader_are_left_out_also_of_what_is_restored(tmp_path: Path) -> None:
    """In `_nodes` or `restore`, keep them: a login that was taken away would have its rights again.

    Members in a file would never leave.
    """
    world = world_with(partitions=PARTITIONS)
    for path in (paths.SECURITY, f"{paths.COORDINATOR}/below"):
        for one in (path.rpartition("/")[0], path):
            world.zk.perform(Multi((Create(one, b"{}"),)))
    operation.back_up(client(world), tmp_path / "new", 1, nothing)
    assert not {paths.SECURITY, paths.COORDINATOR, f"{paths.COORDINATOR}/below"} & {
        node.path for node in read(tmp_path / "new")
    }
    kept = [*read(tmp_path / "new"), Node(paths.SECURITY, b"{}"), Node(f"{paths.COORDINATOR}/below", b"")]
    members = [paths.ids(GROUP, "c-1"), paths.owners(GROUP, "c-1"), paths.region(GROUP, "members", "m")]
    write(tmp_path / "with", [*kept, *(Node(path, b"") for path in members)], 1)  # by hand
    target = empty_world()
    restored(target, tmp_path / "with")
    assert {paths.SECURITY, paths.COORDINATOR, *members}.isdisjoint(target.zk.nodes)


def test_the_offsets_of_kafkas_old_consumers_stay_as_they_are(tmp_path: Path) -> None:
    """In `_is_left_out`, keep them: consumers of Kafka 0.8 that run would read again from the day of the backup."""
    group = f"{paths.CONSUMERS}/old"
    nodes = [group, f"{group}/offsets", f"{group}/offsets/t", f"{group}/offsets/t/0"]
    world = world_with(partitions=PARTITIONS)
    world.zk.perform(Multi(tuple(Create(path, b"5") for path in nodes)))
    operation.back_up(client(world), tmp_path / "new", 1, nothing)
    found = list(read(tmp_path / "new"))
    assert not [node.path for node in found if node.path in nodes]
    write(tmp_path / "former", [*found, *(Node(path, b"5") for path in nodes)], 1)  # as earlier versions did
    target = empty_world()
    target.zk.perform(Multi(tuple(Create(path, b"9") for path in (paths.CONSUMERS, *nodes))))
    restored(target, tmp_path / "former")
    assert {target.zk.nodes[path].content for path in nodes} == {b"9"}


def test_a_live_tree_is_not_overwritten(tmp_path: Path) -> None:
    file = backed_up(tmp_path)
    world = world_with(partitions=PARTITIONS)
    with pytest.raises(RestoreRefusedError, match="a coordinator leads here"):
        restored(world, file, overwrite=True)
    agent = world.add_agent("a")
    world.pass_time(1_000)
    world.kill_coordinator(world.leader())
    world.zk.perform(Multi((Delete(paths.COORDINATOR),)))
    with pytest.raises(RestoreRefusedError, match="there are 1 groups here, such as g; see --overwrite"):
        restored(world, file)
    with pytest.raises(RestoreRefusedError, match=f"group g has consumers, such as {agent.name}"):
        restored(world, file, overwrite=True)
    world.kill_agent(agent)
    world.pass_time(10_000)
    member = paths.region(GROUP, "members", "m")  # with a client of Kafka, which has no registration
    for path in (paths.region(GROUP), paths.region(GROUP, "members"), member):
        world.zk.perform(Multi((Create(path),)))
    with pytest.raises(RestoreRefusedError, match="group g has consumers, such as m"):
        restored(world, file, overwrite=True)
    world.zk.perform(Multi((Delete(member),)))
    later = generation(world)
    assert restored(world, file, overwrite=True).created >= PARTITIONS
    assert (offsets(world), generation(world) > later) == (OFFSETS, True)


@pytest.mark.parametrize("bytes_", [800, 1_500, 3_000])
@pytest.mark.parametrize("at_once", [1, 3, 200])
def test_all_nodes_are_restored_however_few_fit_into_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, bytes_: int
) -> None:
    """In `_Barrier.write`, go on behind MAX_WRITES although fewer were written."""
    file = backed_up(tmp_path)
    whole = empty_world()
    done = restored(whole, file)
    monkeypatch.setattr(operation, "MAX_WRITES", at_once)
    monkeypatch.setattr(Client, "request_limit", RequestLimit(bytes_))
    world = empty_world()
    assert restored(world, file) == done
    below = [{path for path in one.zk.nodes if path.startswith(paths.CONSUMERS)} for one in (whole, world)]
    assert below[0] == below[1]
    assert offsets(world) == OFFSETS


@pytest.mark.parametrize("present", [3, 9_000_000])
def test_counters_of_the_tree_never_go_back(tmp_path: Path, present: int) -> None:
    """In `_higher`, take what the file has: an epoch or a generation would be used twice."""
    counters = (paths.COORDINATOR_EPOCH, paths.generation(GROUP), paths.given(GROUP))
    above = (paths.CONSUMERS, paths.GROUPS, paths.group(GROUP))
    world, file = empty_world(), tmp_path / "backup"
    write(file, [*(Node(path, b"") for path in above), *(Node(path, b"5") for path in counters)], 1)
    restored(world, file)
    world.zk.perform(Multi(tuple(SetContent(path, str(present).encode()) for path in counters)))
    restored(world, file, overwrite=True)
    epoch, *others = (int(world.zk.nodes[path].content) for path in counters)
    assert (epoch, set(others)) == (max(present, 5), {max(present, 5 + GENERATION_STEP)})


def signed(lines: list[str]) -> str:
    """Return lines of a backup with the end that is right for them, as of a person who knows how to make it."""
    above = "".join(f"{line}\n" for line in lines)
    end = {"nodes": len(lines) - 1, "sha256": hashlib.sha256(above.encode()).hexdigest()}
    return f"{above}{json.dumps(end)}\n"


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (lambda lines: [lines[0], *lines[2:]], "line 2: .* does not come after /consumers"),
        (lambda lines: [*lines, lines[-1]], "comes twice"),
        (lambda lines: [*lines, '{"path": "/consumers/a\\u0001", "content": ""}'], "is not a node below"),
        (lambda lines: [*lines, '{"path": "/consumers/\\ud83d\\ude00", "content": ""}'], "is not a node below"),
    ],
)
def test_a_file_that_was_edited_is_refused_before_anything_is_written(
    tmp_path: Path, edit: Callable[[list[str]], list[str]], fault: str
) -> None:
    """In `backup_file.check`, look at the form alone: a part would be written, and others blamed."""
    file = backed_up(tmp_path)
    lines = file.read_text().splitlines()[:-1]
    world = empty_world()
    before = dict(world.zk.nodes)
    file.write_text(signed(edit(lines)))
    with pytest.raises(BackupFileError, match=fault):
        restored(world, file)
    assert world.zk.nodes == before
    file.write_text(signed(lines))
    restored(world, file)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda lines: lines[:-1], "the end is missing"),
        (lambda lines: [*lines[:3], *lines[4:]], "the file is damaged"),
        (
            lambda lines: [lines[0], lines[1].replace('"content":"', '"content":"AAAA'), *lines[2:]],
            "the file is damaged",
        ),
        (lambda lines: [*lines, lines[-1]], "there is data after the end"),
        (lambda lines: [lines[0], "x", *lines[1:]], "line 2 is not JSON"),
        (lambda lines: [lines[0], '{"path": "/brokers", "content": ""}', *lines[1:]], "line 2 is not a node below"),
        (lambda lines: [*lines[1:]], "it is not a backup of this version"),
    ],
)
def test_what_is_no_whole_backup_is_refused_before_anything_is_written(
    tmp_path: Path, damage: Callable[[list[str]], list[str]], fault: str
) -> None:
    file = backed_up(tmp_path)
    file.write_text("\n".join(damage(file.read_text().splitlines())) + "\n")
    world = empty_world()
    before = dict(world.zk.nodes)
    with pytest.raises(BackupFileError, match=fault) as refused:
        restored(world, file)
    assert str(refused.value).startswith(f"{file}: line ")
    assert world.zk.nodes == before


def test_a_file_is_not_replaced_and_a_failed_backup_leaves_none(tmp_path: Path) -> None:
    file = backed_up(tmp_path)
    with pytest.raises(FileExistsError, match="backup exists"):
        write(file, [], 1)
    dangling = tmp_path / "dangling"
    dangling.symlink_to("nowhere")
    with pytest.raises(FileExistsError, match="dangling exists"):
        write(dangling, [], 1)
    dangling.unlink()
    with pytest.raises(FileNotFoundError) as missing:
        write(tmp_path / "no/backup", [], 1)
    assert (missing.value.filename, missing.value.strerror) == (str(tmp_path / "no/backup"), os.strerror(ENOENT))
    with pytest.raises(KilledError):
        operation.back_up(client(World(), calls=1), tmp_path / "new", 1, nothing)
    assert [path.name for path in tmp_path.iterdir()] == ["backup"]
    assert json.loads(file.read_text().splitlines()[0]).keys() == {"zkrebalancer_backup", "taken_at_ms"}
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_kept_or_read_again_is_refused(tmp_path: Path) -> None:
    """In `back_up`, keep an empty tree: it is that of another chroot. In `check`, read a pipe: it waits for ever."""
    with pytest.raises(NothingToKeepError, match="there is no /consumers here; --zookeeper needs the chroot"):
        operation.back_up(client(World()), tmp_path / "new", 1, nothing)
    assert [*tmp_path.iterdir()] == []
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BackupFileError, match="pipe: is not a regular file"):
        check(tmp_path / "pipe")


def test_a_region_begins_with_a_reset_to_the_checkpoint_of_the_backup(tmp_path: Path) -> None:
    world = world_with(partitions=PARTITIONS)
    before = Order(
        id=9,
        reset=3,
        complete=8,
        pieces=1,
        open=Round(9, CHECKPOINT, ("a",)),
        members={"a": 77},
        left={"b": 78},
    )
    mark = "id-1 czxid-5"
    nodes = [
        ((), documents.encode_settings(Settings("billing", "group", 1_000))),
        *(((kind,), b"") for kind in paths.REGION_CHILDREN),
        (("order",), documents.encode_order(before)),
        (("merged", "8.0"), documents.encode_merge(Merge(8, {("t", 0): 5}, {"t": mark}, {"a": 8}))),
        (("initial", "t"), b""),
        (("initial", "t/0"), documents.encode_initial(Initial(2, mark))),
        (("contributions", "9"), b""),
        (("requests", "reset-0"), documents.encode_request(Request("reset", "a"))),
    ]
    world.zk.perform(Multi(tuple(Create(paths.region(GROUP, *below), content) for below, content in nodes)))
    file = tmp_path / "backup"
    operation.back_up(client(world), file, 1, nothing)
    other = empty_world()
    restored(other, file)
    order = documents.decode_order(other.zk.nodes[paths.region(GROUP, "order")].content)
    assert order == Order(id=9, reset=3, complete=8, pieces=1, pending="restored from a backup")
    merge = documents.decode_merge(other.zk.nodes[paths.region(GROUP, "merged", "8.0")].content)
    assert merge == Merge(8, {("t", 0): 5}, {"t": "id-1"}, {"a": 8})
    initial = documents.decode_initial(other.zk.nodes[paths.region(GROUP, "initial", "t/0")].content)
    assert initial == Initial(2, "id-1")
    assert all(not other.zk.children(paths.region(GROUP, kind)) for kind in ("contributions", "requests", "members"))


def merges(file: Path) -> list[str]:
    return [node.path.rpartition("/")[2] for node in read(file) if f"{paths.region(GROUP, 'merged')}/" in node.path]


@pytest.mark.parametrize("after", [ORDER, paths.region(GROUP, "merged", "1.0"), paths.region(GROUP, "merged", "1.1")])
def test_a_region_has_the_merge_that_its_order_names_though_another_checkpoint_completes(
    tmp_path: Path, after: str
) -> None:
    """In `checkpoint_nodes`, try once, or take a part: nobody could begin after a restore without the whole merge."""
    region = RegionWorld("a", "b", partitions=40, limit=RequestLimit(4_000))
    region.complete_checkpoint()
    assert region.order().pieces > 2
    perform, left = region.world.zk.perform, 2 if after == ORDER else 1

    def another_completes(call: Call, session_id: int = 0) -> Reply:
        nonlocal left
        reply = perform(call, session_id)
        if call == Get(after) and not session_id and left:
            left -= 1
            region.complete_checkpoint()
        return reply

    region.world.zk.perform = another_completes  # type: ignore[method-assign]
    file, world = tmp_path / "backup", empty_world()
    operation.back_up(client(region.world), file, 1, nothing)
    assert not left
    restored(world, file)
    order = documents.decode_order(world.zk.nodes[ORDER].content)
    assert order.complete == (3 if after == ORDER else 2)
    assert merges(file) == world.zk.children(paths.region(GROUP, "merged"))
    assert merges(file) == [f"{order.complete}.{piece}" for piece in range(order.pieces)]


def test_a_damaged_region_is_kept_as_it_is(tmp_path: Path) -> None:
    """Its leader makes an order anew from the merges, in the restored tree too."""
    region = RegionWorld("a", "b")
    region.complete_checkpoint()
    names = region.children("merged")
    region.set(ORDER, b"foreign")
    operation.back_up(client(region.world), tmp_path / "foreign", 1, nothing)
    assert merges(tmp_path / "foreign") == names
    region.delete(ORDER)
    operation.back_up(client(region.world), tmp_path / "none", 1, nothing)
    assert merges(tmp_path / "none") == names
    region.pass_time(1_000)
    region.delete(*(paths.region(GROUP, "merged", name) for name in names))
    operation.back_up(client(region.world), tmp_path / "without", 1, nothing)
    assert ORDER in {node.path for node in read(tmp_path / "without")}
    assert merges(tmp_path / "without") == []


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (paths.owners(GROUP, "c-1"), "group g has consumers, such as c-1; stop them first"),
        (f"{paths.LIVE_GATEWAYS}/3", f"gateways run here: {paths.LIVE_GATEWAYS}/3 exists; stop them first"),
        (f"{paths.BUCKET_OWNERS}/7", f"gateways run here: {paths.BUCKET_OWNERS}/7 exists; stop them first"),
    ],
)
def test_a_tree_into_which_somebody_may_write_is_not_replaced(tmp_path: Path, path: str, why: str) -> None:
    """In `_refuse_live_tree`, look for registrations only: who has lost its registration may still commit."""
    file, world = backed_up(tmp_path), empty_world()
    above = [path[: at.start()] for at in re.finditer("/", path) if at.start()]
    for each in above:
        world.zk.perform(Multi((Create(each),)))
    world.zk.perform(Multi((Create(path, ephemeral=True),)), world.zk.open().session_id)
    before = {paths.CONSUMERS, paths.GROUPS, *world.zk.nodes}
    with pytest.raises(RestoreRefusedError) as refused:
        restored(world, file, overwrite=True)
    assert str(refused.value) == why
    assert world.zk.nodes.keys() == before


def test_nodes_of_gateways_of_a_copied_tree_keep_nobody_from_restoring(tmp_path: Path) -> None:
    """In `_refuse_live_tree`, count those without a session: no gateway can be stopped so that they go."""
    file, world = backed_up(tmp_path), empty_world()
    nodes = paths.CONSUMERS, paths.GATEWAYS, paths.LIVE_GATEWAYS, paths.BUCKET_OWNERS
    for each in (*nodes, f"{paths.LIVE_GATEWAYS}/3", f"{paths.BUCKET_OWNERS}/7"):
        world.zk.perform(Multi((Create(each),)))
    restored(world, file, overwrite=True)
    assert world.zk.children(paths.GROUPS) == [GROUP]


def test_a_backup_is_not_of_a_server_that_lags(tmp_path: Path) -> None:
    """In `back_up`, do not sync first."""
    world = world_with(partitions=PARTITIONS)
    perform, calls = world.zk.perform, list[Call]()

    def noted(call: Call, session_id: int = 0) -> Reply:
        calls.append(call)
        return perform(call, session_id)

    world.zk.perform = noted  # type: ignore[method-assign]
    operation.back_up(client(world), tmp_path / "backup", 1, nothing)
    assert calls[0] == Sync(paths.CONSUMERS)


def test_a_counter_that_cannot_be_read_is_replaced_by_that_of_the_backup(tmp_path: Path) -> None:
    file, world = backed_up(tmp_path), empty_world()
    restored(world, file)
    known = generation(world)
    world.zk.perform(Multi((SetContent(paths.generation(GROUP), b"foreign"),)))
    restored(world, file, overwrite=True)
    assert generation(world) == known


def test_a_node_that_changes_while_it_is_replaced_ends_the_restore(tmp_path: Path) -> None:
    """In `_write`, replace it whatever its version is."""
    file, world = backed_up(tmp_path), empty_world()
    restored(world, file)
    path = paths.offsets(GROUP, "t", 0)
    world.zk.perform(Multi((SetContent(path, b"1"),)))
    perform = world.zk.perform

    def change_first(call: Call, session_id: int = 0) -> Reply:
        if isinstance(call, Multi) and any(one.path == path for one in call.operations):
            perform(Multi((SetContent(path, b"2"),)))
        return perform(call, session_id)

    world.zk.perform = change_first  # type: ignore[method-assign]
    with pytest.raises(RestoreLostError, match=f"^{path} changed meanwhile"):
        restored(world, file, overwrite=True)
    assert offsets(world)[0] == 2
