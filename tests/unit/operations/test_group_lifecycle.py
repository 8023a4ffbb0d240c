"""Groups are created and deleted atomically, and deleted only without consumers, also in a race."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import cast

import pytest

from tests.support.client import Client, KilledError
from tests.support.groups import world_with
from tests.support.secured_model import COORDINATOR
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.observe.inspection import UnknownGroupError
from zkrebalancer.operations import group_lifecycle, starts_pause
from zkrebalancer.operations.group_lifecycle import (
    GroupChangedError,
    GroupExistsError,
    GroupInUseError,
    create_group,
    delete_group,
    read_nodes,
)
from zkrebalancer.operations.starts_pause import OffsetsRefusedError
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Call, Create, Delete, Multi, Refusal, Reply
from zkrebalancer.protocol.errors import InvalidNameError, ZooKeeperRefusedError
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

PARTITIONS = 4
MAX_CALLS = 200


@pytest.fixture(autouse=True)
def _as_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log in as a coordinator: operators may not delete groups."""
    for kind in (Client, ModelClient):
        monkeypatch.setattr(kind, "principal", COORDINATOR)


def as_zk(client: Client | ModelClient) -> BlockingZk:
    return cast("BlockingZk", client)


def delete(client: Client | ModelClient) -> None:
    delete_group(as_zk(client), GROUP, read_nodes(as_zk(client), GROUP))


def with_offsets() -> World:
    """Return a group that a coordinator serves, with stored offsets and without consumers."""
    world = world_with(partitions=PARTITIONS)
    mark = world.topics()["t"].incarnation.encode()
    made = [Create(paths.offsets(GROUP, "t"), mark), Create(paths.deleted_offsets(GROUP))]
    made += [Create(paths.offsets(GROUP, "t", number), b"5") for number in range(PARTITIONS)]
    made += [Create(f"{paths.deleted_offsets(GROUP)}/1-0000000000", b"{}")]
    world.zk.perform(Multi(tuple(made)))
    world.pass_time(1_000)
    return world


def nodes_of(world: World) -> list[str]:
    return [path for path in world.zk.nodes if path.startswith(paths.group(GROUP))]


def stored_offsets(world: World) -> list[str]:
    return world.zk.children(paths.offsets(GROUP, "t"))


def assert_served(world: World) -> None:
    world.add_agent("a")
    world.pass_time(62_000)
    assert len(world.owned()["a-1"]) == PARTITIONS
    assert not settings.decode(world.zk.nodes[paths.group(GROUP)].content).starts_paused


# ---- create


@pytest.mark.parametrize("wanted", [None, GroupSettings(strategy="range")])
def test_a_group_that_was_created_is_served(wanted: GroupSettings | None) -> None:
    world = World()
    world.set_topic("t", PARTITIONS)
    world.add_coordinator()
    create_group(as_zk(Client(world)), GROUP, wanted)
    assert settings.decode(world.zk.nodes[paths.group(GROUP)].content) == (wanted or GroupSettings())
    assert_served(world)


def test_a_group_is_created_only_once_and_with_a_name_that_is_allowed() -> None:
    client = ModelClient()
    create_group(as_zk(client), GROUP, GroupSettings(frozen=True))
    with pytest.raises(GroupExistsError, match="there is a group g already"):
        create_group(as_zk(client), GROUP, None)
    assert settings.decode(client.model.nodes[paths.group(GROUP)].content).frozen
    with pytest.raises(InvalidNameError):
        create_group(as_zk(client), "a/b", None)


def test_an_operator_needs_no_right_above_the_groups() -> None:
    """In `create_group`, do not look whether `/consumers` exists."""
    client = ModelClient()
    client.create(paths.GROUPS)
    client.model.identity = str
    client.model.denied |= {("0", "/", Right.CREATE), ("0", paths.CONSUMERS, Right.CREATE)}
    create_group(as_zk(client), GROUP, None)
    assert paths.group(GROUP) in client.model.nodes


# ---- delete


def test_a_deleted_group_is_gone_with_its_offsets_and_may_be_created_again() -> None:
    world = with_offsets()
    world.zk.perform(Multi((Create(paths.group("g2")),)))
    nodes = read_nodes(as_zk(Client(world)), GROUP)
    assert len(nodes.offsets) == PARTITIONS
    assert nodes.every[-1] == paths.group(GROUP)
    transactions = len(world.zk.transactions)
    delete_group(as_zk(Client(world)), GROUP, nodes)
    assert len(world.zk.transactions) == transactions + 1
    world.pass_time(1_000)
    assert world.zk.children(paths.GROUPS) == ["g2"]
    assert set(world.leader().machine.groups) == {"g2"}
    create_group(as_zk(Client(world)), GROUP, None)
    assert_served(world)


