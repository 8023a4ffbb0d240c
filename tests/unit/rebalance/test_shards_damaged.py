"""Another program has written to the node with the number of shards."""

from __future__ import annotations

import pytest

from tests.support.shard_world import ShardWorld
from zkrebalancer.protocol import cluster_nodes, paths, shards
from zkrebalancer.protocol.calls import Check, Create, Delete, Done, Get, Multi, SetContent
from zkrebalancer.protocol.errors import NewerVersionError
from zkrebalancer.rebalance.deadlines import MAX_MOVED, Deadlines

SETTLED_MS = 5_000
HOUR_MS = 3_600_000
JUNK = b"{}"
NEWER = b'{"version": 2, "shards": {"first": 3}}'


def damaged(count: int, *, content: bytes | None = JUNK) -> ShardWorld:
    """Return two hosts that share the shards, and whose number is damaged."""
    world = ShardWorld()
    world.prepare(count)
    for _ in range(2):
        world.add()
        world.pass_time(SETTLED_MS)
    write(world, content)
    world.pass_time(SETTLED_MS)
    return world


def write(world: ShardWorld, content: bytes | None) -> None:
    """Replace the content of the node; None: remove it with everything below."""
    if content is None:
        below = sorted((path for path in world.zk.nodes if path.startswith(paths.SHARDS)), reverse=True)
        assert isinstance(world.zk.perform(Multi(tuple(map(Delete, below)))), Done)
        return
    change = SetContent if paths.SHARDS in world.zk.nodes else Create
    assert isinstance(world.zk.perform(Multi((change(paths.SHARDS, content),))), Done)


def test_leaders_go_on_and_elections_are_tried_at_growing_intervals() -> None:
    """In `CoordinatorElector._wait_for_number`, wait for 200 ms: 18,000 elections in an hour."""
    world = damaged(4)
    world.assert_shared(4, 2, 2)
    world.kill(world.processes[0])
    tries: list[int] = []

    perform = world.zk.perform_next

    def counting(session: object) -> None:
        _call_id, call = next(iter(session.sent))  # type: ignore[attr-defined]
        if isinstance(call, Multi) and any(
            isinstance(each, Check) and each.path == paths.SHARDS for each in call.operations
        ):
            tries.append(world.now_us)
        perform(session)  # type: ignore[arg-type]

    world.zk.perform_next = counting  # type: ignore[method-assign]
    world.pass_time(HOUR_MS)
    assert 100 < len(tries) < 300  # of two shards, at last every 30 s
    assert [text for text in world.warnings if "number of shards has changed" in text] == []
    said = [text for text in world.warnings if text.startswith(f"{paths.SHARDS} is damaged")]
    assert 2 <= len(said) < 30  # of two hosts, at growing intervals


@pytest.mark.parametrize("content", [JUNK, b""])
@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, 2), (1, 3), (3, 1)])
def test_setting_the_number_mends_it(before: int, after: int, content: bytes) -> None:
    """In `change_shards._decoded`, leave the shards out that have nodes: their former leaders could still write."""
    if (before, content) == (1, b""):
        return  # an empty node is no damage then
    world = damaged(before, content=content)
    fences = [one.scheduler.fence for process in world.processes for one in process.leading()]
    epochs = [one.coordinator_elector.epoch for process in world.processes for one in process.leading()]
    assert world.set_shards(after) is None
    for fence in fences:
        assert not isinstance(world.zk.perform(Multi((fence,))), Done), "a former leader can still write"
    node = world.zk.nodes[paths.SHARDS]
    assert shards.decode_number(node.content).first_epoch == max(epochs)
    world.pass_time(60_000)
    counts = [len(process.led()) for process in world.processes]
    assert sum(counts) == after
    for process in world.processes:
        assert process.machine.damage is None


@pytest.mark.parametrize("content", [b"", None])
def test_a_number_that_is_gone_while_there_are_several_shards_is_a_damage(content: bytes | None) -> None:
    """In `AllShards._number_read`, believe that there is one: nobody leads, and nobody says why."""
    world = damaged(3, content=content)
    newcomer = world.add()
    world.pass_time(2 * 60_000)
    for process in world.processes:
        assert "is damaged" in (process.machine.damage or "")
    assert newcomer.machine.machines == ()
    said = [text for text in world.warnings if text.startswith(f"{paths.SHARDS} is damaged")]
    assert len(said) < 30  # of three hosts, at growing intervals
    assert [text for text in world.warnings if "belongs to no session" in text] == []
    assert len(world.events) < 100
    assert world.set_shards(3) is None
    world.pass_time(60_000)
    world.assert_shared(3, 1, 1, 1)


