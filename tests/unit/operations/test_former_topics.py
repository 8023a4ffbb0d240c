"""Offsets that belong to a former topic of the same name, in operations that no coordinator has preceded."""

from __future__ import annotations

from typing import cast

import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP, World
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.observe import inspection
from zkrebalancer.operations.move_offsets import in_zookeeper
from zkrebalancer.operations.reset_offsets import reset_offsets
from zkrebalancer.operations.starts_pause import OffsetsRefusedError
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Multi
from zkrebalancer.runtime.zk import BlockingZk

PARTITIONS = 3


@pytest.fixture
def world() -> World:
    """A group whose topic was created anew while no coordinator ran."""
    world = world_with(partitions=PARTITIONS)
    mark = world.topics()["t"].incarnation.encode()
    nodes = [Create(paths.offsets(GROUP, "t"), mark)]
    nodes += [Create(paths.offsets(GROUP, "t", number), b"500") for number in range(PARTITIONS)]
    world.zk.perform(Multi(tuple(nodes)))
    world.pass_time(1_000)
    world.kill_coordinator(world.leader())
    world.delete_topic("t")
    world.set_topic("t", PARTITIONS, "id-2")
    return world


def zk_of(world: World) -> BlockingZk:
    return cast("BlockingZk", ModelClient(world.zk))


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_reset_is_refused_because_the_leader_would_delete_what_it_sets(world: World, dry_run: bool) -> None:
    """In `reset_offsets._changes`, refuse nothing: the consumers begin elsewhere than the operator was told."""
    with pytest.raises(OffsetsRefusedError, match="offsets of a former topic t; start a coordinator"):
        reset_offsets(zk_of(world), GROUP, lambda asked: dict.fromkeys(asked, 7), dry_run)
    world.add_coordinator()
    world.pass_time(62_000)
    assert reset_offsets(zk_of(world), GROUP, lambda asked: dict.fromkeys(asked, 7), dry_run) == {}


def test_an_export_is_refused_because_another_store_has_no_marks(world: World) -> None:
    """In `move_offsets.in_zookeeper`, refuse nothing: after an import, the first 500 records are never read."""
    with pytest.raises(OffsetsRefusedError, match="offsets of a former topic t"):
        in_zookeeper(zk_of(world), GROUP)
    world.add_coordinator()
    world.pass_time(1_000)
    assert in_zookeeper(zk_of(world), GROUP) == {}


def test_they_are_not_shown_as_those_of_the_present_topic(world: World) -> None:
    report = inspection.read_group(zk_of(world), GROUP)
    inspection.read_offsets(zk_of(world), report)
    assert report.offsets == {}
    assert report.problems.lines() == ["those of t belong to a former topic: the leader will delete them"]


def test_a_topic_that_only_got_an_id_is_no_other_topic(world: World) -> None:
    """Its node stays; only `czxid` is in the mark of a leader that knew no id."""
    known = world.topics()["t"].incarnation.split()
    node = paths.offsets(GROUP, "t")
    cast("ModelClient", zk_of(world)).set(node, known[-1].encode())
    assert in_zookeeper(zk_of(world), GROUP) == {("t", number): 500 for number in range(PARTITIONS)}