@pytest.mark.parametrize("folder", [paths.ids, paths.owners])
def test_a_group_with_consumers_is_not_deleted_and_they_are_named(folder: Callable[[str], str]) -> None:
    world = with_offsets()
    world.zk.perform(Multi(tuple(Create(f"{folder(GROUP)}/c-{number}") for number in range(5))))
    with pytest.raises(GroupInUseError, match=r"^group g has consumers \(c-0, c-1, c-2 and 2 more\); stop them first$"):
        delete(Client(world))
    assert len(stored_offsets(world)) == PARTITIONS


def test_a_group_with_an_evicted_consumer_is_not_deleted() -> None:
    """It may still emit. In `refuse_members`, do not look at `evicted`."""
    client = ModelClient()
    client.create(paths.evicted(GROUP, "c-1"))
    with pytest.raises(GroupInUseError, match=r"has evicted consumers \(c-1\): their leases"):
        delete(client)


def test_the_channel_of_a_dead_consumer_does_not_keep_a_group() -> None:
    """Without a coordinator, nobody removes it."""
    client = ModelClient()
    create_group(as_zk(client), GROUP, None)
    client.create(f"{paths.channel(GROUP, 'c-1')}/command-0000000000")
    delete(client)
    assert paths.group(GROUP) not in client.model.nodes


def test_a_group_that_does_not_exist_is_not_deleted() -> None:
    with pytest.raises(UnknownGroupError, match="there is no group g;"):
        delete(ModelClient())
    with pytest.raises(InvalidNameError):
        read_nodes(as_zk(ModelClient()), "..")


@pytest.mark.parametrize(
    ("created", "error", "text"),
    [
        (paths.ids(GROUP, "c-1"), GroupInUseError, r"has consumers \(c-1\)"),
        (paths.given(GROUP), GroupChangedError, "changed meanwhile and is not deleted; try again"),
    ],
)
def test_what_comes_in_between_keeps_the_whole_group(created: str, error: type[Exception], text: str) -> None:
    client = ModelClient()
    create_group(as_zk(client), GROUP, None)
    client.create(paths.offsets(GROUP, "t", 0), b"5")
    before = set(client.model.nodes)
    client.meanwhile = lambda: client.create(created)
    with pytest.raises(error, match=text):
        delete(client)
    assert set(client.model.nodes) == {*before, created}


# ---- delete a group that is too large for one transaction


@pytest.fixture
def small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lifecycle, "MAX_NODES_AT_ONCE", PARTITIONS)
    monkeypatch.setattr(starts_pause, "MAX_WRITES_PER_TRANSACTION", 1)


@pytest.mark.usefixtures("small_transactions")
def test_a_deletion_that_is_killed_after_any_call_leaves_a_group_that_goes_on_and_can_be_deleted() -> None:
    partial = 0
    for calls in range(1, MAX_CALLS):
        world = with_offsets()
        try:
            delete(Client(world, calls, is_last_lost=False))
        except KilledError:
            left = len(stored_offsets(world))
            if not nodes_of(world):
                continue  # it was killed after its last call
            partial += 0 < left < PARTITIONS
            if calls % 3 == 0:
                assert_served(world)
            else:
                delete(Client(world, MAX_CALLS))
                assert not nodes_of(world)
        else:
            break
    assert partial >= PARTITIONS - 1
    assert not nodes_of(world)


@pytest.mark.usefixtures("small_transactions")
def test_of_a_region_no_offset_is_deleted_before_its_order() -> None:
    """If the deletion is killed, its members are reset. In `_delete_below`, delete the order with the others."""
    partial = 0
    for calls in range(1, MAX_CALLS):
        world = with_offsets()
        for path in (paths.region(GROUP), paths.region(GROUP, "order")):
            world.zk.perform(Multi((Create(path),)))
        try:
            delete(Client(world, calls, is_last_lost=False))
        except KilledError:
            left = len(stored_offsets(world))
            partial += 0 < left < PARTITIONS
            assert left == PARTITIONS or paths.region(GROUP, "order") not in world.zk.nodes
        else:
            break
    assert partial >= PARTITIONS - 1
    assert not nodes_of(world)


