"""What the leader publishes of what it cannot do, and what becomes of it."""

from __future__ import annotations

import pytest

from tests.support.groups import events, world_with
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from zkrebalancer.protocol import obstacles, paths, settings
from zkrebalancer.protocol.calls import Create, Delete, Get, Multi, Refusal
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.obstacles import PublishedObstacle
from zkrebalancer.protocol.requests import MAX_REQUEST_BYTES
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.obstacles import Published
from zkrebalancer.rebalance.refusals import REFUSED_US
from zkrebalancer.rebalance.scheduler import Waiting

UNKNOWN = settings.encode(GroupSettings(strategy="unknown"))


def published(world: World) -> list[PublishedObstacle]:
    node = world.zk.nodes.get(paths.COORDINATOR_OBSTACLES)
    return [] if node is None else obstacles.decode(node.content)[1]


def deny(world: World, path: str, right: Right) -> None:
    world.zk.identity = str
    world.zk.denied.add((str(world.leader().session.session_id), path, right))


def test_a_refused_path_is_published_with_the_right_that_is_missing_and_withdrawn() -> None:
    world = world_with(GroupSettings(), "a")
    deny(world, paths.channel(GROUP, "a-1"), Right.CREATE)
    world.set_topic("t", 6)
    world.pass_time(3_000)
    (found,) = published(world)
    assert (found.group, found.kind, found.right) == (GROUP, "refused", "CREATE of its parent")
    assert found.path is not None
    assert found.path.startswith(paths.channel(GROUP, "a-1"))
    world.zk.denied.clear()
    world.pass_time(60_000)
    assert published(world) == []
    assert paths.COORDINATOR_OBSTACLES not in world.zk.nodes


def test_a_group_that_backs_off_is_published_with_the_reason_until_it_goes_on() -> None:
    world = world_with(GroupSettings(), "a")
    world.configure(UNKNOWN)
    world.pass_time(3_000)
    (found,) = published(world)
    assert (found.group, found.kind) == (GROUP, "backing-off")
    assert "unknown" in found.reason
    world.configure(settings.encode(GroupSettings()))
    world.pass_time(3_000)
    assert published(world) == []


def test_the_next_leader_publishes_anew_and_what_a_former_one_left_is_replaced() -> None:
    world = world_with(GroupSettings(), "a")
    world.configure(UNKNOWN)
    world.pass_time(3_000)
    world.kill_coordinator(world.leader())
    assert published(world) == []
    left = obstacles.encode(1, [PublishedObstacle(GROUP, "backing-off", "what was")])
    world.zk.perform(Multi((Create(paths.COORDINATOR_OBSTACLES, left),)))
    world.add_coordinator()
    world.pass_time(10_000)
    epoch, (found,), _more = obstacles.decode(world.zk.nodes[paths.COORDINATOR_OBSTACLES].content)
    assert (epoch, "unknown" in found.reason) == (2, True)


def test_a_group_that_is_deleted_is_not_published_any_more() -> None:
    world = world_with(GroupSettings(strategy="unknown"))
    world.add_agent("a")
    world.pass_time(3_000)
    assert published(world)
    world.leave(world.agents.pop("a"))
    for path in sorted((path for path in world.zk.nodes if path.startswith(paths.group(GROUP))), reverse=True):
        world.zk.perform(Multi((Delete(path),)))
    world.pass_time(10_000)
    assert published(world) == []


@pytest.mark.parametrize("is_written", [False, True])
def test_a_broken_connection_leaves_neither_too_much_nor_too_little(is_written: bool) -> None:
    """In `Obstacles.begin`, do not mind what was being written."""
    world = world_with(GroupSettings(), "a")
    world.configure(UNKNOWN)
    leader = world.leader()
    while not any("obstacles" in str(call) for _id, call in leader.session.sent):
        if not world.move(leader):
            world.now_us = world.next_deadline_us() or world.now_us
            world.tick()
    while is_written and leader.session.sent:
        world.zk.perform_next(leader.session)
    assert (paths.COORDINATOR_OBSTACLES in world.zk.nodes) == is_written
    world.zk.disconnect(leader.session)
    world.zk.reconnect(leader.session)
    world.configure(settings.encode(GroupSettings()))
    world.pass_time(10_000)
    assert published(world) == []


