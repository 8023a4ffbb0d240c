"""Rule 12: how long the coordinator waits for an answer to a stop."""

from __future__ import annotations

import pytest

from tests.support.groups import answer_one, events, world_with
from tests.support.world import GROUP
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Delete, Multi
from zkrebalancer.protocol.settings import GroupSettings


def test_rule_12_a_member_has_the_time_for_a_stop_that_it_registered_and_the_groups_time_for_a_start() -> None:
    """In `Moving.limit`, let every command have the group's limit, or every one the member's."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000))
    world.add_agent("a", stop_timeout_ms=3_000)
    world.run()
    world.agents["a"].silent = True
    other = world.add_agent("b", stop_timeout_ms=3_000)
    world.act(other)
    other.silent = True
    world.pass_time(2_900)
    assert world.owned()["a-1"]  # stops are waited for, by everybody else too
    assert not events(world, "member_left")
    world.agents["a"].silent = False
    world.pass_time(1_500)
    assert [event["option"] for event in events(world, "command_sent") if event["member"] == "b-1"] == [
        "start-fetcher"
    ] * 2  # the first one was late


def test_rule_12_a_stop_that_somebody_deleted_is_sent_again_after_the_groups_time() -> None:
    """In `Moving._await_answer`, wait until `late_us`: all others would wait for minutes."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000))
    slow = world.add_agent("a", stop_timeout_ms=300_000)
    world.run()
    slow.silent = True
    world.add_agent("b")
    world.pass_time(100)
    (stop,) = world.zk.children(paths.channel(GROUP, "a-1"))
    world.zk.perform(Multi((Delete(f"{paths.channel(GROUP, 'a-1')}/{stop}"),)))
    slow.silent = False
    world.pass_time(1_500)
    assert {len(partitions) for partitions in world.owned().values()} == {2}
    assert not events(world, "member_left")
    assert [event["option"] for event in events(world, "command_sent") if event["member"] == "a-1"] == [
        "start-fetcher",
        "stop-fetcher",
        "stop-fetcher",
    ]


def test_rule_12_a_member_may_not_have_less_time_for_a_stop_than_its_group_gives() -> None:
    """In `stop_limit_ms`, return what was registered."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000))
    world.add_agent("a", stop_timeout_ms=10)
    world.run()
    world.agents["a"].silent = True
    world.add_agent("b")
    world.pass_time(900)
    assert not events(world, "member_left")
    world.pass_time(200)
    assert events(world, "member_left")[-1] == {"member": "a-1", "reason": "evicted"}


@pytest.mark.parametrize("option", ["start-fetcher", "stop-fetcher"])
def test_rule_12_a_command_that_was_deleted_just_before_it_is_late_is_sent_again(option: str) -> None:
    """In `Departures._channel_listed` and `Moving._cancelled`, report without the command that it may be gone."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000), "a")
    slow = world.agents["a"]
    slow.silent = True
    if option == "start-fetcher":
        world.set_topic("t", 5)
    else:
        world.add_agent("b")
    world.pass_time(900)
    (node,) = world.zk.children(paths.channel(GROUP, "a-1"))
    world.zk.perform(Multi((Delete(f"{paths.channel(GROUP, 'a-1')}/{node}"),)))
    slow.silent = False
    world.pass_time(1_000)
    sent = [event["option"] for event in events(world, "command_sent") if event["member"] == "a-1"]
    assert sent == ["start-fetcher", option, option]
    assert not events(world, "member_left")


def test_rule_12_an_eviction_that_is_called_off_is_not_begun_again_at_once() -> None:
    """In `Moving.limit_anew`, keep the former limit, which is over."""
    world = world_with(GroupSettings(rebalance_timeout_ms=1_000), "a")
    world.agents["a"].silent = True
    world.add_agent("b")
    world.pass_time(900)
    (stop,) = world.zk.children(paths.channel(GROUP, "a-1"))
    world.zk.perform(Multi((Delete(f"{paths.channel(GROUP, 'a-1')}/{stop}"),)))
    world.now_us += 200_000
    world.tick()
    while answer_one(world, world.leader()):
        world.tick()
    assert len([text for text in world.warnings if "evicting a-1" in text]) == 1
    assert not events(world, "member_left")
