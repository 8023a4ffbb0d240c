"""A member that the coordinator may not read or command keeps what it holds: the others get the rest, and go on."""

from __future__ import annotations

import pytest

from tests.support.groups import events, read_paths, world_with
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Create, Multi, Refusal, Refused, Reply
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL, GroupSettings
from zkrebalancer.rebalance import moving
from zkrebalancer.rebalance.states import REST, GroupState

MODES = pytest.mark.parametrize("mode", [EAGER, INCREMENTAL])
TIMEOUT_MS = 2_000
SETTLED_MS = 10_000
LATER_MS = 40_000  # less than the interval of reconciliations


def a_group(mode: str, *, clients: str = "abc", partitions: int = 6) -> World:
    settings = GroupSettings(mode=mode, rebalance_timeout_ms=TIMEOUT_MS)
    return world_with(settings, *clients, partitions=partitions)


def counts(world: World) -> dict[str, int]:
    return {consumer: len(owned) for consumer, owned in world.owned().items()}


def sent(world: World) -> int:
    return len(events(world, "command_sent"))


def is_at_rest(world: World) -> bool:
    return world.leader().machine.groups[GROUP].state in REST


def allow_again(world: World) -> None:
    world.zk.denied.clear()
    world.pass_time(LATER_MS)
    world.assert_settled()


@MODES
@pytest.mark.parametrize("path", [paths.owners(GROUP, "c-1"), paths.channel(GROUP, "c-1")])
def test_what_is_free_goes_to_members_that_can_be_read(mode: str, path: str) -> None:
    """In `Planning._look_at`, give hidden members a share of it; in `Membership._owners_read`, request no plan."""
    world = a_group(mode)
    world.zk.denied.add(("", path, Right.READ))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(SETTLED_MS)
    world.kill_agent(world.agents["b"])
    world.pass_time(SETTLED_MS)
    assert counts(world) == {"a-1": 4, "c-1": 2}
    world.set_topic("t", 9)
    world.pass_time(SETTLED_MS)
    assert counts(world) == {"a-1": 7, "c-1": 2}
    assert is_at_rest(world)

    allow_again(world)


def test_what_a_member_was_to_get_when_it_was_hidden_goes_to_others() -> None:
    """In `Moving.pass_over`, request no plan: what another member has given up for it would have no owner."""
    world = a_group(INCREMENTAL, clients="a")
    world.agents["a"].silent = True
    world.add_agent("c")
    world.run()
    world.zk.denied.add(("", paths.owners(GROUP, "c-1"), Right.READ))
    world.leader().machine.groups[GROUP].watched(("owners", "c-1"))
    world.agents["a"].silent = False
    world.pass_time(SETTLED_MS)
    assert counts(world) == {"a-1": 6, "c-1": 0}
    assert is_at_rest(world)
    allow_again(world)


def test_what_a_member_is_to_get_when_it_is_hidden_during_the_planning_goes_to_others() -> None:
    """In `Moving.pass_over`, request a plan only if the present one waits for it: here the next one takes from `a`."""
    world = a_group(INCREMENTAL, clients="a")
    leader = world.leader()
    group = leader.machine.groups[GROUP]
    world.act(world.add_agent("c"))
    while not leader.computing:
        if not world.move(leader):
            world.now_us = max(world.now_us, world.next_deadline_us() or 0)
            world.tick()
    assert group.state is GroupState.PLANNING
    world.zk.denied.add(("", paths.owners(GROUP, "c-1"), Right.READ))
    group.watched(("owners", "c-1"))
    world.tick()
    while not group.view.members["c-1"].refused:
        world.move(leader)
    assert leader.computing
    world.pass_time(SETTLED_MS)
    assert counts(world) == {"a-1": 6, "c-1": 0}
    assert is_at_rest(world)
    allow_again(world)


@MODES
def test_others_go_on_without_a_member_that_may_get_no_command(mode: str) -> None:
    """In `make_plan`, wait for its stop; in `LeftOut._try_some`, take it in, or in `adopt`, forget it."""
    world = a_group(mode)
    world.zk.denied.add(("", paths.channel(GROUP, "c-1"), Right.CREATE))
    for client in "def":  # each gets one partition in the end, so that `c` has to give one up
        world.add_agent(client)
    world.pass_time(SETTLED_MS)
    assert counts(world)["c-1"] == 2
    assert sorted(counts(world).values()) == [0, 1, 1, 1, 1, 2]
    assert is_at_rest(world)
    before = sent(world)
    world.pass_time(LATER_MS)
    assert sent(world) == before

    world.leader().machine.groups[GROUP].load("reconciliation")
    world.tick()
    world.pass_time(LATER_MS)
    assert sent(world) == before

    allow_again(world)
    assert not any(path.endswith(paths.PROBE) for path in world.zk.nodes)


