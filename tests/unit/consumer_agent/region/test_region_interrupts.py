"""The handler of a signal raises at any point of a batch and its transaction: each result is stored once, as before."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, cast
from unittest import mock

import pytest
from psycopg.pq import TransactionStatus

from consumer_agent import Batch, Consumer
from consumer_agent.membership.events import Origin
from consumer_agent.region import ConsistentRegion, KafkaSink
from consumer_agent.region.postgres_sink import PostgresSink
from consumer_agent.runtime.notices import Tell
from tests.unit.consumer_agent.region.servers import Connection, Kafka, Postgres
from tests.unit.consumer_agent.runtime.interrupts import (
    COUNT,
    PARTITION,
    Setting,
    Signal,
    interrupted_at_each_point,
    uninterrupted,
)
from zkrebalancer.protocol.calls import Call, Done, Reply
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.region.roles import Phase
from zkrebalancer.region.states import RegionState

STRIDES = [pytest.param(1, marks=pytest.mark.long), 31]


class RegionSetting(Setting):
    """A setting whose consumer is in a region, with a sink in SQLite that allows the same result twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shared.origins[PARTITION] = Origin("id", 0)
        self.shared.tell(Tell.ASSIGNED, [PARTITION])
        self.waits = 0
        self.shared.changed.wait_for_change = self._wait  # type: ignore[method-assign, assignment]
        self.make_database()
        if self.is_announced:
            self.consumer.poll(0.0, max_records=0)

    is_announced = True

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
        uninterrupted(self.in_own_thread, self.fetcher_round)

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

    def lose(self, at: int = 0, /) -> None:
        """Lose the partition, which comes back in another generation, by default before what was processed."""
        self.shared.tell(Tell.LOST)
        self.shared.forget([PARTITION])
        self.shared.admit(PARTITION, 2, at)
        self.fetcher.change(lambda: {PARTITION: at})
        self.shared.tell(Tell.ASSIGNED, [PARTITION])

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
        self._patched(super().one_batch)

    def all_batches(self) -> None:
        self._patched(super().all_batches)

    def _patched(self, call: Callable[[], None]) -> None:
        patch = self.kafka.patched()
        try:
            uninterrupted(patch.__enter__)
            call()
        finally:
            uninterrupted(patch.__exit__, None, None, None)

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

    recovery = "partition"

    def made(self, **settings: Any) -> Consumer:
        self.stored: dict[TopicPartition, int | None] = {}
        self.restored: list[object] = []
        consumer = Consumer(**settings)
        self.region = ConsistentRegion(
            consumer,
            name="r",
            recovery=self.recovery,
            on_checkpoint=lambda checkpoint: self.stored.update(checkpoint.offsets or {}),
            on_reset=self.restored.append,
        )
        return consumer

    def next_batch(self) -> Batch:
        if not self.told_to_iterate:
            self.batches, self.told_to_iterate = iter(self.region), True
        for batch in self.batches:  # not `next`: what follows a call would be interrupted, too
            return batch
        raise AssertionError("it has ended")

    told_to_iterate = False

    def check(self) -> None:
        """See whether a checkpoint has all."""
        assert self.restored
        self.region.checkpoint()
        assert self.stored == {PARTITION: COUNT}


class NewStateSetting(StateSetting):
    """The same, whose first poll restores the state."""

    is_announced = False


class Order:
    """A session of a member of a region, whose calls are all done."""

    order, failure, ends, is_fresh, session_id, order_ms = mock.Mock(), None, 0, True, 1, 0
    is_closed = False

    def start(self) -> None: ...

    def perform(self, calls: Sequence[Call]) -> list[Reply]:
        return [Done((None,)) for _ in calls]

    def close(self) -> None:
        self.is_closed = True


class GroupSetting(StateSetting):
    """A region that recovers as a group, where records flow."""

    recovery, is_announced = "group", False

    def made(self, **settings: Any) -> Consumer:
        consumer = super().made(**settings)
        self.session = Order()
        rounds: Any = self.region._own
        rounds._session, rounds._seen, rounds._is_started = self.session, self.session.order, True
        rounds._phase, rounds._registered_in = Phase.FLOW, 0
        rounds.member.zxid, rounds.member.state = 5, RegionState.SUBSCRIBED
        self.rounds = rounds
        return consumer

    def check(self) -> None:
        self.rounds._may_flow()
        assert self.rounds._source.held() == {PARTITION: COUNT}
        assert self.consumer.finished() == {PARTITION: COUNT}


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("again_after", [0, 3, 20])
@pytest.mark.parametrize("kind", [StateSetting, NewStateSetting, GroupSetting])
def test_no_batch_counts_as_processed_that_the_application_did_not_get(
    kind: type[StateSetting], again_after: int, before: int, stride: int
) -> None:
    """Nor is one returned before the state of its partition was restored."""
    state: list[int] = []

    def prepare(setting: Any) -> None:
        state.clear()
        for _ in range(before):
            state.extend(record.offset for record in setting.next_batch())
            setting.in_own_thread(setting.fetcher_round)

    for setting, result, is_interrupted in interrupted_at_each_point(
        lambda one: one.next_batch(),  # type: ignore[attr-defined]
        prepare,
        again_after,
        kind=kind,
        stride=stride,
    ):
        assert isinstance(setting, StateSetting)
        state.extend(record.offset for record in cast("Batch | None", result) or ())
        setting.told_to_iterate = not is_interrupted  # its iterator has ended
        while len(state) < COUNT:
            setting.in_own_thread(setting.fetcher_round)
            state.extend(record.offset for record in setting.next_batch())
        assert state == list(range(COUNT))
        setting.check()


@pytest.mark.parametrize("stride", STRIDES)
def test_lost_partitions_reset_the_group_though_the_callback_was_interrupted(stride: int) -> None:
    def prepare(setting: Any) -> None:
        setting.next_batch()
        setting.shared.tell(Tell.LOST)
        setting.shared.forget([PARTITION])

    for setting, _, _ in interrupted_at_each_point(
        lambda one: one.consumer.poll(0.0, max_records=0), prepare, kind=GroupSetting, stride=stride
    ):
        assert isinstance(setting, GroupSetting)
        setting.consumer.poll(0.0, max_records=0)
        setting.rounds._source.catch_up()
        assert setting.rounds._source.has_lost
        assert setting.rounds._source.held() == {}


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("kind", [RegionSetting, StateSetting, GroupSetting])
def test_closing_a_region_again_ends_what_was_interrupted(kind: type[RegionSetting], stride: int) -> None:
    for setting, _, _ in interrupted_at_each_point(lambda one: one.region.close(), kind=kind, stride=stride):  # type: ignore[attr-defined]
        setting.region.close()  # type: ignore[attr-defined]
        assert setting.frontend._is_ended
        if isinstance(setting, GroupSetting):
            assert setting.session.is_closed


@pytest.mark.parametrize("stride", STRIDES)
@OF_EACH_SINK
def test_a_stop_by_a_signals_handler_ends_the_iteration_between_two_batches(
    kind: type[RegionSetting], stride: int
) -> None:
    at, ends = 1, set[int]()
    while True:
        setting = kind()
        signal = Signal(at, setting.region.stop)
        signal.during(setting.all_batches)
        assert not setting.has_open()
        count = len(setting.results())
        assert setting.results() == list(range(count))
        assert setting.consumer.finished().get(PARTITION, 0) == count
        setting.region.stop()
        assert not list(setting.region)
        setting.end()
        ends.add(count)
        if signal.points < at:
            break
        at += stride
    assert ends >= {5, 10, COUNT}
