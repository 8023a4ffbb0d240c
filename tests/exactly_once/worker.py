"""A consumer that stores results until its fate is fulfilled; `python -m tests.exactly_once.worker`.

What is to be proved: `--kind region` with a sink in the database `--database`, `kafka` with one in Kafka, and `state`
and `classic` with counts that each member stores itself, in the folder `--database`; `classic` reads with an unmodified
client of Kafka. The other kinds are controls, which have to fail: `naive` keeps no offsets in the sink,
`offsets-outside` and `kafka-outside` store them in their own transactions, `fence-off` checks neither the generation
nor the offset, and `no-reset` keeps its counts when all others go back.
"""

from __future__ import annotations

import importlib
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psycopg
from confluent_kafka import KafkaException

from consumer_agent import Batch, Consumer
from consumer_agent.errors import KafkaUnavailableError
from consumer_agent.region import ConsistentRegion, ForcedRegion, KafkaSink, Sink, as_sink
from consumer_agent.runtime import failpoints
from tests.exactly_once.clients import SteppingClient, step_between_pieces
from tests.exactly_once.databases import Database
from tests.exactly_once.fates import Fates, of_agent, parse
from tests.exactly_once.kafka_results import encoded, topic_of
from tests.exactly_once.own_state import CountedState, NeverReset
from tests.exactly_once.sinks import STEPPING, KafkaOutside, Stepping
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError

KINDS = ("region", "kafka", "state", "classic", "naive", "offsets-outside", "fence-off", "kafka-outside", "no-reset")
OF_KAFKA = ("kafka", "kafka-outside")
OF_CLASSIC = ("classic", "no-reset")
EVERY_S = 0.5  # how often the group's offsets follow
MAX_POLL_RECORDS = 100
FETCHES = {"fetch.min.bytes": "1000000", "fetch.wait.max.ms": "50"}  # so that batches have some records
HEARTBEATS_PER_SESSION = 4  # of an unmodified client
METADATA_MS = 1_000  # how often such a client looks for new partitions
PASSING_ERRORS = (
    sqlite3.OperationalError,
    psycopg.Error,
    KafkaException,
    ZooKeeperUnavailableError,
    KafkaUnavailableError,
)


