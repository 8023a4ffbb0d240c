"""A member's share does not fit into the node that records it: the member gets what fits, and the group is at rest."""

from __future__ import annotations

import pytest

from tests.support.groups import LONG_NAMES as NAMES
from tests.support.groups import a_group_with_a_large_share, events
from tests.support.world import GROUP, World
from zkrebalancer.protocol import obstacles, paths
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL
from zkrebalancer.rebalance.states import REST

MODES = pytest.mark.parametrize("mode", [EAGER, INCREMENTAL])
LATER_MS = 400_000  # the group is read again meanwhile


def outcomes(world: World) -> list[object]:
    return [event["outcome"] for event in events(world, "rebalance_finished")]


@MODES
def test_a_member_gets_what_can_be_recorded_and_the_others_are_served(mode: str) -> None:
    world = a_group_with_a_large_share(mode)
    fits = len(world.owned()["a-1"])
    assert 50 < fits < len(NAMES)
    world.add_agent("z", {"short": 1})
    world.pass_time(10_000)
    world.add_agent("b", {"short": 1})
    world.pass_time(10_000)
    assert {consumer: len(owned) for consumer, owned in world.owned().items()} == {"a-1": fits, "b-1": 2, "z-1": 2}
    assert "failed" not in outcomes(world)
    assert world.leader().machine.groups[GROUP].state in REST
    assert sum("gets no more partitions" in text for text in world.warnings) == 1


@MODES
def test_nothing_is_sent_again_while_nothing_changes(mode: str) -> None:
    world = a_group_with_a_large_share(mode)
    before = len(events(world, "command_sent"))
    world.pass_time(LATER_MS)
    assert len(events(world, "command_sent")) == before
    _epoch, shown, _more = obstacles.decode(world.zk.nodes[paths.COORDINATOR_OBSTACLES].content)
    assert [(each.path, each.reason) for each in shown] == [(paths.given(GROUP, "a-1"), "too large")]


@MODES
def test_everything_is_served_once_more_members_share_it(mode: str) -> None:
    world = a_group_with_a_large_share(mode)
    world.add_agent("b", dict.fromkeys(NAMES, 1))
    world.pass_time(10_000)
    assert sum(len(owned) for owned in world.owned().values()) == len(NAMES)
    world.pass_time(LATER_MS)
    assert paths.COORDINATOR_OBSTACLES not in world.zk.nodes


@MODES
def test_a_full_record_has_room_again_for_other_topics_once_some_are_gone(mode: str) -> None:
    world = a_group_with_a_large_share(mode)
    fits = len(world.owned()["a-1"])
    for name, _number in sorted(world.owned()["a-1"])[:10]:
        world.delete_topic(name)
    world.pass_time(20_000)
    assert fits - 2 <= len(world.owned()["a-1"]) <= fits
