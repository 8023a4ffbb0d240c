"""A consumer that stores offsets in ZooKeeper and in Kafka is killed between any two of its writes.

The next owner begins at the higher offset of each partition, and its first commit makes both stores equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from consumer_agent.membership import offset_books
from consumer_agent.membership.effects import CommitToKafka, Effect, ReadKafkaOffsets, StartFetching
from consumer_agent.membership.events import CommitRequested, KafkaCommitted, KafkaOffsetsRead, Position
from consumer_agent.membership.offset_books import Storage
from tests.unit.consumer_agent.membership.driver import GROUP, T0, T1, Driver, content, of_type, offset_path
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Done, Get, Refusal, Refused, SetContent
from zkrebalancer.protocol.fields import TopicPartition

MARK = Get(paths.offsets(GROUP, "t"))
TEXT = "zkrebalancer:id-1 czxid-5"
BEFORE = {T0: 10, T1: 20}
AFTER = {T0: 12, T1: 25}
STEPS = 5  # the check, Kafka, one transaction for each partition, and one more that does not happen


@dataclass(slots=True)
class Stores:
    """The offsets in both stores."""

    zookeeper: dict[TopicPartition, int] = field(default_factory=BEFORE.copy)
    kafka: dict[TopicPartition, int] = field(default_factory=BEFORE.copy)


def owner_of(stores: Stores) -> tuple[Driver, dict[TopicPartition, int]]:
    """Return a consumer that was given both partitions, and where it begins."""
    driver = Driver(storage=Storage.DUAL)
    driver.register()
    effects = driver.send_start((T0, T1))
    driver.answer(MARK, content(b"id-1 czxid-5"))
    for partition in (T0, T1):
        stored = stores.zookeeper.get(partition)
        read = Refused(Refusal.NO_NODE) if stored is None else content(b"%d" % stored)
        driver.answer(Get(offset_path(partition)), read)
    (asked,) = of_type(effects, ReadKafkaOffsets)
    driver.step(KafkaOffsetsRead(asked.token, {tp: (offset, TEXT) for tp, offset in stores.kafka.items()}))
    (started,) = of_type(driver.answer_write(Done((1, None))), StartFetching)
    return driver, dict(started.positions)


def commit(driver: Driver, stores: Stores, offsets: dict[TopicPartition, int], steps: int) -> int:
    """Commit, and perform as many steps before the process is killed; return how many there were."""
    positions = {tp: Position(offset, offset) for tp, offset in offsets.items()}
    effects: list[Effect] = driver.progress(driver.step(CommitRequested(99)), positions)
    for step in range(steps):
        to_kafka = of_type(effects, CommitToKafka)
        writes = driver.writes()
        if to_kafka:
            stores.kafka.update({tp: offset for tp, (offset, _text) in to_kafka[0].offsets.items()})
            effects = driver.step(KafkaCommitted(to_kafka[0].token, {}))
        elif writes:
            for operation in writes[0].operations:
                if isinstance(operation, SetContent | Create):
                    number = int(operation.path.rpartition("/")[2])
                    stores.zookeeper["t", number] = int(operation.content)
            effects = driver.answer_write(Done(tuple(None for _ in writes[0].operations)))
        else:
            return step
    return steps


@pytest.mark.parametrize("steps", range(STEPS + 1))
@pytest.mark.parametrize("missing", [(), (T1,)])
def test_the_next_owner_begins_at_the_higher_offsets_and_makes_both_stores_equal(
    monkeypatch: pytest.MonkeyPatch, steps: int, missing: tuple[TopicPartition, ...]
) -> None:
    """In `WriteLane._go_on`, write to ZooKeeper first; in `OffsetBook.changed`, believe what Kafka has."""
    monkeypatch.setattr(offset_books, "MAX_OPERATIONS", 1)
    stores = Stores()
    for partition in missing:
        del stores.zookeeper[partition]
    killed, begun = owner_of(stores)
    assert begun == BEFORE
    done = commit(killed, stores, AFTER, steps)
    assert (done < steps) == (steps == STEPS)
    assert stores.kafka == (AFTER if steps >= 2 else BEFORE)
    assert all(stores.zookeeper.get(tp, 0) <= stores.kafka[tp] for tp in AFTER), "ZooKeeper is ahead"

    successor, begun = owner_of(stores)

    assert begun == stores.kafka
    commit(successor, stores, begun, STEPS)
    assert stores.zookeeper == stores.kafka == begun