@pytest.mark.parametrize("change", [b"[]", b"{}", b'{"version":2}', b'{"version":1,"epoch":1,"obstacles":[1]}'])
def test_other_content_is_refused_by_name(change: bytes) -> None:
    with pytest.raises(NodeContentError, match="obstacles"):
        obstacles.decode(change)


def test_no_more_are_published_than_fit() -> None:
    """What is shown stays while it is true. In `Obstacles._now`, forget what was shown."""
    world = world_with(GroupSettings(), "a")
    machine = world.leader().machine
    for number in range(1_000):
        machine.scheduler.part(f"g{number}").note_backing_off("r" * 2 * obstacles.MAX_REASON)
    world.tick()
    world.pass_time(3_000)
    content = world.zk.nodes[paths.COORDINATOR_OBSTACLES].content
    assert len(content) < 100_000
    assert b'"more":900' in content
    before = {found.group for found in published(world)}
    assert len(before) == obstacles.MAX_OBSTACLES
    for number in range(50, 1_000, 2):
        machine.scheduler.part(f"g{number}").note_backing_off(None)
    for number in range(1_000, 1_050):
        machine.scheduler.backing_off = {f"g{number}": "new", **machine.scheduler.backing_off}
    world.tick()
    world.pass_time(3_000)
    after = {found.group for found in published(world)}
    assert len(after) == obstacles.MAX_OBSTACLES
    assert before & machine.scheduler.backing_off.keys() <= after
    assert b'"more":475' in world.zk.nodes[paths.COORDINATOR_OBSTACLES].content


def test_plans_that_wait_are_published_before_all_others() -> None:
    """In `Obstacles._now`, let what was shown before stay: `groups resume` says that no plan waits."""
    world = world_with(GroupSettings(), "a")
    machine = world.leader().machine
    for number in range(150):
        machine.scheduler.part(f"g{number}").note_backing_off("reason")
    world.tick()
    world.pass_time(3_000)
    for number in range(3):
        machine.scheduler.part(f"w{number}").note_unapproved(Waiting(5, 1), 1)
    world.tick()
    world.pass_time(3_000)
    found = published(world)
    assert [each.group for each in found if each.kind == obstacles.UNAPPROVED] == ["w0", "w1", "w2"]
    assert len(found) == obstacles.MAX_OBSTACLES
    assert b'"more":53' in world.zk.nodes[paths.COORDINATOR_OBSTACLES].content


def test_paths_that_are_too_long_for_the_node_leave_room_for_the_others() -> None:
    """In `Obstacles._create`, return the first one: it is refused as too large, and nothing later is published."""
    world = world_with(GroupSettings(), "a")
    machine = world.leader().machine
    for number in range(obstacles.MAX_OBSTACLES - 1):
        machine.scheduler.note_refused(Get(f"{paths.ids(GROUP)}/{number}{'x' * 20_000}"), Refusal.NO_AUTH)
    machine.scheduler.part("w").note_unapproved(Waiting(5, 1), 1)
    world.tick()
    world.pass_time(3_000)
    content = world.zk.nodes[paths.COORDINATOR_OBSTACLES].content
    assert len(content) < MAX_REQUEST_BYTES
    found = published(world)
    assert "w" in {each.group for each in found}
    assert f'"more":{obstacles.MAX_OBSTACLES - len(found)}'.encode() in content


def test_what_comes_later_fills_the_room_that_is_left() -> None:
    """In `Obstacles._now`, look at no more new ones than there is room for: those shown already come first."""
    world = world_with(GroupSettings(), "a")
    machine = world.leader().machine
    for first in (0, 60):
        for number in range(first, first + 60):
            machine.scheduler.part(f"g{number}").note_backing_off("reason")
        world.tick()
        world.pass_time(3_000)
    assert len(published(world)) == obstacles.MAX_OBSTACLES
    assert b'"more":20' in world.zk.nodes[paths.COORDINATOR_OBSTACLES].content


