"""No transaction of the leader is larger than servers read: a server drops the connection at one that is."""

from __future__ import annotations

import pytest

from tests.support.groups import copies
from tests.support.world import GROUP, SESSION_MS, World
from zkrebalancer.protocol import ownership, paths, settings
from zkrebalancer.protocol.calls import Create, Delete, Multi
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.protocol.settings import GroupSettings

LIMIT = RequestLimit(max_bytes=20_000)
LONG = "t" * 240


def world_of_small_requests(topics: int, partitions: int, group: GroupSettings | None = None) -> World:
    world = World()
    world.zk.max_request_bytes = LIMIT.max_bytes
    for number in range(topics):
        world.set_topic(f"{LONG}{number:03d}", partitions)
    world.create_group(settings.encode(group or GroupSettings()))
    world.add_coordinator(limit=LIMIT)
    return world


def subscription(topics: int) -> dict[str, int]:
    return {f"{LONG}{number:03d}": 1 for number in range(topics)}


@pytest.mark.parametrize("mode", ["incremental", "eager"])
def test_commands_go_with_marks_and_records_of_static_members(mode: str) -> None:
    """In `Batch.add`, do not count `beside`."""
    world = world_of_small_requests(31, 4, GroupSettings(mode=mode))
    for number in range(4):
        world.add_agent(f"a{number}", subscription(30), instance_id=f"pod-{number}")
    world.pass_time(5_000)
    world.add_agent("late", subscription(31))
    world.pass_time(20_000)
    owned = world.owned()
    assert sum(map(len, owned.values())) == 31 * 4
    assert world.leader().session.connected
    assert len(world.zk.children(paths.static(GROUP))) == 4
    assert all(LIMIT.fits(operations) for operations in world.zk.transactions)


def test_a_start_that_is_too_large_with_its_marks_is_sent_in_parts() -> None:
    """In `Batch.add`, do not halve."""
    world = world_of_small_requests(60, 1)
    world.add_agent("a", subscription(60))
    world.pass_time(5_000)
    assert len(world.owned()["a-1"]) == 60


def test_a_static_members_record_that_is_too_large_is_left_out_and_the_member_gets_what_is_its() -> None:
    """In `Batch.add`, do not leave a record out."""
    world = world_of_small_requests(70, 1)
    world.add_agent("a", subscription(70), instance_id="pod")
    world.pass_time(10_000)
    assert len(world.owned()["a-1"]) == 70
    assert "group g: static member pod: its record is too large, its partitions will not wait for it" in world.warnings


def crowd(world: World, consumer: str, count: int) -> None:
    """Fill a channel, as a program that has run amok would."""
    channel = paths.channel(GROUP, consumer)
    for number in range(count):
        world.zk.perform(Multi((Create(f"{channel}/command-{5_000_000_000 + number}", b"x"),)))


def test_a_channel_that_is_too_full_is_emptied_step_by_step_when_its_consumer_is_evicted() -> None:
    """In `Departures._channel_listed`, never empty the channel first."""
    world = world_of_small_requests(1, 4, GroupSettings(rebalance_timeout_ms=1_000, max_rebalance_retries=0))
    agent = world.add_agent("a", subscription(1))
    world.pass_time(1_000)
    agent.silent = True
    crowd(world, "a-1", 500)
    world.add_agent("b", subscription(1))
    world.pass_time(1_500 + SESSION_MS)
    assert "a-1" not in world.owned()
    world.pass_time(2 * SESSION_MS)
    assert len(world.owned()["b-1"]) == 4


@pytest.mark.parametrize("count", [300, 500])
def test_a_channel_of_the_dead_that_is_too_full_is_removed(count: int) -> None:
    """In `Departures._dead_channel_listed`, delete all that was listed; or look at the number only for the last one."""
    world = world_of_small_requests(1, 4)
    agent = world.add_agent("a", subscription(1))
    world.pass_time(1_000)
    crowd(world, "a-1", count)
    world.kill_agent(agent)
    world.pass_time(1_000)
    world.assert_nothing_left()


def test_an_eviction_record_that_would_be_too_large_names_topics_instead_of_partitions() -> None:
    """In `Departures._channel_listed`, keep the partitions of a record that is too large."""
    group = GroupSettings(strategy="round_robin", rebalance_timeout_ms=1_000, max_rebalance_retries=0)
    world = world_of_small_requests(1, 6_000, group)
    agents = [world.add_agent(client, subscription(1)) for client in ("a", "b")]
    world.pass_time(5_000)
    assert {len(partitions) for partitions in world.owned().values()} == {3_000}
    agents[0].silent = True
    world.add_agent("c", subscription(1))
    world.pass_time(1_500)
    record = ownership.decode_eviction(world.zk.nodes[paths.evicted(GROUP, "a-1")].content)
    assert (record.topics, record.partitions) == ((f"{LONG}000",), {})
    world.pass_time(SESSION_MS)
    assert sum(map(len, world.owned().values())) == 6_000


def test_names_that_many_topics_get_at_once_are_stored_step_by_step() -> None:
    """In `TopicReset._rename`, store all of them."""
    world = world_of_small_requests(60, 1)
    world.add_agent("a", subscription(60))
    world.pass_time(5_000)
    for topic in subscription(60):
        world.set_topic(topic, 1, "id-2")
    world.pass_time(5_000)
    marks = [world.zk.nodes[paths.offsets(GROUP, topic)].content.split() for topic in subscription(60)]
    assert all(b"id-2" in mark for mark in marks)
    assert world.leader().session.connected
    assert all(LIMIT.fits(operations) for operations in world.zk.transactions)


def test_offsets_of_a_topic_created_anew_are_deleted_step_by_step() -> None:
    """In `TopicReset._listed`, delete all that was listed."""
    world = world_of_small_requests(1, 200)
    world.add_agent("a", subscription(1))
    world.pass_time(1_000)
    offsets = paths.offsets(GROUP, f"{LONG}000")
    for number in range(200):
        world.zk.perform(Multi((Create(f"{offsets}/{number}", b"7"),)))
    world.delete_topic(f"{LONG}000")
    world.set_topic(f"{LONG}000", 200, "id-2")
    world.pass_time(5_000)
    assert world.zk.children(offsets) == []
    assert len(world.owned()["a-1"]) == 200
    kept = [copy.offsets for copy in copies(world)]
    assert len(kept) > 1
    assert {partition: offset for offsets in kept for partition, offset in offsets.items()} == dict.fromkeys(
        range(200), 7
    )
    assert any(isinstance(operation, Delete) for operations in world.zk.transactions for operation in operations)
