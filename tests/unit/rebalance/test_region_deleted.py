"""Nodes of a region that another program deletes: its leader makes them anew, unless the whole region is deleted."""

from __future__ import annotations

import pytest

from tests.support.groups import read_paths
from tests.support.region_world import ORDER, SETTINGS, RegionWorld
from tests.support.world import GROUP
from tests.support.zk_model import Right
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Create
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.region_nodes import MISSING_PAUSE_US
from zkrebalancer.region import documents
from zkrebalancer.region.documents import CHECKPOINT

NODE = paths.region(GROUP)


@pytest.mark.parametrize("kind", paths.REGION_CHILDREN)
def test_a_container_that_was_deleted_is_made_anew_and_named(kind: str) -> None:
    """In `RegionNodes._listed`, only name it: members who may not make it wait for ever, also without a watch on it."""
    region = RegionWorld("a", "b")
    region.store_initial("t", {0: 3})
    region.complete_checkpoint()
    path = paths.region(GROUP, kind)
    below = [node for node in region.world.zk.nodes if node.startswith(f"{path}/")]
    region.delete(*sorted(below, reverse=True), path)
    region.pass_time(MISSING_PAUSE_US // 1_000 + 1_000 if kind == "members" else 1_000)  # nobody is registered
    if kind == "merged":
        assert region.merge().offsets  # as the leader knows it
    assert path in region.world.zk.nodes
    assert [text for text in region.warnings() if text == f"group {GROUP}: {path}: it was deleted; it is made anew"]
    if kind == "members":
        for name in ("a", "b"):
            region.register(name)
        region.run()
        region.answer_all(0)  # the reset
    region.ask("checkpoint")
    region.run()
    opened = region.order().open
    assert opened is not None
    assert opened.kind == CHECKPOINT
    region.answer_all()
    assert region.order().complete == opened.id


def test_a_container_that_may_not_be_made_is_named_and_made_once_it_may() -> None:
    region = RegionWorld("a", "b")
    denied, path = ("", NODE, Right.CREATE), paths.region(GROUP, "requests")
    region.world.zk.denied.add(denied)
    region.delete(path)
    region.pass_time(600_000)
    assert path not in region.world.zk.nodes
    assert [text for text in region.warnings() if "no permission" in text]
    region.world.zk.denied.discard(denied)
    region.pass_time(31_000)
    assert path in region.world.zk.nodes
    made = [one for operations in region.world.zk.transactions for one in operations if one == Create(path)]
    assert len(made) == 2  # at first, and now


@pytest.mark.parametrize("kind", ["requests", "initial"])
def test_a_container_that_may_not_be_made_does_not_have_the_region_read_again_and_again(kind: str) -> None:
    """In `RegionNodes._make_missing`, always begin later: each round would be followed by another reading.

    In `Region._requests_listed`, begin later, in a group that is read again.
    """
    region = RegionWorld("a", "b")
    region.complete_checkpoint()
    region.world.zk.denied.add(("", NODE, Right.CREATE))
    region.delete(paths.region(GROUP, kind))
    region.replace_leader()
    region.pass_time(1_000)
    before, read = region.order().complete, read_paths(region.world)
    for _ in range(20):
        region.pass_time(10_000)
        if region.order().open is not None:
            region.answer_all()
    assert (region.order().complete or 0) > (before or 0)
    assert ORDER not in read
    assert len([text for text in region.warnings() if "it is made anew" in text]) < 10


def below(region: RegionWorld, above: str) -> list[str]:
    """Return nodes, children before their parents, as `deleteall` of ZooKeeper's client deletes them."""
    return sorted((node for node in region.world.zk.nodes if f"{node}/".startswith(f"{above}/")), reverse=True)


@pytest.mark.parametrize("at_once", [1, 2, 3, 5])
@pytest.mark.parametrize("after_ms", [0, 60_000])
@pytest.mark.parametrize("is_led_anew", [False, True])
def test_a_region_without_members_can_be_deleted_node_by_node(
    at_once: int, after_ms: int, *, is_led_anew: bool
) -> None:
    """In `RegionNodes._listed` or `_members_listed`, never wait: the leader would make nodes anew meanwhile."""
    region = RegionWorld("a", "b")
    region.complete_checkpoint()
    for name in ("a", "b"):
        region.lose(name)
    region.pass_time(20_000 + after_ms)
    nodes = below(region, NODE)
    for at in range(0, len(nodes), at_once):
        region.delete(*nodes[at : at + at_once])
        if is_led_anew and ORDER in nodes[at : at + at_once]:
            region.replace_leader()
        region.pass_time(20)
    region.pass_time(600_000)
    assert NODE not in region.world.zk.nodes


def test_what_was_deleted_of_a_region_without_members_is_made_anew_for_the_next_one() -> None:
    """In `Region._members_read` or `Region.watched`, leave out the call of `RegionNodes`."""
    region = RegionWorld("a", "b")
    number = region.complete_checkpoint()
    for name in ("a", "b"):
        region.lose(name)
    region.pass_time(20_000)
    former = region.order().id
    region.delete(ORDER, paths.region(GROUP, "requests"))
    region.pass_time(1_000)
    assert ORDER not in region.world.zk.nodes
    region.register("a")
    region.pass_time(5_000)
    assert region.order().complete == number
    assert region.order().id > former
    assert paths.region(GROUP, "requests") in region.world.zk.nodes


def test_what_was_deleted_of_a_region_without_members_is_made_anew_later() -> None:
    """In `RegionNodes._waited`, do not look: members that may not make containers could not register."""
    region = RegionWorld("a")
    region.complete_checkpoint()
    region.lose("a")
    region.pass_time(20_000)
    region.delete(ORDER, paths.region(GROUP, "members"))
    region.pass_time(MISSING_PAUSE_US // 1_000 - 1_000)
    assert paths.region(GROUP, "members") not in region.world.zk.nodes
    region.pass_time(2_000)
    assert {paths.region(GROUP, "members"), ORDER} <= region.world.zk.nodes.keys()


def test_nothing_is_made_anew_while_a_command_deletes_the_group() -> None:
    """In `RegionNodes._waited`, do not look at the pause: the deletion of a large group may take longer."""
    region = RegionWorld("a")
    region.lose("a")
    region.pass_time(20_000)
    region.world.configure(settings.encode(GroupSettings(starts_paused=True, paused_by="deletion/1")))
    region.delete(paths.region(GROUP, "requests"))
    region.pass_time(MISSING_PAUSE_US // 1_000 + 10_000)  # a pause that nothing renews ends after 60 s
    assert paths.region(GROUP, "requests") not in region.world.zk.nodes


def test_a_region_that_was_deleted_and_made_anew_begins_anew() -> None:
    """In `Region._children_listed`, forget nothing: the leader has no watch on the new nodes."""
    region = RegionWorld("a")
    region.complete_checkpoint()
    nodes = sorted((node for node in region.world.zk.nodes if f"{node}/".startswith(f"{NODE}/")), reverse=True)
    region.delete(*nodes)
    region.run()
    children = [Create(paths.region(GROUP, kind)) for kind in paths.REGION_CHILDREN]
    region.write(Create(NODE, documents.encode_settings(SETTINGS)), *children)
    region.run()
    region.register("a")
    region.run()
    assert region.order().members.keys() == {"a"}
    assert region.complete_checkpoint() == 1
