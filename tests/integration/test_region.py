"""A consistent region with a sink; the test plays the coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from consumer_agent import Batch, ConfigurationError, Consumer, ConsumerStateError
from consumer_agent.region import ConsistentRegion
from consumer_agent.region.sink import Row
from tests.integration.fake_coordinator import SESSION_TIMEOUT_MS, Stage
from tests.support.memory_sink import MemorySink
from tests.support.waiting import wait_until
from zkrebalancer.protocol import offset_lives, paths
from zkrebalancer.protocol.calls import Create, Multi

RECORDS = 20
EVERY_S = 0.05
MARK = b"id-1 czxid-7"


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()


@pytest.fixture
def consumer(stage: Stage) -> Iterator[Consumer]:
    with new_consumer(stage) as consumer:
        yield consumer


def new_consumer(stage: Stage, **settings: Any) -> Consumer:
    servers: dict[str, Any] = {"zookeeper": stage.cluster.zookeeper, "bootstrap": stage.cluster.bootstrap}
    consumer = Consumer(**servers, group=stage.group, session_timeout_ms=SESSION_TIMEOUT_MS, **settings)
    consumer.subscribe([stage.topic])
    return consumer


def joined(stage: Stage, consumer: Consumer, *partitions: int) -> ConsistentRegion:
    """Make a region of the consumer, poll until it is registered, and give it partitions."""
    region = ConsistentRegion(consumer, name="billing", every_s=EVERY_S)
    consumer.poll(0)
    stage.wait_ack(stage.start(stage.wait_member(), *partitions))
    return region


def rows(batch: Batch) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in batch]


def read(region: ConsistentRegion, sink: MemorySink, count: int, batches: Iterable[Batch] | None = None) -> None:
    """Store batches until the sink has so many results."""
    for batch in region if batches is None else batches:
        with region.transaction(sink) as transaction:
            transaction.extend(rows(batch))
        if len(sink.results) >= count:
            return


def all_records(*partitions: int, first: int = 0) -> set[tuple[int, int]]:
    return {(partition, offset) for partition in partitions for offset in range(first, RECORDS)}


def assert_once(results: Iterable[object], wanted: set[tuple[int, int]]) -> None:
    assert sorted(results) == sorted(wanted)  # type: ignore[type-var]  # tuples


def test_results_and_offsets_are_stored_and_the_groups_offsets_follow(
    stage: Stage, consumer: Consumer, sink: MemorySink
) -> None:
    stage.produce(range(2), RECORDS)
    region = joined(stage, consumer, 0, 1)
    read(region, sink, 2 * RECORDS)
    assert_once(sink.results, all_records(0, 1))
    assert {tp[1]: row.next_offset for tp, row in sink.rows.items()} == {0: RECORDS, 1: RECORDS}
    wait_until(lambda: not consumer.poll(0.01) and stage.offset(0) == stage.offset(1) == RECORDS, "the offsets")


def test_reading_continues_at_the_sinks_offset(stage: Stage, consumer: Consumer, sink: MemorySink) -> None:
    """The first transaction is rolled back: it shows that a crash has lost the last commits of the group's offsets."""
    stage.produce(range(2), RECORDS)
    sink.rows[stage.topic, 0] = Row("", 0, 0, 7)
    read(joined(stage, consumer, 0, 1), sink, 2 * RECORDS - 7)
    assert_once(sink.results, all_records(0, first=7) | all_records(1))


def test_partitions_that_are_assigned_later_are_claimed_before_they_are_read(
    stage: Stage, consumer: Consumer, sink: MemorySink
) -> None:
    stage.produce(range(2), RECORDS)
    region = joined(stage, consumer, 0)
    read(region, sink, RECORDS)
    sink.rows[stage.topic, 1] = Row("", 0, 0, 7)
    stage.start(stage.members()[0], 1)
    first = next(batch for batch in region if batch)
    assert rows(first)[0] == (1, 7)


def test_partitions_whose_claim_fails_when_they_are_assigned_are_claimed_by_the_next_transaction(
    stage: Stage, consumer: Consumer, sink: MemorySink
) -> None:
    stage.produce(range(2), RECORDS)
    region = joined(stage, consumer, 0)
    read(region, sink, RECORDS)
    sink.rows[stage.topic, 1] = Row("", 0, 0, 7)
    sink.fails_at = "claim"
    stage.start(stage.members()[0], 1)
    with pytest.raises(ConnectionError):
        read(region, sink, 2 * RECORDS - 7)
    read(region, sink, 2 * RECORDS - 7)
    assert_once(sink.results, all_records(0) | all_records(1, first=7))


