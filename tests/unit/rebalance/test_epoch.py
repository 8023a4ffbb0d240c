"""Other bytes in the node of the epoch: the next election counts on above all former epochs, without an operator."""

from __future__ import annotations

import pytest

from tests.support.groups import world_with
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Multi, SetContent
from zkrebalancer.protocol.cluster_nodes import MAX_COUNTER
from zkrebalancer.protocol.settings import GroupSettings


@pytest.mark.parametrize("content", [b"", b"null", b"9" * 5_000, b"-1", b"%d" % MAX_COUNTER], ids=lambda b: b[:8])
def test_an_epoch_that_cannot_be_read_or_raised_ends_no_leadership_for_good(content: bytes) -> None:
    """In `CoordinatorElector._epoch_read`, try again if the epoch cannot be read."""
    world = world_with(GroupSettings(), "a")
    world.add_coordinator()
    world.zk.perform(Multi((SetContent(paths.COORDINATOR_EPOCH, content),)))
    world.add_agent("b")
    world.pass_time(5_000)
    assert {len(had) for had in world.owned().values()} == {2}
    world.kill_coordinator(world.leader())
    world.pass_time(5_000)
    world.add_agent("c")
    world.add_agent("d")
    world.pass_time(5_000)
    world.assert_settled()
    assert {len(had) for had in world.owned().values()} == {1}
    assert int(world.zk.nodes[paths.COORDINATOR_EPOCH].content) < MAX_COUNTER