class Met(Client):
    """While it deletes offsets, a consumer registers, which must start at all of them or at none."""

    def __init__(self, world: World, offsets_left: int) -> None:
        super().__init__(world, MAX_CALLS, pause_ms=100)
        self._offsets_left = offsets_left

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        if not self.world.agents and len(stored_offsets(self.world)) == self._offsets_left and isinstance(call, Multi):
            self.world.add_agent("a")
            self.world.pass_time(100)
        reply = super().perform(call, expected)
        assert not any(self.world.owned().values()) or len(stored_offsets(self.world)) in {0, PARTITIONS}
        return reply


@pytest.mark.usefixtures("small_transactions")
def test_a_large_group_with_channels_of_dead_consumers_is_deleted_without_a_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `starts_pause.refuse_consumers`, count a channel as a consumer."""
    monkeypatch.setattr(starts_pause, "CLEANUP_TIMEOUT_S", 0.0)
    world = with_offsets()
    world.kill_coordinator(world.leader())
    channel = paths.channel(GROUP, "c-1")
    world.zk.perform(Multi((Create(channel), Create(f"{channel}/command-0000000000"))))
    delete(Client(world, MAX_CALLS))
    assert not nodes_of(world)


@pytest.mark.usefixtures("small_transactions")
@pytest.mark.parametrize("offsets_left", range(PARTITIONS))
def test_a_consumer_that_registers_meanwhile_starts_when_all_offsets_are_deleted(offsets_left: int) -> None:
    """In `_delete_below`, do not pause starts."""
    world = with_offsets()
    with pytest.raises(GroupInUseError, match=r"has consumers \(a-1\); .* its stored offsets are deleted"):
        delete(Met(world, offsets_left))
    assert stored_offsets(world) == []
    world.pass_time(1_000)
    assert len(world.owned()["a-1"]) == PARTITIONS


@pytest.mark.usefixtures("small_transactions")
def test_a_consumer_that_registers_before_the_first_offset_is_deleted_keeps_all() -> None:
    world = with_offsets()
    with pytest.raises(OffsetsRefusedError, match=r"has consumers \(a-1\)"):
        delete(Met(world, PARTITIONS))
    assert len(stored_offsets(world)) == PARTITIONS
    world.pass_time(1_000)
    assert len(world.owned()["a-1"]) == PARTITIONS


@pytest.mark.usefixtures("small_transactions")
def test_without_the_right_to_delete_the_group_no_offset_is_deleted() -> None:
    """In `_delete_below`, do not try to delete the group first. Operators may delete offsets, but not groups."""
    world = with_offsets()
    world.zk.identity = str
    world.zk.denied.add(("0", paths.GROUPS, Right.DELETE))
    missing = f"ZooKeeper refuses {paths.group(GROUP)}: no permission, right DELETE of its parent is missing"
    with pytest.raises(ZooKeeperRefusedError, match=missing):
        delete(Client(world, MAX_CALLS))
    assert len(stored_offsets(world)) == PARTITIONS


def test_a_request_is_never_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `delete_group`, look only at the number of nodes."""
    monkeypatch.setattr(starts_pause, "MAX_WRITES_PER_TRANSACTION", 1)
    client = ModelClient()
    create_group(as_zk(client), GROUP, None)
    for number in range(PARTITIONS):
        client.create(paths.offsets(GROUP, "t", number))
    nodes = read_nodes(as_zk(client), GROUP)
    size = client.request_limit.size([Delete(path) for path in nodes.every])
    client.request_limit = type(client.request_limit)(size - 1)
    before = len(client.model.transactions)
    delete_group(as_zk(client), GROUP, nodes)
    assert paths.group(GROUP) not in client.model.nodes
    assert all(client.request_limit.fits(operations) for operations in client.model.transactions[before:])


def test_a_group_with_more_topics_than_one_transaction_can_delete_is_deleted() -> None:
    """In `_delete_below`, delete only offsets: they are lost, and the group can never be deleted."""
    client = ModelClient()
    create_group(as_zk(client), GROUP, None)
    for number in range(40):
        topic = f"topic-{number}"
        client.create(paths.offsets(GROUP, topic, 0), b"5")
        client.create(paths.incarnations(GROUP, topic))
        client.create(paths.lives(GROUP, topic))
    client.request_limit = type(client.request_limit)(3_000)  # the folders alone need 1,100
    delete(client)
    assert paths.group(GROUP) not in client.model.nodes
    deleted = [one.path for done in client.model.transactions for one in done if isinstance(one, Delete)]
    lives = [place for place, path in enumerate(deleted) if path.startswith(f"{paths.lives(GROUP)}/")]
    others = [place for place, path in enumerate(deleted) if path.startswith(f"{paths.incarnations(GROUP)}/")]
    assert max(others) < min(lives), "after a deletion that is killed, sinks would ignore an operator's offsets"
