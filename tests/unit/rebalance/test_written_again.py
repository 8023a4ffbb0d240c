"""A node that is written again and again fills no log, and puts nothing off."""

from __future__ import annotations

import pytest

from tests.support.groups import answer_one, read_paths, require_eviction_despite, world_with
from tests.support.world import GROUP, SESSION_MS, World
from zkrebalancer.protocol import paths, registration
from zkrebalancer.protocol.calls import Create, Done, Multi, SetContent
from zkrebalancer.protocol.settings import GroupSettings

TIMEOUT_MS = 10_000
JUNK = (b"junk", b'{"version":2}', *(b'{"version":"%c"}' % letter for letter in b"abcdefghijkl"))


def write(world: World, path: str, content: bytes) -> None:
    assert isinstance(world.zk.perform(Multi((SetContent(path, content),))), Done)


@pytest.mark.parametrize(
    "path", [paths.owners(GROUP, "b-1"), paths.ids(GROUP, "b-1"), paths.group(GROUP), paths.topic("t")]
)
def test_what_is_wrong_with_a_node_is_logged_a_few_times_however_often_it_is_written(path: str) -> None:
    """In `PartScheduler.complain`, warn each time."""
    world = world_with(GroupSettings(rebalance_timeout_ms=600_000), "a", "b")
    world.agents["b"].silent = True
    before = len(world.warnings)
    for second in range(280):
        write(world, path, JUNK[second % len(JUNK)])
        world.pass_time(100)
    assert 2 <= len(world.warnings) - before <= 30
    assert "times since the last such line" in world.warnings[-1]


def test_a_record_that_is_readable_now_and_then_puts_the_end_of_a_stop_not_off() -> None:
    """In `Moving.owners_read`, limit the time of a command anew whenever the record can be read again."""
    world = world_with(GroupSettings(rebalance_timeout_ms=TIMEOUT_MS), "a")
    world.agents["a"].silent = True
    path = paths.owners(GROUP, "a-1")
    content = world.zk.nodes[path].content
    world.add_agent("b")
    for _ in range(2 * TIMEOUT_MS // 1_000):
        for each in (b"junk", content):
            if path in world.zk.nodes:
                write(world, path, each)
            world.pass_time(500)
    world.pass_time(SESSION_MS)
    assert world.owned().keys() == {"b-1"}
    world.assert_settled()


def test_a_record_that_is_always_another_one_does_not_put_its_eviction_off() -> None:
    """In `Departures._channel_listed`, delete an unreadable record at the version that was read."""
    world = world_with(GroupSettings(rebalance_timeout_ms=TIMEOUT_MS), "a", "b")
    world.agents["b"].silent = True
    path = paths.owners(GROUP, "b-1")
    write(world, path, b"junk")
    world.pass_time(TIMEOUT_MS - 1)
    world.now_us += 1_000
    world.tick()
    require_eviction_despite(world, "b-1", lambda: write(world, path, b"junk"))


def test_a_valid_record_that_is_written_again_and_again_puts_no_eviction_off() -> None:
    """In `Departures._channel_listed`, delete a readable record at the version that was read."""
    world = world_with(GroupSettings(rebalance_timeout_ms=TIMEOUT_MS), "a")
    world.agents["a"].silent = True
    world.add_agent("b")
    world.pass_time(TIMEOUT_MS - 2_000)
    path = paths.owners(GROUP, "a-1")
    while paths.owners(GROUP, "a-1") in world.zk.nodes and not any("evicting" in text for text in world.warnings):
        world.now_us += 100_000
        world.tick()
        answer_one(world, world.leader())
    content = world.zk.nodes[path].content
    require_eviction_despite(world, "a-1", lambda: write(world, path, content))


def test_reading_a_group_again_and_again_puts_no_end_of_a_stop_off() -> None:
    """In `Moving.limit`, limit the time for a command anew at each reading."""
    world = world_with(GroupSettings(rebalance_timeout_ms=TIMEOUT_MS), "a")
    world.agents["a"].silent = True
    world.add_agent("b")
    world.pass_time(2_000)
    for _ in range(TIMEOUT_MS // 1_000):
        world.leader().machine.groups[GROUP].load("outdated")
        world.tick()
        world.pass_time(1_000)
    world.pass_time(SESSION_MS)
    assert world.owned().keys() == {"b-1"}


def test_a_broken_connection_begins_the_time_of_a_stop_anew() -> None:
    """In `Moving.reset`, keep the time limits: consumers may have been cut off, too."""
    world = world_with(GroupSettings(rebalance_timeout_ms=TIMEOUT_MS), "a")
    world.agents["a"].silent = True
    world.add_agent("b")
    world.pass_time(TIMEOUT_MS - 2_000)
    session = world.leader().session
    world.zk.disconnect(session)
    world.zk.reconnect(session)
    world.pass_time(TIMEOUT_MS - 2_000)
    assert "a-1" in world.owned()
    world.pass_time(4_000)
    assert "a-1" not in world.owned()


def test_a_large_registration_that_is_written_all_the_time_is_read_now_and_then_and_the_last_one_counts() -> None:
    """In `Membership.read_registration`, read it at once; or do not read it after the pause."""
    world = world_with(GroupSettings(), "a", "b")
    path, read = paths.ids(GROUP, "b-1"), read_paths(world)
    known = registration.decode(world.zk.nodes[path].content)
    for number in range(40):
        names = {f"u{number}-{each}": 1 for each in range(10_000)}
        write(world, path, registration.encode(known._replace(subscription=names)))
        world.pass_time(100)
    assert 2 <= read.count(path) <= 10
    write(world, path, registration.encode(known))
    world.pass_time(5_000)
    assert {len(owned) for owned in world.owned().values()} == {2}
    count = read.count(path)
    for capacity in (2.0, 3.0, 4.0):
        write(world, path, registration.encode(known._replace(capacity=capacity)))
        world.pass_time(10)
    assert read.count(path) == count + 3


def test_what_is_wrong_with_a_node_is_logged_ever_more_rarely_while_its_group_is_reconciled() -> None:
    """In `Group._loaded`, log all at each reading."""
    world = world_with(GroupSettings(), "a")
    world.zk.perform(Multi((Create(paths.static(GROUP, "x"), b"junk"), Create(paths.static(GROUP, "y"), b"junk"))))
    world.pass_time(12 * 3_600_000)
    for name in "xy":
        assert 10 < sum(f"static member {name}: " in text for text in world.warnings) < 25


def test_a_wildcard_that_does_not_compile_is_logged_once_while_its_group_is_reconciled() -> None:
    """In `GroupView.become`, do not keep that it was logged."""
    world = world_with(GroupSettings(), "a")
    world.add_agent("b", {"(": 1}, pattern="white_list")
    world.pass_time(2 * 3_600_000)
    assert sum("b-1 gets nothing" in text for text in world.warnings) == 1