def test_leaders_go_on_beside_an_emptied_number() -> None:
    """In `AllShards._number_read`, let them end: an empty node also means one shard."""
    world = damaged(4, content=b"")
    elected = len(world.led_at)
    world.pass_time(2 * 60_000)
    world.assert_shared(4, 2, 2)
    assert len(world.led_at) == elected


def test_no_two_leaderships_of_a_session_make_the_same_ids_although_the_number_was_written_again() -> None:
    """In `Coordinator.coordinator_startup`, count the leaderships of one machine: there is a new one, in its old epoch.

    A member that has applied a command of the same id would seem to have applied the new one.
    """
    world = ShardWorld()
    world.prepare(2)
    process = world.add()
    world.pass_time(SETTLED_MS)
    seeds = [one.scheduler.id_seed for one in process.leading()]
    for _ in range(2):
        write(world, world.zk.nodes[paths.SHARDS].content)
        world.pass_time(SETTLED_MS)
        seeds += [one.scheduler.id_seed for one in process.leading()]
    assert len(seeds) == len(set(seeds)) == 6


def test_a_change_between_two_reads_is_no_damage() -> None:
    """In `AllShards._barrier_read`, compare no versions: the number is read, it changes, and the barrier is read."""
    world = ShardWorld()
    world.prepare(1)
    process = world.add()
    for _ in range(20):
        if [call for _call_id, call in process.session.sent][:1] == [Get(shards.BARRIER)]:
            break
        world._move(process)
    else:
        raise AssertionError("it looks for no barrier")
    world.set_shards(5)
    world.pass_time(SETTLED_MS)
    world.assert_shared(5, 5)
    assert [text for text in world.warnings if "is damaged" in text] == []


def test_a_leader_elected_after_the_damage_makes_the_repair_fail_and_be_tried_again() -> None:
    """The only shard checks no number: its epoch counts as a former one, whatever nodes there are."""
    world = ShardWorld()
    world.prepare(1)
    write(world, JUNK)
    world.zk.perform(Multi((Create(paths.COORDINATOR_EPOCH, cluster_nodes.encode_counter(7)),)))
    assert world.set_shards(2) is None
    assert shards.decode_number(world.zk.nodes[paths.SHARDS].content).first_epoch == 7


def test_a_number_of_a_newer_release_is_left_alone() -> None:
    world = damaged(2, content=NEWER)
    with pytest.raises(NewerVersionError):
        world.set_shards(2)
    assert world.zk.nodes[paths.SHARDS].content == NEWER


def test_a_host_that_starts_waits_for_the_number() -> None:
    world = damaged(2)
    newcomer = world.add()
    world.pass_time(SETTLED_MS)
    assert newcomer.machine.machines == ()
    assert newcomer.machine.damage is not None
    world.set_shards(3)
    world.pass_time(60_000)
    world.assert_shared(3, 1, 1, 1)


def test_the_first_deadline_is_found_without_a_look_at_all() -> None:
    deadlines = Deadlines()
    for place, at_us in enumerate((50, 20, 30)):
        deadlines.set(place, at_us)
    assert (deadlines.first_us(), deadlines.due(25, ()), deadlines.due(25, {1})) == (20, 1, None)
    assert deadlines.due(60, {1}) == 2
    deadlines.set(1, 70)
    assert (deadlines.first_us(), deadlines.due(29, ())) == (30, None)
    deadlines.set(2, None)
    deadlines.set(2, None)
    assert (deadlines.first_us(), deadlines.due(50, {0})) == (50, None)
    for at_us in range(1_000):
        deadlines.set(2, at_us)
        deadlines.set(2, 10_000)
    assert len(deadlines._heap) <= MAX_MOVED * 3
    deadlines.clear()
    assert deadlines.first_us() is None


def test_the_fault_of_a_topic_is_logged_once_whatever_the_number_of_shards() -> None:
    """In `AllShards._become`, let each machine count its own faults: 200 lines for one topic."""
    world = ShardWorld()
    world.prepare(8)
    world.zk.perform(Multi((Create(paths.topic("foreign"), b"{"),)))
    world.add()
    world.pass_time(SETTLED_MS)
    assert len([text for text in world.warnings if "stays as it was" in text]) == 1
