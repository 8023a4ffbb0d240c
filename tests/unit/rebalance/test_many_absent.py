"""Many static members that are away, each with a subscription of its own: more than the cache of subscriptions has."""

from __future__ import annotations

import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance import planning, subscriptions
from zkrebalancer.rebalance.states import REST

AWAY = "bcdefg"


@pytest.mark.parametrize("pattern", ["static", "white_list"])
def test_a_group_is_planned_in_bounded_steps_however_many_are_away(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """In `Planning._look_at_away`, look at each member in every step."""
    monkeypatch.setattr(subscriptions, "MAX_SHARED", 2)
    monkeypatch.setattr(planning, "MAX_LOOKS_PER_STEP", 3)
    monkeypatch.setattr(planning, "LOOKS_PER_MEMBER", 1)
    world = world_with(GroupSettings(static_grace_ms=3_600_000), "a")
    for client in AWAY:
        world.set_topic(f"t-{client}", 1)
        name = f"t-{client}" if pattern == "static" else f"^t-{client}"
        world.add_agent(client, {name: 1}, instance_id=f"pod-{client}", pattern=pattern)
    world.pass_time(2_000)
    owned = world.owned()
    for client in AWAY:
        world.kill_agent(world.agents[client])
    world.run()
    group = world.leader().machine.groups[GROUP]
    for _ in range(500):
        world.now_us = max(world.now_us, world.next_deadline_us() or 0)
        world.tick()
        world.run()
        if group.state in REST:
            break
    assert group.state in REST
    assert len(group.view.away) == len(AWAY)
    world.add_agent("h", {f"t-{client}": 1 for client in AWAY} | {"t": 1})
    world.pass_time(500)
    assert len(world.owned()["h-1"]) == 2, "half of t; what the absent members had waits for them"
    for client in AWAY:
        name = f"t-{client}" if pattern == "static" else f"^t-{client}"
        world.add_agent(f"{client}{client}", {name: 1}, instance_id=f"pod-{client}", pattern=pattern)
    world.pass_time(2_000)
    for client in AWAY:
        assert world.owned()[f"{client}{client}-1"] == owned[f"{client}-1"]
