"""Offsets of another store become those of a group: the next member continues there, even after a killed import."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import cast

import pytest

from tests.support.client import MAX_CALLS, Client, KilledError
from tests.support.groups import events, world_with
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from zkrebalancer.operations import move_offsets, starts_pause
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.operations.move_offsets import (
    Imported,
    OldOffsetsError,
    UnreadableOffsetsError,
    import_into_kafka,
    import_into_old_consumers,
    import_offsets,
    in_zookeeper,
    of_old_consumers,
    refuse_old_consumers,
)
from zkrebalancer.operations.starts_pause import OffsetsRefusedError
from zkrebalancer.operations.topic_offsets import UnknownTopicError
from zkrebalancer.protocol import offset_lives, paths, settings
from zkrebalancer.protocol.calls import Call, Content, Create, Delete, Get, Multi, Refusal, Reply, SetContent
from zkrebalancer.protocol.errors import InvalidNameError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

OFFSETS = {("t", 0): 10, ("t", 2): 12}


@pytest.fixture(autouse=True)
def small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts_pause, "MAX_WRITES_PER_TRANSACTION", 1)


def client_of(world: World, dies_after: int = MAX_CALLS) -> BlockingZk:
    return cast("BlockingZk", Client(world, dies_after))


def without_group() -> World:
    """Return a coordinator that knows a topic of three partitions, and no group."""
    world = World()
    world.set_topic("t", 3)
    world.add_coordinator()
    world.pass_time(1_000)
    return world


def stored(world: World, number: int) -> bytes | None:
    node = world.zk.perform(Get(paths.offsets(GROUP, "t", number)))
    return node.content if isinstance(node, Content) else None


def test_a_group_is_created_and_its_first_member_continues_there() -> None:
    """In `write_offsets`, leave the marks out: the coordinator deletes the offsets."""
    world = without_group()
    assert import_offsets(client_of(world), GROUP, OFFSETS, dry_run=False) == {
        ("t", 0): Imported(None, 10),
        ("t", 2): Imported(None, 12),
    }
    world.add_agent("a")
    world.pass_time(10_000)
    world.assert_settled()
    assert [stored(world, number) for number in range(3)] == [b"10", None, b"12"]
    assert in_zookeeper(client_of(world), GROUP) == OFFSETS


def test_offsets_of_a_topic_that_is_recreated_before_the_first_member_begins_are_deleted() -> None:
    """In `write_offsets`, write empty marks."""
    world = without_group()
    import_offsets(client_of(world), GROUP, OFFSETS, dry_run=False)
    world.delete_topic("t")
    world.set_topic("t", 3, "id-2")
    world.add_agent("a")
    world.pass_time(10_000)
    assert in_zookeeper(client_of(world), GROUP) == {}


class Recreating(Client):
    """The topic is created anew before the n-th call, and the leader has time to find that."""

    is_anew = False

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        if self.left == 1:
            self.is_anew = True
            self.world.delete_topic("t")
            self.world.set_topic("t", 3, "id-2")
            self.world.pass_time(2_000)
            self.left = MAX_CALLS
        return super().perform(call, expected)


@pytest.mark.parametrize("group_exists", [False, True])
def test_offsets_of_a_topic_that_is_recreated_during_the_import_do_not_count_for_the_new_one(
    group_exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `write_offsets`, leave out the guards, or to look at the topics again."""
    monkeypatch.setattr(starts_pause, "CLEANUP_TIMEOUT_S", 0.0)
    refused = 0
    for calls in range(1, MAX_CALLS):
        world = without_group()
        if group_exists:
            import_offsets(client_of(world), GROUP, {("t", 1): 1}, dry_run=False)
        client = Recreating(world, calls)
        try:
            import_offsets(cast("BlockingZk", client), GROUP, OFFSETS, dry_run=False)
        except OffsetsRefusedError:
            refused += 1
        world.add_agent("a")
        world.pass_time(100_000)
        world.assert_settled()
        if not client.is_anew:
            assert in_zookeeper(client_of(world), GROUP) == {**OFFSETS, **({("t", 1): 1} if group_exists else {})}
            break
        assert in_zookeeper(client_of(world), GROUP) in ({}, OFFSETS if calls == 1 else {})
    assert refused


def test_a_dry_run_writes_nothing() -> None:
    world = without_group()
    before = dict(world.zk.nodes)
    assert import_offsets(client_of(world), GROUP, OFFSETS, dry_run=True).keys() == OFFSETS.keys()
    assert world.zk.nodes == before