@dataclass(frozen=True, slots=True)
class Given:
    """The options of a worker, and its fate."""

    zookeeper: str
    bootstrap: str
    group: str
    topic: str
    client_id: str
    database: str
    kind: str
    session_timeout_ms: int
    fates: Fates

    def consumer(self) -> Consumer:
        """Return a consumer of a central group."""
        consumer = Consumer(
            zookeeper=self.zookeeper,
            bootstrap=self.bootstrap,
            group=self.group,
            client_id=self.client_id,
            session_timeout_ms=self.session_timeout_ms,
            max_poll_records=MAX_POLL_RECORDS,
            kafka_config=FETCHES,
        )
        consumer.subscribe([self.topic], on_revoke=lambda _: self.fates.reach("drain"))
        return consumer

    def client(self) -> SteppingClient:
        """Return an unmodified client, whose group Kafka assigns."""
        settings = {
            **FETCHES,
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "client.id": self.client_id,
            "session.timeout.ms": self.session_timeout_ms,
            "heartbeat.interval.ms": self.session_timeout_ms // HEARTBEATS_PER_SESSION,
            "topic.metadata.refresh.interval.ms": METADATA_MS,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        return SteppingClient(settings, self.fates)


def number_of(value: bytes | None) -> int:
    """Return the number in a record."""
    return int((value or b"-1").split()[0])


def rows(group: str, batch: Batch) -> list[tuple[str, int, int, int]]:
    """Return the results of a batch."""
    return [(group, record.partition, record.offset, number_of(record.value)) for record in batch]


@contextmanager
def opened_sink(given: Given) -> Iterator[Sink]:
    """Return the sink of a kind."""
    if given.kind not in OF_KAFKA:
        yield STEPPING[given.kind](as_sink(Database(given.database).connect()), given.fates)
        return
    kafka = {"bootstrap.servers": given.bootstrap}
    with closing(KafkaSink(kafka) if given.kind == "kafka" else KafkaOutside(kafka, given.fates)) as sink:
        yield Stepping(sink, given.fates)


def writer(given: Given) -> Callable[[Any, Batch], None]:
    """Return what writes the results of a batch within a transaction."""
    insert, topic = Database(given.database).insert(), topic_of(given.group)

    def write_rows(transaction: Any, batch: Batch) -> None:
        transaction.executemany(insert, rows(given.group, batch))

    def write_records(transaction: Any, batch: Batch) -> None:
        for record in batch:
            value = encoded(record.offset, number_of(record.value))
            transaction.produce(record, topic, value, number=record.partition)

    return write_records if given.kind in OF_KAFKA else write_rows


def again_and_again(work: Callable[[], None]) -> None:
    """Work as an application does that goes on after errors that pass."""
    while True:
        try:
            work()
        except PASSING_ERRORS as error:
            print(f"tries again: {error}", flush=True)  # noqa: T201  # its log


def work_in_region(given: Given) -> None:
    """Store batches in a sink; a lost connection is opened again."""
    write = writer(given)

    def store_batches() -> None:
        with opened_sink(given) as sink:
            for batch in region:
                given.fates.reach("batch")
                with region.transaction(sink) as transaction:
                    write(transaction, batch)

    with ConsistentRegion(given.consumer(), name=given.group, every_s=EVERY_S) as region:
        again_and_again(store_batches)


def work_with_state(given: Given) -> None:
    """Count records in a state that recovers with the whole group."""
    kind = NeverReset if given.kind == "no-reset" else CountedState
    state = kind(Path(given.database), given.client_id, given.fates)
    named: dict[str, Any] = {"name": given.group, "member": given.client_id, "every_s": EVERY_S}
    named |= {"on_checkpoint": state.store, "on_reset": state.restore, "on_retire": state.retire}
    region: ConsistentRegion | ForcedRegion
    if given.kind in OF_CLASSIC:
        where: dict[str, Any] = {"zookeeper": given.zookeeper, "session_timeout_ms": given.session_timeout_ms}
        client = given.client()
        region = ForcedRegion(
            client, [given.topic], group=given.group, max_poll_records=MAX_POLL_RECORDS, **where, **named
        )
        step_between_pieces(region._rounds, given.fates)
    else:
        region = ConsistentRegion(given.consumer(), recovery="group", **named)
        step_between_pieces(region._own, given.fates)  # type: ignore[arg-type]  # it recovers as a group

    def count_batches() -> None:
        for batch in region:
            for record in batch:
                state.add(record_partition(record), number_of(record_value(record)))
            given.fates.reach("batch")

    with region:
        again_and_again(count_batches)


def record_partition(record: Any) -> int:
    """Return a record's partition; an unmodified client has methods."""
    return int(record.partition() if callable(record.partition) else record.partition)


def record_value(record: Any) -> bytes | None:
    """Return a record's value, as above."""
    value: bytes | None = record.value() if callable(record.value) else record.value
    return value


def work_naively(given: Given) -> None:
    """Store batches, and let the consumer commit its offsets."""
    database = Database(given.database)
    connection = database.connect()
    with given.consumer() as consumer:
        while True:
            try:
                batch = consumer.poll()
            except PASSING_ERRORS:
                continue
            given.fates.reach("batch")
            connection.cursor().executemany(database.insert(), rows(given.group, batch))
            connection.commit()
            given.fates.reach("committed")


WORK = {"state": work_with_state, "classic": work_with_state, "no-reset": work_with_state, "naive": work_naively}


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
def main(*, file: Path | None, kind: str, **options: Any) -> None:
    """Store the results of a topic's records until this process is killed, or ended by SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    mine = [parse(line) for line in file.read_text().split()] if file else []
    agents = of_agent(mine)
    if agents is not None:
        os.environ[failpoints.VARIABLE] = f"{agents.step}:{agents.count}"
        importlib.reload(failpoints)  # the process may be a fork, which has imported it before
    here = Fates([fate for fate in mine if fate is not agents])
    try:
        WORK.get(kind, work_in_region)(Given(kind=kind, fates=here, **options))
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
