"""Many groups, and groups that cost much: what one of them needs is bounded, and the others have their turn."""

from __future__ import annotations

import tracemalloc

from tests.support.world import GROUP, CoordinatorProcess, World
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Create, Multi, SetContent
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.coordinator import (
    MAX_LOADING,
    MAX_LOADS_PER_STEP,
    MAX_PLANNING,
    MAX_SLOW_PLANS,
    PLAN_PATIENCE_US,
)
from zkrebalancer.rebalance.effects import Tick
from zkrebalancer.rebalance.reconciling import RECONCILE_INTERVAL_US
from zkrebalancer.rebalance.states import GroupState

MANY = MAX_LOADING + 50


def world_with(groups: int, strategies: tuple[str, ...] = ("sticky",)) -> World:
    """Return a world with groups without members, whose strategies are these in turn."""
    world = World()
    world.set_topic("t", 4)
    world.create_group(settings.encode(GroupSettings(rebalance_timeout_ms=1_000, max_rebalance_retries=0)))
    for number in range(groups):
        group = f"g-{number:04d}"
        known = GroupSettings(strategy=strategies[number % len(strategies)])
        nodes = [
            Create(paths.group(group), settings.encode(known)),
            *(Create(f"{paths.group(group)}/{name}") for name in paths.GROUP_CHILDREN),
        ]
        world.zk.perform(Multi(tuple(nodes)))
    world.add_coordinator()
    return world


def loading(world: World) -> int:
    return sum(group.state is GroupState.LOADING for group in world.leader().machine.groups.values())


def test_after_a_reconnect_groups_are_read_a_few_a_step_and_so_many_at_once() -> None:
    """In `Coordinator._maybe_load`, load them all."""
    world = world_with(MANY)
    world.pass_time(1_000)
    process = world.leader()
    assert len(process.machine.groups) == MANY + 1
    begun, most, left = [], 0, 0
    world.zk.disconnect(process.session)
    world.zk.reconnect(process.session)
    for _ in range(20_000):
        if process.machine._own.has_timer("load"):
            world.now_us += 1
            world.feed(process, Tick())
        elif process.session.sent:
            world.zk.perform_next(process.session)
            continue
        elif process.session.inbox:
            world.deliver(process)
        elif process.computing:
            world.compute(process)
        else:
            break
        waiting = len(process.machine.groups_to_load)
        begun.append(left - waiting)
        most, left = max(most, loading(world)), waiting
    assert sum(count for count in begun if count > 0) == MANY + 1
    assert max(begun) == MAX_LOADS_PER_STEP
    assert MAX_LOADS_PER_STEP < most <= MAX_LOADING


def test_no_group_is_read_before_the_topics_are_known() -> None:
    """In `Coordinator._maybe_load`, do not wait."""
    world = world_with(3)
    process = world.coordinators[0]
    while world.zk.sessions and not process.machine.subscriptions.are_topics_known:
        if process.session.sent:
            assert not any(paths.GROUPS in getattr(call, "path", "") for _id, call in process.session.sent)
            world.zk.perform_next(process.session)
        else:
            world.deliver(process)
    world.pass_time(1_000)
    assert len(process.machine.groups) == 4


def test_a_claim_on_a_million_partitions_is_refused_for_what_exists() -> None:
    """In `Member.read_owners`, pass no bound."""
    world = world_with(0)
    world.add_agent("a")
    world.pass_time(1_000)
    world.add_agent("b")
    world.pass_time(1_000)
    held = set(world.owned()["b-1"])
    claim = b'{"version":1,"generation":1,"command_id":null,"threads":{"0":{"t":[[0,999999]]}}}'
    world.agents["a"].silent = True
    tracemalloc.start()
    world.zk.perform(Multi((SetContent(paths.owners(GROUP, "a-1"), claim),)))
    process = world.leader()
    while process.session.sent or process.session.inbox:
        if process.session.sent:
            world.zk.perform_next(process.session)
        else:
            world.deliver(process)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 5_000_000
    assert any("t: names partition 999999 of 4" in text for text in world.warnings)
    assert held <= world.leader().machine.groups[GROUP].view.held_by("b-1").keys()


def test_slow_plans_keep_no_other_group_waiting() -> None:
    """In `Coordinator.request_handler`, count every plan."""
    world = world_with(40, ("range",))
    process = world.coordinators[0]
    answer_all(world, process)
    assert len(process.computing) == MAX_PLANNING
    planned = [MAX_PLANNING]
    while len(process.computing) < MAX_PLANNING + MAX_SLOW_PLANS:
        at_us = process.machine.scheduler.next_deadline_us()
        assert at_us is not None
        assert at_us <= world.now_us + PLAN_PATIENCE_US
        world.now_us = at_us
        world.tick()
        answer_all(world, process)
        planned.append(len(process.computing))
    assert sorted(set(planned)) == [MAX_PLANNING * times for times in (1, 2, 3, 4)]
    world.now_us += 2 * PLAN_PATIENCE_US
    answer_all(world, process)
    assert len(process.computing) == MAX_PLANNING + MAX_SLOW_PLANS


def test_groups_that_need_no_strategy_do_not_count_as_plans() -> None:
    """In `Coordinator.request_handler`, count each group whose planning has begun."""
    world = world_with(40, ("range",) + 19 * ("sticky",))
    process = world.coordinators[0]
    began_us = world.now_us
    answer_all(world, process)
    states = [group.state for group in process.machine.groups.values()]
    assert (states.count(GroupState.IDLE), states.count(GroupState.PLANNING)) == (39, 2)
    assert [task.strategy for task in process.computing] == ["range", "range"]
    assert world.now_us < began_us + PLAN_PATIENCE_US


def test_a_new_leader_computes_nothing_for_a_group_at_rest() -> None:
    """In `Planning.is_kept`, return False."""
    world = world_with(0)
    world.add_agent("a")
    world.add_agent("b")
    world.pass_time(3_000)
    owned = world.owned()
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    answer_all(world, world.coordinators[-1])
    group = world.leader().machine.groups[GROUP]
    assert (group.state, world.leader().computing, world.owned()) == (GroupState.IDLE, [], owned)


def answer_all(world: World, process: CoordinatorProcess) -> None:
    """Answer every call, and let the coordinator do what it has put off to further steps; nothing is computed."""
    for _ in range(20_000):
        deadline_us = process.machine.scheduler.next_deadline_us()
        if process.session.sent:
            world.zk.perform_next(process.session)
        elif process.session.inbox:
            world.deliver(process)
        elif deadline_us is not None and deadline_us <= world.now_us + 1:
            world.now_us = deadline_us
            world.feed(process, Tick())
        else:
            return
    raise AssertionError("no end")


def test_groups_are_reconciled_one_after_the_other() -> None:
    """In `Reconciling._pause_us`, return `RECONCILE_INTERVAL_US`."""
    world = world_with(100)
    world.pass_time(1_000)
    due = world.leader().machine.scheduler.due
    moments = sorted(at_us for (group, name), (at_us, *_rest) in due.items() if name == "reconcile" and group[0] != "/")
    assert len(moments) == 101
    assert moments[-1] <= world.now_us + RECONCILE_INTERVAL_US
    seconds = [moment // 1_000_000 for moment in moments]
    assert max(map(seconds.count, seconds)) < 10
