"""Two static members with a grace of their own whose records name one partition, when leader and gateway have died."""

from __future__ import annotations

import json

import pytest

from tests.support.groups import events, world_with
from tests.support.world import GROUP, Agent, World
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.settings import GroupSettings

GRACE_MS = 20_000


def two_of_a_gateway(names: str, *, is_silent: bool) -> tuple[World, Agent, Agent]:
    """Return a world in which the second of two members of a gateway was given something by the first, and by `b`.

    If the first is silent, it was only to give that; `names`: their instance ids.
    """
    world = world_with(GroupSettings(static_grace_ms=1_000), "b", partitions=6)
    older = world.add_agent("c", instance_id=names[0], static_grace_ms=GRACE_MS)
    world.pass_time(1_000)
    assert len(world.owned()["c-1"]) == 3
    older.silent = is_silent
    newer = world.add_agent("d", instance_id=names[1], static_grace_ms=GRACE_MS)
    world.pass_time(1_000)
    assert len(world.owned()["d-1"]) == (1 if is_silent else 2)
    return world, older, newer


def lose_host(world: World, *members: Agent) -> None:
    """Let the leader die, and the gateway with its members."""
    world.kill_coordinator(world.leader())
    for member in members:
        world.kill_agent(member)


def given_back(world: World, names: str) -> list[tuple[str, int]]:
    """Let both members return; return who was told to start how many partitions, in order."""
    world.pass_time(1_000)
    told = len(events(world, "command_sent"))
    world.add_agent("e", instance_id=names[0], static_grace_ms=GRACE_MS)
    world.add_agent("f", instance_id=names[1], static_grace_ms=GRACE_MS)
    world.pass_time(2_000)
    world.assert_settled()
    starts = [event for event in events(world, "command_sent")[told:] if event["option"] == "start-fetcher"]
    return [(str(event["member"]), int(str(event["partition_count"]))) for event in starts]


@pytest.mark.parametrize("names", ["az", "za"])
def test_rule_17_what_a_member_was_to_get_waits_for_the_one_that_has_it(names: str) -> None:
    """In `static_members.record`, name what the plan gives to the member later, too."""
    world, older, newer = two_of_a_gateway(names, is_silent=True)
    lose_host(world, older, newer)
    world.add_coordinator()
    assert given_back(world, names)[0] == ("e-1", 3)


@pytest.mark.parametrize("names", ["az", "za"])
def test_rule_17_what_two_records_name_waits_for_the_last_holder(names: str) -> None:
    """In `StaticMembers.adopt`, take the records in the order of their names, or of the versions."""
    world, older, newer = two_of_a_gateway(names, is_silent=False)
    lose_host(world, older, newer)
    world.add_coordinator()
    assert sorted(given_back(world, names)[:2]) == [("e-1", 2), ("f-1", 2)]


@pytest.mark.parametrize("names", ["az", "za"])
def test_rule_17_a_deadline_is_stored_without_what_waits_for_others(names: str) -> None:
    """In `StaticMembers._set_deadline`, store all that the record named: it would be the last to name that."""
    world, older, newer = two_of_a_gateway(names, is_silent=False)
    world.kill_coordinator(world.leader())
    returned = world.add_agent("g", instance_id=names[1], static_grace_ms=GRACE_MS)
    world.run()
    for member in older, newer:
        world.kill_agent(member)
    world.configure(settings.encode(GroupSettings(starts_paused=True)))
    assert not any(process.alive for process in world.coordinators)
    world.add_coordinator()
    world.pass_time(1_000)
    (first, second) = (json.loads(world.zk.nodes[paths.static(GROUP, name)].content) for name in names)
    assert first["deadline_ms"] is not None
    assert second["deadline_ms"] is None
    lose_host(world, returned)
    world.configure(settings.encode(GroupSettings()))
    world.add_coordinator()
    assert sorted(given_back(world, names)[:2]) == [("e-1", 2), ("f-1", 2)]
