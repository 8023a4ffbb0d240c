"""A region tells its sink which partitions it still has: a consumer may own thousands in a year, a few at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from consumer_agent.errors import ConsumerStateError
from consumer_agent.membership.events import Origin
from consumer_agent.region import KafkaSink, kafka_sink
from consumer_agent.region.consistent_region import ConsistentRegion
from consumer_agent.region.kafka_sink import Lane
from consumer_agent.region.sink import Advance, Claim, Row
from consumer_agent.region.sqlite_sink import SqliteSink
from tests.unit.consumer_agent.runtime.interrupts import PARTITION, Setting
from zkrebalancer.protocol.fields import TopicPartition

GONE: TopicPartition = ("gone", 0)


class Recording:
    """A sink that has everything it is asked for, and notes what it is told to keep."""

    connection = None

    def __init__(self) -> None:
        self.kept: list[set[TopicPartition]] = []

    def claim(self, _group: str, claims: Sequence[Claim], /) -> dict[TopicPartition, int]:
        return {claim.partition: claim.offset for claim in claims}

    def begin(self, _group: str, _advances: Mapping[TopicPartition, Advance], /) -> set[TopicPartition]:
        return set()

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def keep(self, partitions: Collection[TopicPartition], /) -> None:
        self.kept.append(set(partitions))


def test_a_region_names_the_partitions_that_it_has() -> None:
    setting, sink = Setting(), Recording()
    with mock.patch.object(setting.consumer, "_join_region"):
        region = ConsistentRegion(setting.consumer, name="r")
    setting.shared.origins.update({GONE: Origin("a", 0), PARTITION: Origin("b", 0)})
    region._claim(sink, {GONE: 1}, {GONE: 0})
    assert not region._claim(sink, {PARTITION: 1}, {PARTITION: 0})
    assert sink.kept == [{GONE, PARTITION}, {PARTITION}]
    assert region._progress.claimed.keys() == {PARTITION}


def test_a_sink_in_kafka_ends_the_producers_of_other_partitions() -> None:
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1"})
    row = Row("", 0, 1, 0)
    sink._lanes = {("t", number): Lane(mock.Mock(), row, is_open=number == 1) for number in range(3)}
    sink.keep([("t", 0)])
    assert sink._lanes.keys() == {("t", 0), ("t", 1)}  # the latter is in an open transaction
    sink.close()


def test_no_two_partitions_of_groups_share_a_transactional_id() -> None:
    """As it was: of groups and topics whose names have dots, one's producers ended the other's."""
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1"})
    with mock.patch.object(kafka_sink, "Producer") as producer:
        for group, topic in (("a", "b.c"), ("a.b", "c")):
            sink._new_producer(group, Claim((topic, 0), 1, "", 0, 0))
    ids = {call.args[0]["transactional.id"] for call in producer.call_args_list}
    assert len(ids) == 2
    assert all(one.startswith("zkrebalancer-region.") for one in ids)  # the right that the documentation names
    sink.close()


def test_after_a_fork_a_sink_in_kafka_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for ever: its threads are missing there."""
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1"})
    monkeypatch.setattr(sink, "_process", -1)
    with pytest.raises(ConsumerStateError, match="belongs to the process before the fork"):
        sink.claim("g", [])
    monkeypatch.undo()
    sink.close()


@pytest.mark.parametrize("factory", [bytes, bytearray, str])
def test_a_sink_in_sqlite_knows_its_progress_whatever_the_connection_makes_of_texts(factory: type) -> None:
    """As it was: the progress was taken for that of another topic, and results were stored twice."""
    database = sqlite3.connect(":memory:")
    database.text_factory = factory
    sink, claim = SqliteSink(database), Claim(("t", 0), 1, "identity", 0, 10)
    assert sink.claim("g", [claim]) == {("t", 0): 10}
    assert sink.begin("g", {("t", 0): Advance(10, 15, 1)}) == set()
    sink.commit()
    assert sink.claim("g", [claim]) == {("t", 0): 15}
    database.close()


def test_a_commit_in_sqlite_that_a_reader_makes_fail_locks_nobody_out(tmp_path: Path) -> None:
    """In `SqliteSink.commit`, only raise: the transaction stays open, and all other writers wait in vain."""
    database, other = (sqlite3.connect(tmp_path / "sink", timeout=0, isolation_level=None) for _ in range(2))
    sink, claim = SqliteSink(database), Claim(("t", 0), 1, "identity", 0, 10)
    assert sink.claim("g", [claim]) == {("t", 0): 10}
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM sqlite_master").fetchone()
    sink.begin("g", {("t", 0): Advance(10, 15, 1)})
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sink.commit()
    other.execute("COMMIT")
    assert not database.in_transaction
    assert SqliteSink(other).claim("g", [replace(claim, generation=2)]) == {("t", 0): 10}
    database.close()
    other.close()