def test_other_offsets_stay_and_the_former_ones_are_returned() -> None:
    world = without_group()
    import_offsets(client_of(world), GROUP, {("t", 0): 1, ("t", 1): 2}, dry_run=False)
    changes = import_offsets(client_of(world), GROUP, OFFSETS, dry_run=False)
    assert changes == {("t", 0): Imported(1, 10), ("t", 2): Imported(None, 12)}
    assert in_zookeeper(client_of(world), GROUP) == {**OFFSETS, ("t", 1): 2}


def after_each_kill(run: Callable[..., object]) -> Iterator[World]:
    """Iterate over worlds in which an import was killed: before its first call, then after one, two, and so on."""
    for calls in range(MAX_CALLS):
        world = without_group()
        try:
            run(client_of(world, calls), GROUP, OFFSETS, dry_run=False)
        except KilledError:
            yield world
        else:
            assert calls > len(OFFSETS)
            return
    raise AssertionError("it never ends")


def test_an_import_that_is_killed_anywhere_can_be_repeated() -> None:
    """The member that begins afterwards is served, and continues at the imported offsets."""
    for world in after_each_kill(import_offsets):
        import_offsets(client_of(world), GROUP, OFFSETS, dry_run=False)
        world.add_agent("a")
        world.pass_time(100_000)
        world.assert_settled()
        assert in_zookeeper(client_of(world), GROUP) == OFFSETS


def test_an_import_for_old_consumers_that_is_killed_anywhere_can_be_repeated() -> None:
    """In `import_into_old_consumers`, create nodes first: old consumers fail at empty ones, and so does the import."""
    for world in after_each_kill(import_into_old_consumers):
        root = f"{paths.old_group(GROUP)}/offsets/t/"
        assert all(node.content for path, node in world.zk.nodes.items() if path.startswith(root))
        import_into_old_consumers(client_of(world), GROUP, OFFSETS, dry_run=False)
        assert of_old_consumers(client_of(world), GROUP) == OFFSETS


class Interrupted(Client):
    """Ctrl-C comes before the next transaction once so many offsets are written."""

    def __init__(self, world: World, written: int) -> None:
        super().__init__(world)
        self.written = written

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        if isinstance(call, Multi) and len(of_old_consumers(client_of(self.world), GROUP)) == self.written:
            raise KeyboardInterrupt
        return super().perform(call, expected)