def test_what_was_refused_is_not_published_for_longer_than_somebody_tries_it() -> None:
    """A consumer that is gone, and a topic that is deleted. In `Refusals.forget`, forget nothing."""
    world = world_with(GroupSettings(), "a")
    world.zk.denied.add(("", paths.channel(GROUP, "b-1"), Right.CREATE))
    world.zk.denied.add(("", paths.topic("u"), Right.READ))
    world.set_topic("u", 2)
    late = world.add_agent("b")
    world.pass_time(5_000)
    assert {found.path for found in published(world)} == {f"{paths.channel(GROUP, 'b-1')}/*", paths.topic("u")}
    world.pass_time(REFUSED_US // 500)
    assert len(published(world)) == 2, "they are still tried"
    world.leave(late)
    world.kill_agent(late)
    world.delete_topic("u")
    world.pass_time(2 * REFUSED_US // 1_000)
    assert published(world) == []


def test_a_name_that_differs_each_time_is_one_refusal() -> None:
    """Copies of offsets are named by the time. In `refusals.known_by`, return the path as it is."""
    world = world_with(GroupSettings(), "a")
    world.zk.perform(Multi((Create(f"{paths.offsets(GROUP, 't')}/0", b"5"), Create(paths.deleted_offsets(GROUP)))))
    world.zk.denied.add(("", paths.deleted_offsets(GROUP), Right.CREATE))
    world.delete_topic("t")
    world.pass_time(10)
    world.set_topic("t", 4, "id-2")
    world.pass_time(300_000)
    (found,) = published(world)
    assert found.path == f"{paths.deleted_offsets(GROUP)}/*"
    assert sum("ZooKeeper refuses" in text for text in world.warnings) == 1
    world.zk.denied.clear()
    world.pass_time(60_000)
    assert published(world) == []
    world.assert_settled()


def test_an_offset_that_cannot_be_deleted_is_emptied_and_the_group_is_not_read_again_and_again() -> None:
    """Somebody has made a node below it. In `topic_reset._is_race`, take that for a race."""
    world = world_with(GroupSettings(), "a")
    below = f"{paths.offsets(GROUP, 't')}/0"
    world.zk.perform(Multi((Create(below, b"5"), Create(f"{below}/x"))))
    world.delete_topic("t")
    world.pass_time(10)
    world.set_topic("t", 4, "id-2")
    before = len(events(world, "rebalance_requested"))
    world.pass_time(200_000)
    assert world.zk.nodes[below].content == b""
    assert published(world) == []
    assert sum("not empty" in text for text in world.warnings) == 1
    assert len(events(world, "rebalance_requested")) < before + 4
    world.zk.perform(Multi((Delete(f"{below}/x"),)))
    world.pass_time(60_000)
    world.assert_settled()


def test_what_is_published_is_gathered_once_however_much_changes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of groups may be refused one after the other. In `Obstacles.look`, gather what there is."""
    world = world_with(GroupSettings(), "a")
    machine = world.leader().machine
    gathered: list[int] = []
    gather = machine.obstacles._now

    def counted() -> Published:
        gathered.append(1)
        return gather()

    monkeypatch.setattr(machine.obstacles, "_now", counted)
    for number in range(100):
        machine.scheduler.note_refused(Get(f"{paths.group('h')}/{number}"), Refusal.NO_AUTH)
        world.tick()
    assert len(gathered) <= 1


def test_a_node_of_somebody_else_in_the_place_is_logged() -> None:
    """In `Obstacles._publish`, expect that the node is not empty."""
    world = world_with(GroupSettings(), "a")
    world.zk.perform(Multi((Create(paths.COORDINATOR_OBSTACLES, b"x"), Create(f"{paths.COORDINATOR_OBSTACLES}/x"))))
    world.configure(UNKNOWN)
    world.pass_time(10_000)
    assert any(f"refuses {paths.COORDINATOR_OBSTACLES}: not empty" in text for text in world.warnings)
    world.zk.perform(Multi((Delete(f"{paths.COORDINATOR_OBSTACLES}/x"),)))
    world.pass_time(60_000)
    assert [found.kind for found in published(world)] == ["backing-off"]
