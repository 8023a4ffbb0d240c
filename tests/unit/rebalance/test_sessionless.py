"""A registration or a record that is not ephemeral is nobody's: a copied tree or a backup keeps no partition."""

from __future__ import annotations

import pytest

from tests.support.groups import events, world_with
from tests.support.world import GROUP, World
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Create, Delete, Multi
from zkrebalancer.protocol.settings import GroupSettings

LEASE_MS = 4_000  # of SESSION_MS


def restore(world: World, *kinds: str) -> None:
    """Replace nodes of `a` by copies that belong to no session."""
    for kind in kinds:
        path = f"{paths.group(GROUP)}/{kind}/a-1"
        content = world.zk.nodes[path].content
        world.zk.perform(Multi((Delete(path), Create(path, content))))


@pytest.mark.parametrize("kinds", [("ids",), ("owners",), ("ids", "owners")])
@pytest.mark.parametrize("is_led_anew", [False, True])
def test_who_has_no_session_is_evicted_and_waited_for_as_if_it_lived(kinds: tuple[str, ...], is_led_anew: bool) -> None:
    """In `Member.read_registration`, or in `Member.read_owners`, do not look whose node it is."""
    world = world_with(GroupSettings(), "a", "b")
    owned = world.owned()["a-1"]
    if is_led_anew:
        world.kill_coordinator(world.leader())
    world.agents["a"].silent = True
    restore(world, *kinds)
    if is_led_anew:
        world.add_coordinator()
    world.pass_time(LEASE_MS // 2)
    evicted = ownership.decode_eviction(world.zk.nodes[paths.evicted(GROUP, "a-1")].content)
    assert evicted.partitions == owned
    assert world.owned().keys() == {"b-1"}
    assert sum("belongs to no session" in text for text in world.warnings) == 1

    world.kill_agent(world.agents["a"])
    world.pass_time(2 * LEASE_MS)
    world.assert_settled()
    assert len(world.owned()["b-1"]) == 4
    assert [event["reason"] for event in events(world, "member_left")] == ["evicted"]
    assert not [path for path in world.zk.nodes if path.endswith("a-1")]
