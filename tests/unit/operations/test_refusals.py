"""Each read and write of the tools, with the right that it needs withheld: it is named, and nothing looks empty.

What an operation needs is recorded while it has all rights; then each right is withheld from it, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import cast

import pytest

from tests.support.groups import world_with
from tests.support.secured_model import COORDINATOR
from tests.support.world import GROUP
from tests.support.zk_model import RIGHTS, Right, parent
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.observe import inspection
from zkrebalancer.operations import configure, kafka_offsets, loads
from zkrebalancer.operations.foresight import foresee, foresee_one
from zkrebalancer.operations.group_lifecycle import create_group, delete_group, read_nodes
from zkrebalancer.operations.reset_offsets import reset_offsets
from zkrebalancer.operations.restore_offsets import restore_offsets
from zkrebalancer.operations.weights import write_weights
from zkrebalancer.protocol import offset_copy, paths, settings, weights
from zkrebalancer.protocol.calls import (
    Call,
    Create,
    Delete,
    Done,
    Get,
    ListChildren,
    Multi,
    Operation,
    Refusal,
    Refused,
    Reply,
)
from zkrebalancer.protocol.errors import ZooKeeperRefusedError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.offset_copy import OffsetCopy
from zkrebalancer.protocol.refusals import require_expected
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

Needed = tuple[str, Right]
T0 = ("t", 0)
KAFKA = {"bootstrap.servers": "localhost:9092"}
COPY = OffsetCopy("t", "id-0", 1_000, {0: 7})


class Recording(ModelClient):
    """Notes at which nodes it needed which rights; `denied` is withheld from it alone."""

    def __init__(self, member: str | None, denied: Needed | None = None) -> None:
        world = world_with(GroupSettings(), *([member] if member is not None else ()), partitions=2)
        super().__init__(world.zk)
        self.create(f"{paths.BROKER_IDS}/1", b'{"rack":"north"}')
        for path, content in (
            (paths.offsets(GROUP, *T0), b"5"),
            (paths.weights(GROUP), weights.encode(weights.Weights(1, {"t": [[1.0], [2.0]]}))),
            (paths.COORDINATOR_OBSTACLES, b'{"version":1,"epoch":1,"obstacles":[]}'),
            (f"{paths.deleted_offsets(GROUP)}/1000-0000000001", offset_copy.encode(COPY)),
            (f"{paths.static(GROUP)}/pod", b"{}"),
        ):
            if path not in self.model.nodes:
                self.create(path, content)
        if member is not None:
            self.create(paths.evicted(GROUP, "gone"), b"{}")
        self.needed: dict[Needed, None] = {}  # in the order of the calls
        self.model.identity = str
        if denied is not None:
            self.model.denied.add(("0", *denied))

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        if isinstance(call, Get | ListChildren):
            needed: list[Needed] = [(call.path, Right.READ)]
        else:
            needed = [_needed_by(operation) for operation in call.operations] if isinstance(call, Multi) else []
        self.needed |= {each: None for each in needed if each[0] in self.model.nodes}
        return super().perform(call, expected)


def _needed_by(operation: Operation) -> Needed:
    if isinstance(operation, Create):
        return parent(operation.path), Right.CREATE
    if isinstance(operation, Delete):
        return parent(operation.path), Right.DELETE
    return operation.path, RIGHTS[type(operation)]


def as_zk(client: Recording) -> BlockingZk:
    return cast("BlockingZk", client)


# Each operation returns lines that name what it could not read and did without.


def list_groups(zk: BlockingZk) -> Iterable[str]:
    reports, refused = inspection.read_groups(zk)
    assert len(reports) + len(refused) == 1
    return [*(str(error) for error in refused), *(line for report in reports for line in report.problems.lines())]


def describe(zk: BlockingZk) -> Iterable[str]:
    report = inspection.read_group(zk, GROUP)
    inspection.read_obstacles(zk, report)
    inspection.read_offsets(zk, report)
    return report.problems.lines()


def plan(zk: BlockingZk) -> Iterable[str]:
    report = inspection.read_group(zk, GROUP)
    foresee_one(zk, report, T0, None)
    return foresee(zk, report, GroupSettings(strategy="balanced"), KAFKA).notes


def change_settings(zk: BlockingZk) -> Iterable[str]:
    before, node = configure.read_settings(zk, GROUP)
    configure.write_settings(zk, GROUP, node, configure.changed(before, ["frozen=true"]), "froze it")
    return ()


def read_loads(zk: BlockingZk) -> Iterable[str]:
    refused = loads.read_loads(zk, KAFKA, GROUP, {"t": 2}).refused
    return () if refused is None else [refused]


def change_weights(zk: BlockingZk) -> Iterable[str]:
    write_weights(zk, GROUP, b"{}")
    return ()


def reset(zk: BlockingZk) -> Iterable[str]:
    reset_offsets(zk, GROUP, lambda partitions: dict.fromkeys(partitions, 9), dry_run=False)
    return ()


def restore(zk: BlockingZk) -> Iterable[str]:
    restore_offsets(zk, GROUP, (), (), dry_run=False)
    return ()


def create(zk: BlockingZk) -> Iterable[str]:
    create_group(zk, "new", None)
    return ()


def delete(zk: BlockingZk) -> Iterable[str]:
    """Delete a group; operators may not."""
    cast("ModelClient", zk).principal = COORDINATOR
    delete_group(zk, GROUP, read_nodes(zk, GROUP))
    return ()


@pytest.fixture(autouse=True)
def kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(_kafka: object, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 10)

    monkeypatch.setattr(kafka_offsets, "known_log_ends", ends)
    monkeypatch.setattr(kafka_offsets.StoredInKafka, "read", lambda _self: {})


@pytest.mark.parametrize(
    ("operation", "member", "fewest"),
    [
        (inspection.read_leader, None, 1),
        (list_groups, "a", 14),
        (describe, "a", 17),
        (plan, "a", 18),
        (change_settings, None, 2),
        (read_loads, None, 6),
        (change_weights, None, 3),
        (reset, None, 12),
        (restore, None, 15),
        (create, None, 3),
        (delete, None, 20),
    ],
)
def test_a_right_that_is_withheld_is_named(
    operation: Callable[[BlockingZk], Iterable[str]], member: str | None, fewest: int
) -> None:
    """Take a refusal for a missing node anywhere, or a missing right for a change."""
    able = Recording(member)
    operation(as_zk(able))
    assert len(able.needed) >= fewest, able.needed
    for path, right in able.needed:
        client = Recording(member, (path, right))
        named = [line for line in _performed(operation, client) if path in line and "no permission" in line]
        assert named, f"nothing says that {right.name} is missing at {path}"
        assert not settings.decode(client.model.nodes[paths.group(GROUP)].content).starts_paused


def _performed(operation: Callable[[BlockingZk], Iterable[str]], client: Recording) -> Iterable[str]:
    """Return what an operation says that it could not do."""
    try:
        return operation(as_zk(client))
    except ZooKeeperRefusedError as error:
        return [str(error)]


def test_a_reset_that_may_not_pause_starts_changes_nothing() -> None:
    client = Recording(None, (paths.group(GROUP), Right.WRITE))
    missing = f"ZooKeeper refuses {paths.group(GROUP)}: no permission, right WRITE is missing; grant it"
    with pytest.raises(ZooKeeperRefusedError) as caught:
        reset(as_zk(client))
    assert str(caught.value).startswith(missing)
    assert client.model.nodes[paths.offsets(GROUP, *T0)].content == b"5"


def test_one_group_that_may_not_be_read_does_not_hide_the_others() -> None:
    client = Recording(None, (paths.offsets(GROUP), Right.READ))
    client.create(paths.group("other"), settings.encode(GroupSettings()))
    reports, refused = inspection.read_groups(as_zk(client))
    assert [report.name for report in reports] == ["other"]
    assert [error.path for error in refused] == [paths.offsets(GROUP)]


def test_only_what_is_expected_is_returned() -> None:
    call, fenced = Get("/a"), Multi((Create("/a"), Create("/a/b")))
    require_expected(call, Done(), ())
    require_expected(call, Refused(Refusal.NO_NODE), {Refusal.NO_NODE})
    with pytest.raises(ZooKeeperRefusedError, match=r"^ZooKeeper refuses /a: no node; .* try again$") as caught:
        require_expected(call, Refused(Refusal.NO_NODE), {Refusal.BAD_VERSION})
    assert caught.value.right is None
    with pytest.raises(ZooKeeperRefusedError, match=r"^ZooKeeper refuses /a/b: quota exceeded; raise the quota"):
        require_expected(fenced, Refused(Refusal.QUOTA_EXCEEDED, 1), {Refusal.NODE_EXISTS})
    with pytest.raises(ZooKeeperRefusedError, match=r"/a: no permission, right CREATE of its parent is missing"):
        require_expected(fenced, Refused(Refusal.NO_AUTH), {Refusal.NODE_EXISTS})
