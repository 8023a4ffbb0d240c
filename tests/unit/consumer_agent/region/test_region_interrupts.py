"""The handler of a signal raises at any point of a batch and its transaction: each result is stored once, as before."""

from __future__ import annotations

import sqlite3
from typing import Any, cast

import pytest
from psycopg.pq import TransactionStatus

from consumer_agent import Batch, Consumer
from consumer_agent.membership.events import Origin
from consumer_agent.region import ConsistentRegion, KafkaSink
from consumer_agent.region.postgres_sink import PostgresSink
from consumer_agent.runtime.notices import Tell
from tests.unit.consumer_agent.region.servers import Connection, Kafka, Postgres
from tests.unit.consumer_agent.runtime.interrupts import COUNT, PARTITION, Setting, interrupted_at_each_point
from zkrebalancer.protocol.fields import TopicPartition

STRIDES = [pytest.param(1, marks=pytest.mark.long), 31]


class RegionSetting(Setting):
    """A setting whose consumer is in a region, with a sink in SQLite that allows the same result twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shared.origins[PARTITION] = Origin("id", 0)
        self.shared.tell(Tell.ASSIGNED, [PARTITION])
        self.consumer.poll(0.0, max_records=0)
        self.waits = 0
        self.shared.changed.wait_for_change = self._wait  # type: ignore[method-assign, assignment]
        self.make_database()

    def make_database(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE results (number INTEGER)")

    def sink(self) -> Any:
        """Return what an application passes to `transaction`."""
        return self.database

    def write(self, database: Any, batch: Batch) -> None:
        database.executemany("INSERT INTO results VALUES (?)", [(record.offset,) for record in batch])

    def results(self) -> list[int]:
        return [number for (number,) in self.database.execute("SELECT number FROM results ORDER BY rowid")]

    def has_open(self) -> bool:
        """Whether a transaction is open."""
        return self.database.in_transaction

    def end(self) -> None:
        self.database.close()

    def _wait(self, _changes: int, _timeout_s: float | None) -> None:
        self.waits += 1
        assert self.waits < COUNT, "it waits, and no record comes"
        self.in_own_thread(self.fetcher_round)

    def made(self, **settings: Any) -> Consumer:
        consumer = Consumer(**settings)
        self.region = ConsistentRegion(consumer, name="r")
        return consumer

    def one_batch(self) -> None:
        for batch in self.region:
            with self.region.transaction(self.sink()) as database:
                self.write(database, batch)
            return

    def all_batches(self) -> None:
        for batch in self.region:
            with self.region.transaction(self.sink()) as database:
                self.write(database, batch)
            if batch[-1].offset == COUNT - 1:
                return

    def rest(self) -> list[int]:
        """Process the rest; return all results."""
        for _ in range(COUNT):
            self.in_own_thread(self.fetcher_round)
            if self.consumer.finished() == {PARTITION: COUNT}:
                break
            self.one_batch()
        return self.results()


class PostgresSetting(RegionSetting):
    """A region whose sink is in PostgreSQL; a new connection takes the place of one that was closed."""

    def make_database(self) -> None:
        self.server = Postgres()
        self.connection, self.postgres_sink = Connection(self.server), None

    postgres_sink: PostgresSink | None

    def sink(self) -> Any:
        if self.connection.closed or self.postgres_sink is None:
            if self.connection.closed or self.has_open():
                self.connection = Connection(self.server)
            self.postgres_sink = PostgresSink(cast("Any", self.connection))
        return self.postgres_sink

    def write(self, database: Any, batch: Batch) -> None:
        database.executemany("INSERT", [(record.offset,) for record in batch])

    def results(self) -> list[int]:
        return self.server.tables.results

    def has_open(self) -> bool:
        return self.connection.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.ACTIVE}

    def end(self) -> None: ...


class KafkaSetting(RegionSetting):
    """A region whose sink is in Kafka."""

    def make_database(self) -> None:
        self.kafka = Kafka()
        with self.kafka.patched():
            self.kafka_sink = KafkaSink({})

    def one_batch(self) -> None:
        with self.kafka.patched():
            super().one_batch()

    def sink(self) -> Any:
        return self.kafka_sink

    def write(self, database: Any, batch: Batch) -> None:
        for record in batch:
            database.produce(record, "results", str(record.offset).encode())

    def results(self) -> list[int]:
        return self.kafka.results

    def has_open(self) -> bool:
        return self.kafka.has_open

    def end(self) -> None:
        self.kafka_sink.close()
        assert not self.kafka.has_open


OF_EACH_SINK = pytest.mark.parametrize("kind", [RegionSetting, PostgresSetting, KafkaSetting])
IGNORES_DROPPED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a deallocation


@IGNORES_DROPPED
@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("again_after", [0, 3, 20])
@OF_EACH_SINK
def test_no_result_is_lost_or_doubled_by_an_interrupt(
    kind: type[RegionSetting], again_after: int, before: int, stride: int
) -> None:
    """Nor by a second one, while it cleans up; the next call, or `close`, leaves no transaction open."""

    def prepare(setting: Any) -> None:
        for _ in range(before):
            setting.one_batch()
            setting.in_own_thread(setting.fetcher_round)

    for number, (setting, _, _) in enumerate(
        interrupted_at_each_point(
            lambda one: one.one_batch(),  # type: ignore[attr-defined]
            prepare,
            again_after,
            kind=kind,
            stride=stride,
        )
    ):
        assert isinstance(setting, RegionSetting)
        if number % 2:
            setting.region.close()
            assert not setting.has_open()
            stored = setting.results()
            assert stored in [list(range(count)) for count in (0, 5, 10)]
        else:
            assert setting.rest() == list(range(COUNT))
            assert setting.consumer.paused() == []
            assert not setting.has_open()
        setting.end()


class StateSetting(RegionSetting):
    """A region whose application keeps a state for each partition."""

    def made(self, **settings: Any) -> Consumer:
        self.stored: dict[TopicPartition, int | None] = {}
        consumer = Consumer(**settings)
        self.region = ConsistentRegion(
            consumer,
            name="r",
            recovery="partition",
            on_checkpoint=lambda checkpoint: self.stored.update(checkpoint.offsets or {}),
            on_reset=lambda _checkpoint: None,
        )
        return consumer

    def next_batch(self) -> Batch:
        if not self.told_to_iterate:
            self.batches, self.told_to_iterate = iter(self.region), True
        for batch in self.batches:  # not `next`: what follows a call would be interrupted, too
            return batch
        raise AssertionError("it has ended")

    told_to_iterate = False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as above
@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("before", [0, 1])
def test_no_batch_counts_as_processed_that_the_application_did_not_get(before: int, stride: int) -> None:
    state: list[int] = []

    def prepare(setting: Any) -> None:
        state.clear()
        for _ in range(before):
            state.extend(record.offset for record in setting.next_batch())
            setting.in_own_thread(setting.fetcher_round)

    for setting, result, is_interrupted in interrupted_at_each_point(
        lambda one: one.next_batch(),  # type: ignore[attr-defined]
        prepare,
        kind=StateSetting,
        stride=stride,
    ):
        assert isinstance(setting, StateSetting)
        state.extend(record.offset for record in cast("Batch | None", result) or ())
        setting.told_to_iterate = not is_interrupted  # its iterator has ended
        while len(state) < COUNT:
            setting.in_own_thread(setting.fetcher_round)
            state.extend(record.offset for record in setting.next_batch())
        assert state == list(range(COUNT))
        setting.region.checkpoint()
        assert setting.stored == {PARTITION: COUNT}
