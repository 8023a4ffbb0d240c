"""Lag and rates: when they are read, what is done before they are known, and what a strategy makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.groups import events
from tests.support.world import GROUP, World
from zkrebalancer.assignment import WEIGHING
from zkrebalancer.assignment.loads import UNKNOWN
from zkrebalancer.assignment.model import to_racks
from zkrebalancer.protocol import settings
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.effects import LoadsRead
from zkrebalancer.rebalance.loads import FIRST_INTERVAL_US, LOAD_INTERVAL_US

BALANCED = GroupSettings(strategy="balanced")


def world_with_loads(group: GroupSettings, *clients: str, partitions: int = 4) -> World:
    world = World()
    world.set_topic("t", partitions)
    world.create_group(settings.encode(group))
    world.add_coordinator(WEIGHING)
    for client in clients:
        world.add_agent(client)
    world.pass_time(2_000)
    return world


def tell(world: World, ends: list[int], committed: list[int] | None = None, error: str | None = None) -> None:
    """Answer the reading that is waited for."""
    leader = world.leader()
    asked = leader.reading.pop(0)
    assert asked.topics == {"t": len(ends)}
    read = {"t": np.array(ends)}, {"t": np.array(committed if committed is not None else ends)}
    world.feed(leader, LoadsRead(asked.group, world.now_us, *read, error))
    world.run()


def count_of(world: World, consumer: str) -> int:
    return len(world.owned()[consumer])


def test_a_hot_partition_stands_alone_once_rates_are_known() -> None:
    world = world_with_loads(BALANCED, "a", "b")
    assert (count_of(world, "a-1"), count_of(world, "b-1")) == (2, 2)
    tell(world, [0, 0, 0, 0])
    world.pass_time(2 * FIRST_INTERVAL_US // 1_000)
    tell(world, [9_000, 100, 100, 100])
    world.pass_time(1_000)
    hot = next(consumer for consumer, held in world.owned().items() if ("t", 0) in held)
    assert count_of(world, hot) == 1


def test_before_rates_are_known_nothing_moves_but_what_is_free_is_given() -> None:
    world = world_with_loads(BALANCED, "a")
    world.add_agent("b")
    world.pass_time(1_000)
    assert (count_of(world, "a-1"), count_of(world, "b-1")) == (4, 0)
    world.set_topic("t", 6)
    world.pass_time(1_000)
    assert count_of(world, "a-1") + count_of(world, "b-1") == 6
    assert count_of(world, "a-1") >= 4


def test_without_anybody_to_read_them_all_partitions_weigh_the_same() -> None:
    world = World()
    world.set_topic("t", 4)
    world.create_group(settings.encode(BALANCED))
    world.add_coordinator()
    for client in ("a", "b"):
        world.add_agent(client)
        world.pass_time(1_000)
    assert (count_of(world, "a-1"), count_of(world, "b-1")) == (2, 2)
    assert not world.leader().reading


def test_a_strategy_that_does_not_weigh_reads_nothing_and_one_that_did_stops() -> None:
    world = world_with_loads(GroupSettings(), "a")
    assert not world.leader().reading
    world.configure(settings.encode(BALANCED))
    world.pass_time(100)
    tell(world, [0] * 4)
    world.configure(settings.encode(GroupSettings()))
    world.pass_time(2 * LOAD_INTERVAL_US // 1_000)
    assert not world.leader().reading


def test_what_cannot_be_read_is_said_once_and_tried_again() -> None:
    world = world_with_loads(BALANCED, "a")
    for _ in range(3):
        tell(world, [0] * 4, error="no broker answers")
        world.pass_time(LOAD_INTERVAL_US // 1_000)
    assert world.warnings == [f"group {GROUP}: lag and rates are not known: no broker answers"]
    assert len(world.leader().reading) == 1
    for error in (None, "no broker answers"):  # in `Loads.handle`, remember an error although a reading succeeds
        tell(world, [0] * 4, error=error)
        world.pass_time(LOAD_INTERVAL_US // 1_000)
    assert world.warnings == [f"group {GROUP}: lag and rates are not known: no broker answers"] * 2


def test_offsets_that_are_not_known_are_no_lag_and_no_rate() -> None:
    world = world_with_loads(BALANCED, "a")
    tell(world, [5, UNKNOWN, 7, 7], [UNKNOWN, 4, 9, 3])
    loads = world.leader().machine.groups[GROUP].loads
    assert loads.lag["t"].tolist() == [0, 0, 0, 4]
    world.pass_time(2 * FIRST_INTERVAL_US // 1_000)
    tell(world, [15, 80, UNKNOWN, 2])
    assert loads.rate["t"].tolist()[1:] == [0.0, 0.0, 0.0]
    assert loads.rate["t"][0] > 0


def test_a_rate_is_what_has_come_since_the_last_reading() -> None:
    """In `Loads._keep`, keep the time of the first reading; in `handle`, note the time of one that has failed."""
    world = world_with_loads(BALANCED, "a")
    tell(world, [0] * 4)
    loads = world.leader().machine.groups[GROUP].loads
    before_us, end = world.now_us, 0
    for come in (1_000, 5_000, 0):
        while not world.leader().reading:
            world.pass_time(1_000)
        end += come
        tell(world, [end, 0, 0, 0], error="no broker answers")
        while not world.leader().reading:
            world.pass_time(1_000)
        tell(world, [end, 0, 0, 0])
        seconds = (world.now_us - before_us) / 1e6
        assert loads.rate["t"].tolist() == pytest.approx([come / seconds, 0, 0, 0])
        before_us = world.now_us


def test_what_was_read_is_weighed_where_the_strategy_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_with_loads(BALANCED, "a")
    tell(world, [0] * 4)
    world.pass_time(2 * FIRST_INTERVAL_US // 1_000)
    leader = world.leader()
    for name in ("lag_of", "rate_of", "expected_or"):
        monkeypatch.setattr(f"zkrebalancer.rebalance.loads.{name}", lambda *_: pytest.fail("computed in the loop"))
    ends, committed = {"t": np.array([9, 9, 9, 9])}, {"t": np.array([9, 8, 7, 6])}
    world.feed(leader, LoadsRead(leader.reading.pop(0).group, world.now_us, ends, committed))
    loads = leader.machine.groups[GROUP].loads
    assert loads.are_known
    monkeypatch.undo()
    assert loads.lag["t"].tolist() == [0, 1, 2, 3]
    assert loads.lag["t"] is loads.lag["t"]


def test_options_of_the_group_reach_the_strategy_and_wrong_ones_are_told() -> None:
    world = World()
    world.set_topic("t", 4)
    world.create_group(settings.encode(GroupSettings(strategy="balanced", options={"max_partitions_per_member": 1})))
    world.add_coordinator()
    world.add_agent("a")
    world.pass_time(1_000)
    assert count_of(world, "a-1") == 1
    world.configure(settings.encode(GroupSettings(strategy="balanced", options={"move_price": 1})))
    world.pass_time(1_000)
    assert any("options.move_price: is unknown" in warning for warning in world.warnings)
    assert count_of(world, "a-1") == 1


def tell_weights(world: World, expected: dict[str, list[float]], refused: str | None = None) -> None:
    """Answer the reading that is waited for: nothing was read yet, but this is expected."""
    leader = world.leader()
    group, nothing = leader.reading.pop(0).group, {"t": np.zeros(4, np.int64)}
    world.feed(leader, LoadsRead(group, world.now_us, nothing, nothing, expected=expected, refused=refused))
    world.run()
    world.pass_time(1_000)


def test_what_is_expected_counts_from_the_first_reading_on() -> None:
    world = world_with_loads(BALANCED, "a", "b")
    tell_weights(world, {"t": [90.0, 1.0, 1.0, 1.0]})
    hot = next(consumer for consumer, held in world.owned().items() if ("t", 0) in held)
    assert count_of(world, hot) == 1


def test_racks_of_the_replicas_are_weighed_and_may_change() -> None:
    world = World()
    world.set_topic("t", 4)
    world.create_group(settings.encode(GroupSettings(strategy="balanced", options={"rack_cost": 5})))
    world.add_coordinator(WEIGHING)
    for client, rack in (("a", "r1"), ("b", "r2")):
        world.add_agent(client, rack=rack)
    world.pass_time(2_000)
    leader, nothing = world.leader(), {"t": np.zeros(4, np.int64)}
    for here, there in (("r1", "r2"), ("r2", "r1")):
        racks = to_racks({"t": [[here], [there], [there], [here]]})
        asked = leader.reading.pop(0)
        world.feed(
            leader, LoadsRead(asked.group, world.now_us, nothing, nothing, expected={"t": [1.0] * 4}, racks=racks)
        )
        world.configure(settings.encode(GroupSettings(strategy="balanced", options={"rack_cost": 5.0})))
        world.pass_time(2_000)
        owned = world.owned()
        assert owned["a-1" if here == "r1" else "b-1"].keys() == {("t", 0), ("t", 3)}
        world.pass_time(LOAD_INTERVAL_US // 1_000)


def test_a_partition_of_which_nothing_is_expected_has_its_measured_rate() -> None:
    world = world_with_loads(BALANCED, "a")
    tell(world, [0] * 4)
    world.pass_time(2 * FIRST_INTERVAL_US // 1_000)
    leader = world.leader()
    group, ends = leader.reading.pop(0).group, {"t": np.array([900, 900, 900, 0])}
    world.feed(leader, LoadsRead(group, world.now_us, ends, ends, expected={"t": [7.0, 0.0]}))
    rate = leader.machine.groups[GROUP].loads.rate["t"].tolist()
    assert (rate[:2], rate[2] > 0, rate[3]) == ([7.0, 0.0], True, 0.0)


def test_weights_that_are_refused_are_said_once_and_the_group_goes_on() -> None:
    world = world_with_loads(BALANCED, "a", "b")
    tell_weights(world, {}, "weights: rates must be an object")
    world.pass_time(2 * FIRST_INTERVAL_US // 1_000)
    tell_weights(world, {}, "weights: rates must be an object")
    assert world.warnings == [f"group {GROUP}: its weights are not used: weights: rates must be an object"]
    assert (count_of(world, "a-1"), count_of(world, "b-1")) == (2, 2)
    assert world.leader().machine.groups[GROUP].loads.are_known


def test_known_rates_are_a_reason_to_plan_once() -> None:
    world = world_with_loads(BALANCED, "a", "b")
    for number in range(4):
        world.pass_time(2 * LOAD_INTERVAL_US // 1_000)
        if world.leader().reading:
            tell(world, [100 * number] * 4)
    triggers = [one["trigger"] for one in events(world, "rebalance_requested")]
    assert triggers.count("loads-known") == 1