def test_a_younger_claim_refuses_the_batch_and_leaves_the_others(
    stage: Stage, consumer: Consumer, sink: MemorySink, caplog: pytest.LogCaptureFixture
) -> None:
    """As for a consumer that was suspended while others processed its records."""
    stage.produce(range(2), RECORDS)
    region = joined(stage, consumer, 0, 1)
    read(region, sink, 2 * RECORDS)
    sink.rows[stage.topic, 0] = replace(sink.rows[stage.topic, 0], generation=1_000)
    stage.produce(range(2), 5)
    for batch in region:
        with region.transaction(sink) as transaction:
            transaction.extend(rows(batch))
        if sink.rows[stage.topic, 1].next_offset == RECORDS + 5 and consumer.paused() == [(stage.topic, 0)]:
            break
    assert_once(sink.results, all_records(0, 1) | {(1, offset) for offset in range(RECORDS, RECORDS + 5)})
    assert "a younger consumer has claimed it in the sink" in caplog.text


@pytest.mark.parametrize("where", ["body", "claim", "begin", "commit", "committed"])
def test_what_fails_is_stored_once_all_the_same(stage: Stage, consumer: Consumer, sink: MemorySink, where: str) -> None:
    """After `committed` the transaction is stored, though the consumer cannot know."""
    stage.produce([0], RECORDS)
    region = joined(stage, consumer, 0)
    sink.fails_at = where
    failures = 0
    for batch in region:
        try:
            with region.transaction(sink) as transaction:
                transaction.extend(rows(batch))
                if where == "body" and not failures:
                    raise ConnectionError("of the application")
        except ConnectionError:
            failures += 1
        if len(sink.results) >= RECORDS:
            break
    assert failures == 1
    if where == "committed":
        stage.produce([0], 1)
        read(region, sink, RECORDS + 1)
    assert_once(sink.results, {(0, offset) for offset in range(stage.produced[0])})


def test_a_batch_without_a_transaction_is_stored_by_the_next_one(
    stage: Stage, consumer: Consumer, sink: MemorySink
) -> None:
    stage.produce([0], RECORDS)
    region = joined(stage, consumer, 0, 1)
    batches = iter(region)
    assert rows(next(batches)) != []
    wait_until(lambda: not consumer.poll(0.01), "the rest")
    stage.produce([1], 1)
    read(region, sink, 1, batches)
    assert sink.results == [(1, 0)]
    assert sink.rows[stage.topic, 0].next_offset > 0


def test_a_batch_that_was_left_before_its_transaction_is_returned_again(
    stage: Stage, consumer: Consumer, sink: MemorySink
) -> None:
    """An exception in the loop, that the application survives, must not cost results; it ends the loop as this does."""
    stage.produce([0], RECORDS)
    region = joined(stage, consumer, 0)
    for batch in region:
        assert rows(batch) != []
        break
    read(region, sink, RECORDS)
    assert_once(sink.results, all_records(0))


def test_a_claim_names_the_incarnation_of_the_topic_and_the_life_of_its_offset(
    stage: Stage, consumer: Consumer, sink: MemorySink
) -> None:
    stage.produce([0], 1)
    region = ConsistentRegion(consumer, name="billing", every_s=EVERY_S)
    consumer.poll(0)
    member = stage.wait_member()
    lives = Create(paths.lives(stage.group)), Create(paths.lives(stage.group, stage.topic), offset_lives.encode({0: 4}))
    stage.zk.perform(Multi((Create(paths.offsets(stage.group, stage.topic), MARK), *lives)))
    stage.wait_ack(stage.start(member, 0))
    read(region, sink, 1)
    assert [(claim.identity, claim.life) for claim in sink.claims] == [(MARK.decode(), 4)]


def test_misuse_is_refused_at_once(stage: Stage, consumer: Consumer, sink: MemorySink) -> None:
    with pytest.raises(ConfigurationError, match="every_s must be a number of seconds"):
        ConsistentRegion(consumer, name="billing", every_s=0)
    region = joined(stage, consumer, 0)
    with pytest.raises(ConsumerStateError, match="is in no region"):
        ConsistentRegion(consumer, name="billing")
    with pytest.raises(ConsumerStateError, match="there is no batch"):
        region.transaction(sink)
    stage.produce([0], 1)
    for _batch in region:
        with pytest.raises(ConfigurationError, match=r"a Sink is needed, not builtins\.int"):
            region.transaction(3)
        with region.transaction(sink):
            pass
        with pytest.raises(ConsumerStateError, match="use it once for each"):
            region.transaction(sink)
        region.close()