@MODES
def test_what_a_hidden_member_gives_up_as_a_former_leader_has_told_it_goes_to_others(mode: str) -> None:
    """In `Group.handle`, request no plan when something is let go that the last plan left where it was."""
    world = a_group(mode, clients="ac")
    world.agents["c"].silent = True
    world.add_agent("b")
    world.pass_time(100)
    world.zk.denied.add(("", paths.given(GROUP, "c-1"), Right.READ))
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(TIMEOUT_MS // 2)
    world.agents["c"].silent = False
    world.pass_time(SETTLED_MS)
    assert sum(counts(world).values()) == 6
    assert counts(world)["c-1"] < 3
    assert is_at_rest(world)
    allow_again(world)


def test_an_eager_group_does_not_stop_for_each_try_of_a_static_members_record() -> None:
    world = a_group(EAGER)
    world.zk.denied.add(("", paths.static(GROUP), Right.CREATE))
    world.add_agent("s", instance_id="i")
    world.pass_time(SETTLED_MS)
    assert sum(counts(world).values()) == 6
    before = sent(world)
    world.pass_time(LATER_MS)
    assert sent(world) == before
    allow_again(world)
    assert world.zk.children(paths.static(GROUP)) == ["i"]


def test_the_record_of_a_static_member_is_tried_as_it_is() -> None:
    """In `LeftOut._note_written`, forget its version: the next write of it would contradict the view."""
    world = world_with(GroupSettings(mode=EAGER), partitions=4)
    for name in "ij":
        world.add_agent(name, instance_id=name)
    world.pass_time(SETTLED_MS)
    denied = "", paths.static(GROUP, "i"), Right.WRITE
    world.zk.denied.add(denied)
    world.set_topic("t", 8)
    world.pass_time(SETTLED_MS)
    before = sent(world)
    world.pass_time(LATER_MS)
    assert sent(world) == before
    read = read_paths(world)
    world.zk.denied.remove(denied)
    world.pass_time(LATER_MS)
    world.assert_settled()
    assert paths.group(GROUP) not in read


def test_a_right_to_cancel_commands_is_not_needed_to_send_them() -> None:
    """In `LeftOut._tried`, take any refusal for the one before."""
    world = a_group(EAGER)
    world.agents["c"].silent = True
    denied = {("", paths.channel(GROUP, "c-1"), right) for right in (Right.CREATE, Right.DELETE)}
    world.zk.denied |= denied
    world.add_agent("d")
    world.pass_time(SETTLED_MS)
    group = world.leader().machine.groups[GROUP]
    assert group.view.members["c-1"].is_refused
    world.zk.denied.remove(("", paths.channel(GROUP, "c-1"), Right.CREATE))
    world.pass_time(LATER_MS)
    assert not group.view.members["c-1"].is_refused


def test_an_eager_group_goes_on_though_a_late_start_may_not_be_cancelled() -> None:
    """In `Moving._answer_is_late`, let the scheduler repeat the call: nothing would ever be started again."""
    world = a_group(EAGER, clients="ab")
    hanging = world.add_agent("c")
    world.act(hanging)
    hanging.silent = True
    world.pass_time(100)
    world.zk.denied.add(("", paths.channel(GROUP, "c-1"), Right.DELETE))
    world.pass_time(2 * TIMEOUT_MS)
    world.add_agent("d")
    world.pass_time(TIMEOUT_MS // 2)
    assert sum(counts(world).values()) == 4
    assert counts(world)["d-1"] > 0
    assert not events(world, "member_left"), "a missing right is no reason to evict it"

    world.zk.denied.clear()
    hanging.silent = False
    world.pass_time(LATER_MS)
    world.assert_settled()
    assert "c-1" in world.owned()


def test_a_member_that_does_not_stop_is_evicted_though_its_command_may_not_be_read() -> None:
    """In `Moving._look`, let the scheduler repeat the call."""
    world = world_with(GroupSettings(rebalance_timeout_ms=TIMEOUT_MS))
    slow = world.add_agent("a", stop_timeout_ms=3 * TIMEOUT_MS)
    world.pass_time(TIMEOUT_MS)
    slow.silent = True
    world.add_agent("b")
    world.pass_time(100)
    (stop,) = world.zk.children(paths.channel(GROUP, "a-1"))
    world.zk.denied.add(("", f"{paths.channel(GROUP, 'a-1')}/{stop}", Right.READ))
    world.pass_time(4 * TIMEOUT_MS)
    assert [event["reason"] for event in events(world, "member_left")] == ["evicted"]


def test_members_that_a_quota_refuses_are_left_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Batch.refused_with`, name only the first; in `LeftOut`, give each a timer of its own."""
    monkeypatch.setattr(moving, "MAX_COMMANDS_PER_TRANSACTION", 4)
    clients = "abcdefghijkl"
    world = a_group(INCREMENTAL, clients=clients, partitions=len(clients))
    refused: list[bool] = []
    perform = world.zk.perform

    def with_quota(call: Call, session_id: int = 0) -> Reply:
        for index, one in enumerate(call.operations if isinstance(call, Multi) else ()):
            if isinstance(one, Create) and one.path.startswith(f"{paths.channel(GROUP)}/"):
                refused.append(paths.PROBE in one.path)
                return Refused(Refusal.QUOTA_EXCEEDED, index)
        return perform(call, session_id)

    world.zk.perform = with_quota  # type: ignore[method-assign]
    world.set_topic("t", 2 * len(clients))
    world.pass_time(50)
    assert refused == [False] * 3
    plans = len(events(world, "rebalance_planned"))
    world.pass_time(LATER_MS)
    assert len(events(world, "rebalance_planned")) - plans <= 1
    assert refused.count(False) == 3
    assert len(refused) <= 3 + 10 * len(clients)

    world.zk.perform = perform  # type: ignore[method-assign]
    world.pass_time(LATER_MS)
    assert set(counts(world).values()) == {2}
    world.assert_settled()
