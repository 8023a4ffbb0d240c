"""Which plan `groups resume` approves, and what it says if it finds none."""

from __future__ import annotations

from typing import cast

import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.observe import inspection
from zkrebalancer.operations.approval import ChangedMeanwhileError, NothingWaitsError, approving
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.obstacles import BACKING_OFF, UNAPPROVED, PublishedObstacle, encode
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk


def published(*found: PublishedObstacle, more: int = 0) -> BlockingZk:
    """Return a tree whose leader publishes these reasons."""
    world = world_with(GroupSettings(), "a")
    (epoch,) = (int(world.zk.nodes[paths.COORDINATOR_EPOCH].content),)
    client = ModelClient(world.zk)
    if paths.COORDINATOR_OBSTACLES in world.zk.nodes:
        client.set(paths.COORDINATOR_OBSTACLES, encode(epoch, found, more))
    else:
        client.create(paths.COORDINATOR_OBSTACLES, encode(epoch, found, more))
    return cast("BlockingZk", client)


def waits(group: str, moves: int, generation: int) -> PublishedObstacle:
    return PublishedObstacle(group, UNAPPROVED, "it moves", moves=moves, generation=generation)


def test_the_plan_of_this_group_is_approved_for_its_generation() -> None:
    """In `approving`, take the plan of any group; in `_approved`, do not compare the generation."""
    generation = inspection.read_group(published(), GROUP).generation
    zk = published(waits("other", 9, 1), PublishedObstacle(GROUP, BACKING_OFF, "why"), waits(GROUP, 3, generation))
    moves, altered = approving(zk, GROUP)
    found = altered(inspection.read_group(zk, GROUP))
    assert (moves, found.approved_moves, found.approved_generation) == (3, 3, generation)
    _moves, late = approving(published(waits(GROUP, 3, generation + 1)), GROUP)
    with pytest.raises(ChangedMeanwhileError, match="has had another plan"):
        late(inspection.read_group(zk, GROUP))


@pytest.mark.parametrize(
    ("more", "end"), [(0, "a second after it was made"), (7, "; 7 more obstacles are not published")]
)
def test_without_a_plan_it_says_what_may_be_hidden(more: int, end: str) -> None:
    with pytest.raises(NothingWaitsError) as raised:
        approving(published(more=more), GROUP)
    assert str(raised.value).endswith(end)
