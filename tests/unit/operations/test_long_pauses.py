"""A pause of starts that lasts long, or that coordinators cannot see."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import cast

import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP, World
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.operations.move_offsets import import_into_kafka, import_offsets
from zkrebalancer.operations.reset_offsets import reset_offsets
from zkrebalancer.operations.starts_pause import OffsetsRefusedError, starts_paused
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Create, Multi, Refusal, Reply
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.zk import BlockingZk

SLOW_MS = 40_000  # less than the coordinator's limit; two of them are more


@pytest.mark.parametrize("content", [b'{"version":2}', b'{"version":1,"mode":"nonsense"}', b"no JSON"])
def test_no_pause_begins_where_coordinators_could_not_read_it(content: bytes) -> None:
    """They keep the former settings. In `starts_paused`, do not look: a member starts in the middle of the block."""
    world = world_with(partitions=2)
    world.pass_time(1_000)
    world.configure(content)
    zk = cast("BlockingZk", ModelClient(world.zk))
    before = dict(world.zk.nodes)
    with (
        pytest.raises(OffsetsRefusedError, match=r"^/consumers/groups/g: .*correct it first$"),
        starts_paused(zk, GROUP, "reset offsets"),
    ):
        pytest.fail("the block ran")
    assert world.zk.nodes == before


@pytest.mark.parametrize("content", [None, b"no JSON"])
def test_the_end_of_a_pause_hides_no_error(content: bytes | None) -> None:
    """In `_resume`, raise what the settings say: nobody learns why the operation ended."""
    world = world_with(partitions=2)
    world.pass_time(1_000)
    zk = cast("BlockingZk", ModelClient(world.zk))
    with pytest.raises(ZeroDivisionError):
        _fail_in_a_pause(zk, world, content)


def _fail_in_a_pause(zk: BlockingZk, world: World, content: bytes | None) -> None:
    with starts_paused(zk, GROUP, "reset offsets"):
        if content is not None:
            world.configure(content)
        else:
            for path in [path for path in world.zk.nodes if (path + "/").startswith(paths.group(GROUP) + "/")]:
                del world.zk.nodes[path]
        raise ZeroDivisionError


class SlowKafka:
    """Answers after 40 s."""

    def __init__(self, world: World) -> None:
        self.world, self.written = world, dict[TopicPartition, int]()

    def read(self) -> dict[TopicPartition, int]:
        self.world.pass_time(SLOW_MS)
        return {("t", 0): 5}

    def write(self, offsets: Mapping[TopicPartition, int], before_each_try: Callable[[], None]) -> None:
        before_each_try()
        self.written = dict(offsets)


def test_a_pause_is_renewed_between_slow_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `reset_offsets._changes`, do not renew it: the reset always fails, however often it is repeated.

    In `Pause.renew`, take milliseconds for seconds.
    """
    world = world_with(partitions=2)
    world.pass_time(1_000)
    monkeypatch.setattr(clock, "steady_us", lambda: world.now_us)
    kafka = SlowKafka(world)

    def slow(asked: list[TopicPartition]) -> dict[TopicPartition, int]:
        world.pass_time(SLOW_MS)
        return dict.fromkeys(asked, 9)

    reset_offsets(
        cast("BlockingZk", ModelClient(world.zk)), GROUP, slow, dry_run=False, kafka=cast("StoredInKafka", kafka)
    )
    assert kafka.written == {("t", 0): 9}


class SuspendedKafka(SlowKafka):
    """The process is suspended just before a write, for longer than a pause may be silent."""

    def write(self, offsets: Mapping[TopicPartition, int], before_each_try: Callable[[], None]) -> None:
        self.world.pass_time(2 * SLOW_MS)
        super().write(offsets, before_each_try)


@pytest.mark.parametrize("imports", [True, False])
def test_a_process_that_was_suspended_writes_no_offsets_to_kafka(
    imports: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers may run by then. In `Pause.require_recent`, do nothing; or do not pass it on."""
    world = world_with(partitions=2)
    world.pass_time(1_000)
    kafka = SuspendedKafka(world)
    monkeypatch.setattr(clock, "steady_us", lambda: world.now_us)
    zk, store = cast("BlockingZk", ModelClient(world.zk)), cast("StoredInKafka", kafka)
    with pytest.raises(OffsetsRefusedError, match="was suspended: nothing more is written to Kafka"):
        _import_or_reset(zk, store, imports=imports)
    assert kafka.written == {}


class InterruptedKafka(SlowKafka):
    """Ctrl-C comes while Kafka is asked, which may store the offsets all the same."""

    def write(self, offsets: Mapping[TopicPartition, int], before_each_try: Callable[[], None]) -> None:
        super().write(offsets, before_each_try)
        raise KeyboardInterrupt


@pytest.mark.parametrize("imports", [True, False])
def test_who_interrupts_a_write_to_kafka_is_told_that_it_may_be_half_way(
    imports: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """In `starts_paused`, ask only what is written in ZooKeeper."""
    world = world_with(partitions=2)
    world.pass_time(1_000)
    zk, store = cast("BlockingZk", ModelClient(world.zk)), cast("StoredInKafka", InterruptedKafka(world))
    with pytest.raises(KeyboardInterrupt):
        _import_or_reset(zk, store, imports=imports)
    assert "cut off half-way: repeat this" in caplog.text


def _import_or_reset(zk: BlockingZk, store: StoredInKafka, *, imports: bool) -> None:
    if imports:
        import_into_kafka(zk, store, GROUP, {("t", 0): 9}, dry_run=False)
    else:
        reset_offsets(zk, GROUP, lambda asked: dict.fromkeys(asked, 9), dry_run=False, kafka=store)


class Waiting(ModelClient):
    """Counts how often it waits for ZooKeeper."""

    waits = 0

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        self.waits += 1
        return super().perform(call, expected)

    def perform_all(self, calls: list[Call], expected: Collection[Refusal] = ()) -> list[Reply]:
        replies = [super(Waiting, self).perform(call, expected) for call in calls]
        self.waits += 1
        return replies


def _waits(topics: int) -> int:
    world = world_with(partitions=2)
    for number in range(topics):
        world.set_topic(f"t{number}", 1, f"id-{number}")
    client = Waiting(world.zk)
    client.create(paths.offsets(GROUP, "t0"))
    world.zk.perform(Multi((Create(paths.offsets(GROUP, "t0", 0), b"1"),)))
    before = client.waits
    import_offsets(cast("BlockingZk", client), GROUP, {(f"t{number}", 0): 7 for number in range(topics)}, dry_run=False)
    return client.waits - before


def test_the_round_trips_of_an_import_do_not_grow_with_its_topics() -> None:
    """Over a slow link, they would take longer than a pause may last."""
    assert _waits(topics=2) == _waits(topics=20)


class Slow(ModelClient):
    """The reply to a transaction comes after 40 s, for example as the process was suspended."""

    def __init__(self, world: World) -> None:
        super().__init__(world.zk)
        self.world = world

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        reply = super().perform(call, expected)
        if isinstance(call, Multi):
            self.world.pass_time(SLOW_MS)
        return reply


def test_a_pause_counts_from_when_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Pause.write`, count from the reply: the pause may be over by then, and consumers may have committed."""
    world = world_with(partitions=2)
    world.pass_time(1_000)
    monkeypatch.setattr(clock, "steady_us", lambda: world.now_us)
    with (
        pytest.raises(OffsetsRefusedError, match="was suspended"),
        starts_paused(cast("BlockingZk", Slow(world)), GROUP, "reset offsets") as pause,
    ):
        pause.require_recent()