@pytest.mark.parametrize("written", [0, 1])
def test_who_interrupts_an_import_for_old_consumers_is_told_whether_a_part_of_it_is_written(
    written: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In `import_into_old_consumers`, say nothing: the old consumers begin at offsets of which some are former ones."""
    monkeypatch.setattr(move_offsets, "MAX_WRITES_PER_TRANSACTION", 1)
    client = cast("BlockingZk", Interrupted(without_group(), written))
    with pytest.raises(KeyboardInterrupt):
        import_into_old_consumers(client, GROUP, OFFSETS, dry_run=False)
    assert ("cut off half-way: repeat this" in caplog.text) == (written > 0)


def test_what_a_killed_import_of_a_former_release_left_is_replaced() -> None:
    world = without_group()
    root = f"{paths.old_group(GROUP)}/offsets"
    world.zk.perform(Multi(tuple(Create(path) for path in (paths.old_group(GROUP), root, f"{root}/t", f"{root}/t/0"))))
    assert of_old_consumers(client_of(world), GROUP) == {}
    import_into_old_consumers(client_of(world), GROUP, OFFSETS, dry_run=False)
    assert of_old_consumers(client_of(world), GROUP) == OFFSETS


def test_a_group_with_members_and_what_does_not_exist_are_refused() -> None:
    world = world_with(partitions=3)
    world.add_agent("a")
    world.pass_time(1_000)
    with pytest.raises(OffsetsRefusedError, match="has consumers"):
        import_offsets(client_of(world), GROUP, OFFSETS, dry_run=True)
    for offsets, message in (({("t", 3): 1}, "topic t has no partition 3"), ({("u", 0): 1}, "topic u does not exist")):
        with pytest.raises(UnknownTopicError, match=message):
            import_offsets(client_of(world), GROUP, offsets, dry_run=False)


def test_the_tree_of_old_consumers_is_read_and_what_is_no_offset_is_named() -> None:
    world = without_group()
    root = f"{paths.CONSUMERS}/{GROUP}"
    for path, content in (
        ("", b""),
        ("/offsets", b""),
        ("/offsets/t", b""),
        ("/offsets/t/0", b"10"),
        ("/offsets/t/2", b" 12"),
    ):
        world.zk.perform(Multi((Create(root + path, content),)))
    assert of_old_consumers(client_of(world), GROUP) == OFFSETS
    assert of_old_consumers(client_of(world), "unknown") == {}
    for name, content in ((f"{root}/offsets/t/1", b"-1"), (f"{root}/offsets/t/one", b"1")):
        world.zk.perform(Multi((Create(name, content),)))
        with pytest.raises(OldOffsetsError, match=name):
            of_old_consumers(client_of(world), GROUP)
        world.zk.perform(Multi((Delete(name),)))


def old_offset(world: World, number: int) -> bytes | None:
    node = world.zk.perform(Get(f"{paths.CONSUMERS}/{GROUP}/offsets/t/{number}"))
    return node.content if isinstance(node, Content) else None


@pytest.mark.parametrize("name", sorted(paths.OWN))
def test_a_node_of_ours_is_no_group_of_old_consumers(name: str) -> None:
    """In `paths.old_group`, allow any name: with a node below that of the leader, no coordinator can lead any more."""
    world = without_group()
    world.kill_coordinator(world.leader())
    before = dict(world.zk.nodes)
    for call in (of_old_consumers, refuse_old_consumers):
        with pytest.raises(InvalidNameError, match=f"/consumers/{name} is no group"):
            call(client_of(world), name)
    with pytest.raises(InvalidNameError, match=f"/consumers/{name} is no group"):
        import_into_old_consumers(client_of(world), name, OFFSETS, dry_run=False)
    assert world.zk.nodes == before


def test_old_consumers_get_offsets_back_and_keep_others() -> None:
    """In `import_into_old_consumers`, write in spite of `dry_run`."""
    world = without_group()
    root = f"{paths.CONSUMERS}/{GROUP}"
    tree = [root, f"{root}/offsets", f"{root}/offsets/t"]
    nodes = [*map(Create, tree), Create(f"{root}/offsets/t/0", b"4"), Create(f"{root}/offsets/t/1", b"5")]
    world.zk.perform(Multi(tuple(nodes)))
    expected = {("t", 0): Imported(4, 10), ("t", 2): Imported(None, 12)}
    assert import_into_old_consumers(client_of(world), GROUP, OFFSETS, dry_run=True) == expected
    assert [old_offset(world, number) for number in range(3)] == [b"4", b"5", None]
    assert import_into_old_consumers(client_of(world), GROUP, OFFSETS, dry_run=False) == expected
    assert [old_offset(world, number) for number in range(3)] == [b"10", b"5", b"12"]


@pytest.mark.parametrize("path", [f"{paths.CONSUMERS}/{GROUP}/ids", paths.ids(GROUP)])
def test_offsets_that_somebody_still_changes_do_not_go_back(path: str) -> None:
    """Leave out `refuse_old_consumers` or `refuse_consumers`: both write the same offsets at the same time."""
    world = world_with()
    missing = [f"{paths.CONSUMERS}/{GROUP}", path] if path != paths.ids(GROUP) else []
    world.zk.perform(Multi((*map(Create, missing), Create(f"{path}/c-1"))))
    with pytest.raises(OldOffsetsError if missing else OffsetsRefusedError, match="c-1"):
        import_into_old_consumers(client_of(world), GROUP, OFFSETS, dry_run=True)


def test_many_offsets_go_back_in_several_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `import_into_old_consumers`, stop after the first transaction."""
    monkeypatch.setattr(move_offsets, "MAX_WRITES_PER_TRANSACTION", 1)
    world = without_group()
    import_into_old_consumers(client_of(world), GROUP, OFFSETS, dry_run=False)
    assert [old_offset(world, number) for number in range(3)] == [b"10", None, b"12"]


class Kafka:
    """Kafka's own offsets of the group."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {}

    def read(self) -> dict[TopicPartition, int]:
        return dict(self.offsets)

    def write(self, offsets: dict[TopicPartition, int], before_each_try: Callable[[], None] = lambda: None) -> None:
        before_each_try()
        self.offsets.update(offsets)


def move_away(world: World, to: str, *, dry_run: bool) -> dict[TopicPartition, Imported]:
    if to == "old":
        return import_into_old_consumers(client_of(world), GROUP, OFFSETS, dry_run)
    return import_into_kafka(client_of(world), cast("StoredInKafka", Kafka()), GROUP, OFFSETS, dry_run)


@pytest.mark.parametrize(("to", "what"), [("kafka", "into Kafka"), ("old", "for Kafka's old consumers")])
def test_the_leader_reports_who_moved_offsets_away(to: str, what: str) -> None:
    """Leave `name_author` out of the import; or name somebody with `dry_run`."""
    world = world_with(partitions=3)
    move_away(world, to, dry_run=True)
    world.pass_time(2_000)
    assert events(world, "operator_changed") == []
    move_away(world, to, dry_run=False)
    world.pass_time(2_000)
    (event,) = events(world, "operator_changed")
    assert event["what"] == f"imported offsets {what}"


@pytest.mark.parametrize("to", ["kafka", "old"])
def test_offsets_of_a_group_without_a_node_are_moved_without_one(to: str) -> None:
    world = without_group()
    assert move_away(world, to, dry_run=False) == {tp: Imported(None, offset) for tp, offset in OFFSETS.items()}
    assert paths.group(GROUP) not in world.zk.nodes


class Rival(Client):
    """Somebody else's change comes between each reading of the settings and the next write, `times` times."""

    times = 0

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        reply = super().perform(call, expected)
        if isinstance(call, Get) and call.path == paths.group(GROUP) and self.times:
            self.times -= 1
            self.world.zk.perform(
                Multi((SetContent(call.path, settings.encode(GroupSettings(max_rebalance_retries=7 + self.times))),))
            )
        return reply


@pytest.mark.parametrize("times", [1, 2])
def test_an_operator_is_named_in_settings_that_change_meanwhile(times: int) -> None:
    """In `name_author`, try once."""
    world = world_with(partitions=3)
    rival = Rival(world)
    rival.times = times
    import_into_old_consumers(cast("BlockingZk", rival), GROUP, OFFSETS, dry_run=False)
    world.pass_time(2_000)
    assert len(events(world, "operator_changed")) == 1


def test_sinks_follow_an_import_into_kafka_and_nobody_starts_meanwhile() -> None:
    """In `import_into_kafka`, leave out `begin_lives` or the pause: a region's sink goes on at its own offsets."""
    world = world_with(partitions=3)

    class Checking(Kafka):
        def write(self, offsets: dict[TopicPartition, int], before_each_try: Callable[[], None] = lambda: None) -> None:
            assert settings.decode(world.zk.nodes[paths.group(GROUP)].content).starts_paused
            assert paths.lives(GROUP, "t") not in world.zk.nodes, "sinks would follow what is not stored yet"
            super().write(offsets, before_each_try)

    kafka = Checking()
    import_into_kafka(client_of(world), cast("StoredInKafka", kafka), GROUP, OFFSETS, dry_run=False)
    assert kafka.offsets == OFFSETS
    assert offset_lives.decode(world.zk.nodes[paths.lives(GROUP, "t")].content).keys() == {0, 2}
    assert not settings.decode(world.zk.nodes[paths.group(GROUP)].content).starts_paused


@pytest.mark.parametrize("content", [None, b"no settings"])
def test_who_may_not_write_the_settings_moves_offsets_all_the_same(content: bytes | None) -> None:
    """In `name_author`, expect no refusal, and only settings: the command fails after the move."""
    world = world_with(partitions=3)
    if content is None:
        world.zk.identity = str
        world.zk.denied |= {("0", paths.group(GROUP), Right.WRITE)}
    else:
        world.zk.perform(Multi((SetContent(paths.group(GROUP), content),)))
    assert move_away(world, "old", dry_run=False)
    world.pass_time(2_000)
    assert events(world, "operator_changed") == []


def test_offsets_are_not_moved_without_one_that_cannot_be_read() -> None:
    """In `in_zookeeper`, leave it out: where it goes, its consumer would begin anywhere."""
    world = without_group()
    import_offsets(client_of(world), GROUP, OFFSETS, dry_run=False)
    world.zk.perform(Multi((SetContent(paths.offsets(GROUP, "t", 2), b"\xff"),)))
    with pytest.raises(UnreadableOffsetsError, match=r"1 stored offsets of group g .* t/2; `groups offsets import`"):
        in_zookeeper(client_of(world), GROUP)
    import_offsets(client_of(world), GROUP, OFFSETS, dry_run=False)
    assert in_zookeeper(client_of(world), GROUP) == OFFSETS
