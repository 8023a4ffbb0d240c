"""A consumer that stores results until its fate is fulfilled; `python -m tests.exactly_once.worker`.

`--kind region` is what is to be proved, with a sink; `--kind state` too, with counts that it stores itself, in the
folder `--database`. The other kinds are controls, which have to fail: `naive` keeps no offsets in
the sink, `offsets-outside` stores them in a transaction of their own, and `fence-off` checks neither the generation nor
the offset.
"""

from __future__ import annotations

import importlib
import os
import signal
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import psycopg

from consumer_agent import Batch, Consumer
from consumer_agent.errors import KafkaUnavailableError
from consumer_agent.region import Advance, Claim, ConsistentRegion, Sink, as_sink
from consumer_agent.runtime import failpoints
from tests.exactly_once.databases import Database
from tests.exactly_once.fates import Fates, of_agent, parse
from tests.exactly_once.own_state import CountedState
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError
from zkrebalancer.protocol.fields import TopicPartition

KINDS = ("region", "state", "naive", "offsets-outside", "fence-off")
EVERY_S = 0.5  # how often the group's offsets follow
MAX_POLL_RECORDS = 100
FETCHES = {"fetch.min.bytes": "1000000", "fetch.wait.max.ms": "50"}  # so that batches have some records
PASSING_ERRORS = (sqlite3.OperationalError, psycopg.Error, ZooKeeperUnavailableError, KafkaUnavailableError)


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


SINKS = {"region": Stepping, "offsets-outside": OffsetsOutside, "fence-off": FenceOff}


def rows(group: str, batch: Batch) -> list[tuple[str, int, int, int]]:
    """Return the results of a batch."""
    return [(group, record.partition, record.offset, int((record.value or b"-1").split()[0])) for record in batch]


def work_in_region(consumer: Consumer, group: str, kind: str, database: Database, fates: Fates) -> None:
    """Store batches as an application does: a lost connection is opened again."""

    def open_sink() -> Sink:
        return SINKS[kind](as_sink(database.connect()), fates)

    def store_batches(region: ConsistentRegion) -> None:
        sink = open_sink()
        for batch in region:
            fates.reach("batch")
            with region.transaction(sink) as transaction:
                transaction.executemany(database.insert(), rows(group, batch))

    with ConsistentRegion(consumer, name=group, every_s=EVERY_S) as region:
        while True:
            try:
                store_batches(region)
            except PASSING_ERRORS as error:
                print(f"tries again, with another connection: {error}", flush=True)  # noqa: T201  # its log


def work_with_state(consumer: Consumer, group: str, name: str, folder: Path, fates: Fates) -> None:
    """Count records in a state that recovers with the whole group."""
    state = CountedState(folder, name, fates)
    region = ConsistentRegion(
        consumer,
        name=group,
        recovery="group",
        member=name,
        every_s=EVERY_S,
        on_checkpoint=state.store,
        on_reset=state.restore,
        on_retire=state.retire,
    )
    with region:
        while True:
            try:
                for batch in region:
                    for record in batch:
                        state.add(record.partition, int((record.value or b"-1").split()[0]))
                    fates.reach("batch")
            except PASSING_ERRORS as error:
                print(f"tries again: {error}", flush=True)  # noqa: T201  # its log


def work_naively(consumer: Consumer, group: str, database: Database, fates: Fates) -> None:
    """Store batches, and let the consumer commit its offsets."""
    connection = database.connect()
    with consumer:
        while True:
            try:
                batch = consumer.poll()
            except PASSING_ERRORS:
                continue
            fates.reach("batch")
            connection.cursor().executemany(database.insert(), rows(group, batch))
            connection.commit()
            fates.reach("committed")


@click.command()
@click.option("--zookeeper", required=True)
@click.option("--bootstrap", required=True)
@click.option("--group", required=True)
@click.option("--topic", required=True)
@click.option("--client-id", required=True)
@click.option("--database", required=True)
@click.option("--kind", type=click.Choice(KINDS), default="region")
@click.option("--session-timeout-ms", type=int, required=True)
@click.option("--fates", "file", type=click.Path(path_type=Path), help="File with a fate a line; absent: to live.")
def main(
    zookeeper: str,
    bootstrap: str,
    group: str,
    topic: str,
    client_id: str,
    database: str,
    kind: str,
    session_timeout_ms: int,
    file: Path | None,
) -> None:
    """Store the results of a topic's records until this process is killed, or ended by SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    mine = [parse(line) for line in file.read_text().split()] if file else []
    agents = of_agent(mine)
    if agents is not None:
        os.environ[failpoints.VARIABLE] = f"{agents.step}:{agents.count}"
        importlib.reload(failpoints)  # the process may be a fork, which has imported it before
    here = Fates([fate for fate in mine if fate is not agents])
    consumer = Consumer(
        zookeeper=zookeeper,
        bootstrap=bootstrap,
        group=group,
        client_id=client_id,
        session_timeout_ms=session_timeout_ms,
        max_poll_records=MAX_POLL_RECORDS,
        kafka_config=FETCHES,
    )
    consumer.subscribe([topic], on_revoke=lambda _: here.reach("drain"))
    try:
        if kind == "state":
            work_with_state(consumer, group, client_id, Path(database), here)
        elif kind == "naive":
            work_naively(consumer, group, Database(database), here)
        else:
            work_in_region(consumer, group, kind, Database(database), here)
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
