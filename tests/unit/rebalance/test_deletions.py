"""A deleted group leaves an event; it names who deleted it if the command could leave that with the deletion."""

from __future__ import annotations

from typing import cast

import pytest

from tests.support.client import Client
from tests.support.groups import world_with
from tests.support.secured_model import COORDINATOR
from tests.support.world import GROUP, World
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.coordinator.operator_log import OperatorLog
from zkrebalancer.operations import audit
from zkrebalancer.operations.group_lifecycle import create_group, delete_group, read_nodes
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Delete, Multi
from zkrebalancer.protocol.last_change import LastChange
from zkrebalancer.runtime.zk import BlockingZk

EVE = LastChange("eve@ops1", 5, "deleted the group")


@pytest.fixture
def zk_of(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    """Log in as eve, who may delete groups."""
    monkeypatch.setattr(Client, "principal", COORDINATOR)
    monkeypatch.setattr(audit, "change", lambda _what: EVE)
    return Client


def delete(zk_of: type[Client], world: World) -> None:
    zk = cast("BlockingZk", zk_of(world))
    delete_group(zk, GROUP, read_nodes(zk, GROUP))


def delete_without_a_name(world: World) -> None:
    below = sorted((path for path in world.zk.nodes if path.startswith(paths.group(GROUP))), key=len, reverse=True)
    world.zk.perform(Multi(tuple(Delete(path) for path in below)))


def deleted(world: World) -> list[tuple[object, ...]]:
    found = [event for event in world.events if event.kind == "group_deleted"]
    return [(event.group, event.fields.get("by"), event.fields.get("at_ms")) for event in found]


def test_the_leader_reports_who_deleted_a_group(zk_of: type[Client]) -> None:
    """In `delete_group`, leave `_naming` out: nobody is named. In `Coordinator._drop_some`, do not report it."""
    world = world_with()
    delete(zk_of, world)
    world.pass_time(2_000)
    assert deleted(world) == [(GROUP, "eve@ops1", 5)]
    (event,) = [each for each in world.events if each.kind == "group_deleted"]
    assert OperatorLog().lines(event, "", 0) == [f"group {GROUP}: eve@ops1 deleted the group"]


def test_the_name_of_an_earlier_deletion_is_not_given_to_a_later_one(zk_of: type[Client]) -> None:
    """In `last_change.read_deletion`, ignore the transaction: eve is named for what another client deleted."""
    world = world_with()
    delete(zk_of, world)
    world.pass_time(2_000)
    create_group(cast("BlockingZk", zk_of(world)), GROUP, None)
    world.pass_time(70_000)
    assert GROUP in world.leader().machine.groups
    delete_without_a_name(world)
    world.pass_time(2_000)
    assert deleted(world)[1:] == [(GROUP, None, None)]
    event = [each for each in world.events if each.kind == "group_deleted"][-1]
    assert OperatorLog().lines(event, "", 0) == [f"group {GROUP}: deleted"]


def test_a_group_that_is_created_again_before_the_leader_looks_was_deleted(
    zk_of: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Authors.adopt`, report nothing: a look at the list of groups finds none missing."""
    assert zk_of is Client
    monkeypatch.setattr(ModelClient, "principal", COORDINATOR)
    world = world_with()
    zk = cast("BlockingZk", ModelClient(world.zk))  # the leader makes no step between these calls
    delete_group(zk, GROUP, read_nodes(zk, GROUP))
    create_group(zk, GROUP, None)
    world.pass_time(2_000)
    assert deleted(world) == [(GROUP, "eve@ops1", 5)]


def test_a_group_that_stays_is_not_reported() -> None:
    """In `Authors.adopt`, report each group that is read again."""
    world = world_with()
    world.pass_time(400_000)  # a reconciliation
    assert deleted(world) == []
