"""Each rebalance is recorded with what caused it, and each change of owners with the member that it concerns."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.groups import deliver_until_idle, events, run_until_computing, world_with
from tests.support.world import GROUP, World
from zkrebalancer.protocol import history, ownership, paths, registration, settings
from zkrebalancer.protocol.calls import Multi, SetContent
from zkrebalancer.protocol.history import Reason
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.history import DELAY_US


def put(world: World, path: str, content: bytes) -> None:
    world.zk.perform(Multi((SetContent(path, content),)))


def last_reasons(world: World) -> tuple[Reason, ...]:
    world.pass_time(2 * DELAY_US // 1_000)
    return history.decode(world.zk.nodes[paths.history(GROUP)].content).rebalances[-1].reasons


def test_a_changed_subscription_is_named_with_its_member() -> None:
    world = world_with(GroupSettings(), "a", "b")
    world.set_topic("u", 2)
    world.pass_time(2_000)
    other = world.agents["b"].registration._replace(subscription={"u": 1})
    put(world, paths.ids(GROUP, "b-1"), registration.encode(other))
    world.run()
    assert last_reasons(world) == (Reason("subscription-changed", "b-1"),)


def test_what_settings_have_dropped_is_still_named_with_its_reason() -> None:
    """Leave out `Causes.put_back`."""
    world = world_with(GroupSettings(), "a")
    process = world.leader()
    world.act(world.add_agent("b"))
    run_until_computing(world, process)
    world.configure(settings.encode(GroupSettings(strategy="range")))
    deliver_until_idle(world, process)
    world.compute(process)
    world.pass_time(3_000)
    assert last_reasons(world) == (Reason("member-joined", "b-1"), Reason("settings-changed", "strategy"))


@pytest.mark.parametrize("change", ["created", "grown", "deleted"])
def test_a_changed_topic_is_named(change: str) -> None:
    world = world_with(GroupSettings(), "a", partitions=4)
    if change == "grown":
        world.set_topic("t", 6)
        expected = Reason("partitions-added", "t")
    elif change == "deleted":
        world.delete_topic("t")
        expected = Reason("topic-deleted", "t")
    else:
        world = world_with(GroupSettings())
        world.add_agent("w", {"new.*": 1}, pattern="white_list")
        world.pass_time(2_000)
        world.set_topic("new1", 2)
        expected = Reason("topic-created", "new1")
    world.pass_time(1_000)
    assert last_reasons(world) == (expected,)


def test_what_a_member_owns_by_no_command_is_named_with_it() -> None:
    """Somebody has written its record."""
    world = world_with(GroupSettings(), "a", "b")
    record = ownership.decode_owners(world.zk.nodes[paths.owners(GROUP, "a-1")].content)
    (lost, *kept) = sorted(record.partitions)
    put(
        world,
        paths.owners(GROUP, "a-1"),
        ownership.encode_owners(record._replace(partitions=dict.fromkeys(kept, 0))),
    )
    world.run()
    assert last_reasons(world) == (Reason("ownership-changed", "a-1"),)
    assert any(lost in owned for owned in world.owned().values())


def test_changes_of_owners_name_their_member() -> None:
    world = World()
    world.set_topic("t", 4)
    world.create_group()
    world.add_coordinator().machine.turnover.is_kept = True
    for client in "ab":
        world.add_agent(client)
        world.pass_time(2_000)
    known = world.leader().machine.turnover.of(GROUP)
    assert known is not None
    found = [(change.member, len(change.gained), len(change.lost)) for change in known.changes]
    assert found == [("a-1", 4, 0), ("a-1", 0, 2), ("b-1", 2, 0)]


def test_an_absent_static_member_keeps_its_weight() -> None:
    """In `_as_it_was`, forget its capacity: its share would be another one, and the others would get more."""
    world = world_with(GroupSettings(strategy="balanced"), partitions=12)
    world.add_agent("a")
    strong = world.add_agent("s", instance_id="s-1", capacity=2.0)
    world.pass_time(3_000)
    assert {name: len(owned) for name, owned in world.owned().items()} == {"a-1": 4, "s-1": 8}
    world.kill_agent(strong)
    world.pass_time(1_000)
    world.set_topic("t", 15)
    world.pass_time(2_000)
    assert len(world.owned()["a-1"]) == 5


def test_a_command_of_a_former_leader_that_is_not_answered_is_a_reason_to_try_again() -> None:
    """Without a plan of its own, the leader only cancels it."""
    group = GroupSettings(rebalance_timeout_ms=1_000, frozen=True)
    world = world_with(group, "a")
    world.agents["a"].silent = True
    world.set_topic("t", 6)
    world.pass_time(100)
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(3_000)
    assert "retry" in [one["trigger"] for one in events(world, "rebalance_requested")]


def test_a_group_that_zookeeper_contradicts_is_read_at_once_and_then_at_growing_intervals() -> None:
    """In `Group._load_anew`, begin with the first interval each time."""
    world = world_with(GroupSettings(), "a")
    world.act(world.add_agent("b"))
    process, generation = world.leader(), paths.generation(GROUP)
    tried: list[int] = []
    while len(tried) < 6:
        while process.session.sent or process.session.inbox or process.computing:
            if process.session.sent and _writes(process.session.sent[0][1], generation):
                put(world, generation, world.zk.nodes[generation].content)  # its version is another one now
                tried.append(world.now_us)
            world.move(process)
        world.now_us += 10_000
        world.tick()
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses[0] <= 10_000
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 4 * pauses[1] > 0


def _writes(call: object, path: str) -> bool:
    return isinstance(call, Multi) and any(
        isinstance(operation, SetContent) and operation.path == path for operation in call.operations
    )
