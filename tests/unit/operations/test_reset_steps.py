"""A reset step by step: whom it refuses, what it writes where, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import cast

import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.observe.inspection import UnknownGroupError
from zkrebalancer.operations import audit, starts_pause
from zkrebalancer.operations.kafka_offsets import KafkaOffsetsError, StoredInKafka
from zkrebalancer.operations.reset_offsets import Change, reset_offsets
from zkrebalancer.operations.starts_pause import OffsetsRefusedError
from zkrebalancer.protocol import last_change, paths, settings
from zkrebalancer.protocol.calls import Call, Multi, Operation, Refusal, Reply, SetContent
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.runtime.zk import BlockingZk

PARTITIONS = 5


class Recording(ModelClient):
    """Keeps the sizes of the transactions: how many offsets each wrote."""

    def __init__(self) -> None:
        super().__init__(world_with(partitions=PARTITIONS).zk)
        for number in range(PARTITIONS):
            self.create(paths.offsets(GROUP, "t", number), b"5")
        self.performed: list[tuple[Operation, ...]] = []

    def offsets(self) -> list[int]:
        return [int(self.model.nodes[paths.offsets(GROUP, "t", number)].content) for number in range(PARTITIONS)]

    def is_paused(self) -> bool:
        return settings.decode(self.model.nodes[paths.group(GROUP)].content).starts_paused

    def writes(self) -> list[int]:
        """Return how many offsets were written by each transaction of the reset."""
        above = paths.lives(GROUP)
        of_offsets = [done for done in self.performed if not any(one.path.startswith(above) for one in done)]
        return [len(operations) - 1 for operations in of_offsets]

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        reply = super().perform(call, expected)
        if isinstance(call, Multi):
            self.performed.append(call.operations)
        return reply


class Kafka:
    """The offsets of a group in Kafka; checks, when it is written to, what stands in ZooKeeper by then."""

    def __init__(self, client: Recording, stored: dict[TopicPartition, int], *, fails: bool = False) -> None:
        self.client, self.stored, self.fails = client, stored, fails

    def read(self) -> dict[TopicPartition, int]:
        return dict(self.stored)

    def write(self, offsets: Mapping[TopicPartition, int], before_each_try: Callable[[], None]) -> None:
        assert self.client.is_paused()
        assert self.client.offsets() == [9] * PARTITIONS, "Kafka's offsets are written last"
        before_each_try()
        if self.fails:
            raise KafkaOffsetsError("no answer")
        self.stored |= offsets


def reset(client: ModelClient, kafka: Kafka | None = None, *, dry_run: bool = False) -> dict[TopicPartition, Change]:
    return reset_offsets(
        cast("BlockingZk", client),
        GROUP,
        lambda partitions: dict.fromkeys(partitions, 9),
        dry_run=dry_run,
        kafka=cast("StoredInKafka | None", kafka),
    )


@pytest.mark.parametrize(
    ("at_once", "sizes"), [(2, [0, 2, 2, 1, 0]), (5, [0, 5, 0]), (6, [0, 5, 0]), (1, [0, 1, 1, 1, 1, 1, 0])]
)
def test_offsets_are_written_few_by_few_until_all_are(
    monkeypatch: pytest.MonkeyPatch, at_once: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(starts_pause, "MAX_WRITES_PER_TRANSACTION", at_once)
    client = Recording()

    changes = reset(client)

    assert client.writes() == sizes  # paused first, resumed last
    assert client.offsets() == [9] * PARTITIONS
    assert not client.is_paused()
    assert changes == {("t", number): Change(5, None, 9) for number in range(PARTITIONS)}
    assert list(changes) == sorted(changes)


def test_a_transaction_stays_within_the_request_limit() -> None:
    client = Recording()
    # A renewal names who resets, and on which host.
    named = len(last_change.noted(b"", audit.change("reset offsets"), 1))
    limit = client.request_limit = RequestLimit(680 + named)

    reset(client)

    assert all(limit.fits(operations) for operations in client.performed)
    assert client.offsets() == [9] * PARTITIONS
    assert max(client.writes()) < PARTITIONS


def test_each_renewal_names_another_pause() -> None:
    client = Recording()
    reset(client)
    contents = [one.content for one, *_rest in client.performed[:-1] if isinstance(one, SetContent)]
    names = [settings.decode(content).paused_by for content in contents]
    assert len(set(names)) == len(names) > 1
    assert len({name.partition("/")[0] for name in names}) == 1


def test_a_dry_run_tells_the_changes_and_writes_nothing() -> None:
    client = Recording()
    kafka = Kafka(client, {("t", 1): 7, ("u", 0): 3})

    changes = reset(client, kafka, dry_run=True)

    assert changes[("t", 0)] == Change(5, None, 9)
    assert changes[("t", 1)] == Change(5, 7, 9)
    assert changes[("u", 0)] == Change(None, 3, 9)
    assert client.performed == []
    assert kafka.stored == {("t", 1): 7, ("u", 0): 3}


def test_each_store_gets_only_what_it_had() -> None:
    client = Recording()
    kafka = Kafka(client, {("t", 1): 7, ("u", 0): 3})

    reset(client, kafka)

    assert kafka.stored == {("t", 1): 9, ("u", 0): 9}
    assert paths.offsets(GROUP, "u", 0) not in client.model.nodes


def test_a_kafka_without_offsets_is_not_written_to() -> None:
    client = Recording()
    kafka = Kafka(client, {}, fails=True)

    reset(client, kafka)

    assert kafka.stored == {}


def test_what_comes_in_between_while_kafka_writes_is_told() -> None:
    """In `reset_offsets`, do not look at the pause again. Another reset may have ended by then."""
    client = Recording()

    class Slow(Kafka):
        def write(self, offsets: Mapping[TopicPartition, int], before_each_try: Callable[[], None]) -> None:
            super().write(offsets, before_each_try)
            reset(client)

    with pytest.raises(OffsetsRefusedError, match="changed while its offsets were written"):
        reset(client, Slow(client, {("t", 0): 1}))
    assert not client.is_paused()


def test_starts_are_resumed_although_kafka_refuses() -> None:
    client = Recording()
    with pytest.raises(KafkaOffsetsError):
        reset(client, Kafka(client, {("t", 0): 1}, fails=True))
    assert not client.is_paused()


@pytest.mark.parametrize(("folder", "what"), [(paths.ids, ""), (paths.owners, ""), (paths.evicted, "evicted ")])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_group_with_a_trace_of_a_consumer_is_refused(
    folder: Callable[[str], str], what: str, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts_pause, "CLEANUP_TIMEOUT_S", 0)
    client = Recording()

    def register() -> None:
        for number in range(5):
            client.create(f"{folder(GROUP)}/c-{number}")

    if is_late:
        client.meanwhile = register  # after the first look, before starts are paused
    else:
        register()

    with pytest.raises(OffsetsRefusedError, match=rf"^group g has {what}consumers \(c-0, c-1, c-2\)"):
        reset(client)

    assert client.offsets() == [5] * PARTITIONS
    assert not client.is_paused()


def test_a_group_that_does_not_exist_is_not_reset() -> None:
    with pytest.raises(UnknownGroupError):
        reset(ModelClient())


def test_who_reset_is_in_the_settings_afterwards() -> None:
    """In `starts_pause._resume`, name nobody: the last version of the settings is that of the end of the pause."""
    client = Recording()
    reset(client)
    node = client.model.nodes[paths.group(GROUP)]
    named = last_change.read(node.content, node.version)
    assert named is not None
    assert named.what == "reset offsets"


class Interrupted(Recording):
    """Ctrl-C comes once so many transactions are done."""

    def __init__(self, done: int) -> None:
        super().__init__()
        self.done = done

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        if isinstance(call, Multi) and len(self.performed) == self.done:
            self.done = -1  # not in the clean-up, too
            raise KeyboardInterrupt
        return super().perform(call, expected)


@pytest.mark.parametrize("done", [1, 2, 3])
def test_who_interrupts_a_reset_is_told_whether_a_part_of_it_is_written(
    done: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Consumers would start at offsets of which some are the former ones."""
    monkeypatch.setattr(starts_pause, "MAX_WRITES_PER_TRANSACTION", 2)
    client = Interrupted(done)
    with pytest.raises(KeyboardInterrupt):
        reset(client)
    assert client.offsets().count(9) == 2 * (done - 1)
    assert ("cut off half-way: repeat this" in caplog.text) == (done > 1)
    assert not client.is_paused()
