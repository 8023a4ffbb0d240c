"""The sinks of workers: what is to be proved, with steps, and controls with a mistake each."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from consumer_agent.region import Advance, Claim, KafkaSink, Sink
from consumer_agent.region.kafka_sink import TIMEOUT_S
from tests.exactly_once.fates import Fates
from zkrebalancer.protocol.fields import TopicPartition


class Stepping:
    """A sink whose calls are steps."""

    def __init__(self, sink: Sink, fates: Fates) -> None:
        self._sink, self._fates = sink, fates

    @property
    def connection(self) -> Any:
        return self._sink.connection

    def claim(self, group: str, claims: Sequence[Claim], /) -> dict[TopicPartition, int]:
        self._fates.reach("claim")
        answer = self._sink.claim(group, claims)
        self._fates.reach("claimed")
        return answer

    def begin(self, group: str, advances: Mapping[TopicPartition, Advance], /) -> set[TopicPartition]:
        refused = self._sink.begin(group, advances)
        if advances and not refused:
            self._fates.reach("begun")
        return refused

    def commit(self) -> None:
        self._fates.reach("written")
        self._sink.commit()
        self._fates.reach("committed")

    def rollback(self) -> None:
        self._sink.rollback()


class OffsetsOutside(Stepping):
    """A control: rows are committed first, then the offsets; the step `committed` is between the two."""

    def begin(self, group: str, advances: Mapping[TopicPartition, Advance], /) -> set[TopicPartition]:
        self._group, self._advances = group, advances
        return super().begin(group, {})

    def commit(self) -> None:
        super().commit()
        self._sink.begin(self._group, self._advances)
        self._sink.commit()


class FenceOff(Stepping):
    """A control without fencing: every claim and advance succeeds."""

    def claim(self, group: str, claims: Sequence[Claim], /) -> dict[TopicPartition, int]:
        self._execute("UPDATE consumer_progress SET generation = 0 WHERE group_name = ?", [(group,)])
        return super().claim(group, claims)

    def begin(self, group: str, advances: Mapping[TopicPartition, Advance], /) -> set[TopicPartition]:
        values = [(advance.before, advance.generation, group, *tp) for tp, advance in advances.items()]
        forget = "UPDATE consumer_progress SET next_offset = ?, generation = ?"
        self._execute(f"{forget} WHERE group_name = ? AND topic = ? AND partition = ?", values)
        return super().begin(group, advances)

    def _execute(self, statement: str, values: list[tuple[Any, ...]]) -> None:
        self._sink.begin("", {})
        is_sqlite = isinstance(self._sink.connection, sqlite3.Connection)
        self._sink.connection.executemany(statement if is_sqlite else statement.replace("?", "%s"), values)
        if values:
            self._sink.commit()
        else:
            self._sink.rollback()


class KafkaOutside(KafkaSink):
    """A control: a transaction of Kafka has the results, and the next one the offsets; `outside` is between the two."""

    def __init__(self, kafka: Mapping[str, Any], fates: Fates) -> None:
        super().__init__(kafka)
        self._fates = fates

    def _advance(self, partition: TopicPartition, advance: Advance) -> None:
        producer = self._lanes[partition].producer
        producer.commit_transaction(TIMEOUT_S)
        self._fates.reach("outside")
        producer.begin_transaction()
        super()._advance(partition, advance)


STEPPING = {"region": Stepping, "offsets-outside": OffsetsOutside, "fence-off": FenceOff}
