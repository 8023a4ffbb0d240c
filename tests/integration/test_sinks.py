"""The sinks of regions on real databases: SQLite, PostgreSQL, and the one in memory that other tests use."""

from __future__ import annotations

import itertools
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from consumer_agent import ConfigurationError, ConsumerStateError
from consumer_agent.region import Advance, Claim, Sink
from consumer_agent.region.postgres_sink import PostgresSink
from consumer_agent.region.sinks import as_sink
from tests.support.deadlines import WITHIN_S
from tests.support.memory_sink import MemorySink
from tests.support.postgres import postgres
from tests.unit.consumer_agent.runtime.interrupts import Interrupt, Interrupted
from zkrebalancer.pipeline.source import SparkRegion
from zkrebalancer.pipeline.source.offsets import Range

P0, P1 = ("orders", 0), ("orders", 1)
ID, NEW_ID = "id-1 czxid-7", "id-2 czxid-9"
SHOW_LIMIT = "SELECT current_setting('idle_in_transaction_session_timeout')"
Connect = Callable[[], Any]  # returns another connection to the same database
OF_SQL = pytest.mark.parametrize("database", ["sqlite", "postgres"])


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as address:
        yield address


@pytest.fixture
def connect(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[Connect]:
    opened: list[Any] = []

    def connect() -> Any:
        if database == "sqlite":
            opened.append(sqlite3.connect(tmp_path / "sink.db", timeout=10))
        else:
            opened.append(psycopg.connect(request.getfixturevalue("server")))
        return opened[-1]

    first = connect()
    first.execute("DROP TABLE IF EXISTS consumer_progress")
    first.execute("DROP TABLE IF EXISTS results")
    first.execute("CREATE TABLE results (result TEXT)")
    first.commit()
    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def sink(request: pytest.FixtureRequest, database: str) -> Sink:
    return MemorySink() if database == "memory" else as_sink(request.getfixturevalue("connect")())


def claim(sink: Sink, generation: int, *, offset: int = 10, identity: str = ID, life: int = 0) -> dict[Any, int]:
    return sink.claim("g", [Claim(P0, generation, identity, life, offset)])


def advance(sink: Sink, before: int, after: int, generation: int) -> bool:
    """Store an advance of P0; return whether that was allowed."""
    if sink.begin("g", {P0: Advance(before, after, generation)}):
        sink.rollback()
        return False
    sink.commit()
    return True


@pytest.mark.parametrize("database", ["memory", "sqlite", "postgres"])
def test_claims_and_advances(sink: Sink) -> None:
    assert claim(sink, 3) == {P0: 10}
    assert advance(sink, 10, 15, 3)
    assert not advance(sink, 10, 20, 3)  # it is at 15
    assert claim(sink, 5) == {P0: 15}  # the next owner
    assert not advance(sink, 15, 20, 3)  # of the former one
    assert claim(sink, 3) == {}  # it claims late
    assert advance(sink, 15, 20, 5)
    assert claim(sink, 5) == {P0: 20}
    if not isinstance(sink, MemorySink):
        assert sink.claim("other", [Claim(P0, 1, ID, 0, 2), Claim(P1, 1, ID, 0, 3)]) == {P0: 2, P1: 3}
    assert sink.begin("g", {P0: Advance(20, 25, 5), P1: Advance(0, 5, 5)}) == {P1}  # it was never claimed
    sink.rollback()
    assert claim(sink, 6) == {P0: 20}


@pytest.mark.parametrize("database", ["memory", "sqlite", "postgres"])
def test_progress_belongs_to_the_incarnation_of_the_topic_and_the_life_of_the_groups_offsets(sink: Sink) -> None:
    assert claim(sink, 3, identity="czxid-7") == {P0: 10}
    assert advance(sink, 10, 15, 3)
    assert claim(sink, 4, offset=0, identity="") == {P0: 15}  # unknown: it may be the same
    assert claim(sink, 5, offset=0) == {P0: 15}  # the topic got an id
    assert claim(sink, 6, offset=0, identity="id-1") == {P0: 15}  # its node was copied
    assert claim(sink, 7, offset=0, identity=NEW_ID) == {P0: 0}  # made anew
    assert advance(sink, 0, 15, 7)
    assert claim(sink, 8, offset=3, identity=NEW_ID, life=4) == {P0: 3}  # an operator has set the offsets
    assert advance(sink, 3, 9, 8)
    assert claim(sink, 9, offset=1, identity=NEW_ID, life=4) == {P0: 9}
    assert claim(sink, 10, offset=1, identity=NEW_ID, life=2) == {P0: 9}  # of a restored tree


@OF_SQL
def test_rows_and_progress_are_stored_together_or_not_at_all(sink: Sink, connect: Connect) -> None:
    claim(sink, 3)
    sink.begin("g", {P0: Advance(10, 11, 3)})
    sink.connection.execute("INSERT INTO results VALUES ('no')")
    sink.rollback()
    assert claim(sink, 3) == {P0: 10}
    sink.begin("g", {P0: Advance(10, 12, 3)})
    sink.connection.executemany(insert_into(sink), [("a",), ("b",)])
    sink.commit()
    assert connect().execute("SELECT result FROM results ORDER BY result").fetchall() == [("a",), ("b",)]
    assert claim(sink, 3) == {P0: 12}


def insert_into(sink: Sink) -> str:
    is_sqlite = isinstance(sink.connection, sqlite3.Connection)
    return "INSERT INTO results VALUES (?)" if is_sqlite else "INSERT INTO results VALUES (%s)"


@OF_SQL
def test_a_claim_waits_for_the_open_transaction_of_the_former_owner(
    sink: Sink, connect: Connect, database: str
) -> None:
    claim(sink, 3)
    other, waits_for = connect(), connect()
    waits_for.execute("PRAGMA busy_timeout = 0" if database == "sqlite" else "SET lock_timeout = '20ms'")
    waits_for.commit()
    sink_of_other, impatient = as_sink(other), as_sink(waits_for)
    sink.begin("g", {P0: Advance(10, 15, 3)})
    with pytest.raises((sqlite3.OperationalError, psycopg.errors.LockNotAvailable)):
        claim(impatient, 4)
    sink.commit()
    assert claim(sink_of_other, 4) == {P0: 15}
    assert claim(impatient, 5) == {P0: 15}  # it can be used again


@pytest.mark.parametrize("database", ["sqlite"])
def test_after_a_commit_that_a_reader_prevents_no_transaction_stays_open(sink: Sink, connect: Connect) -> None:
    """SQLite keeps it open: the database would stay locked, and the next transaction of the region be refused."""
    claim(sink, 3)
    sink.connection.execute("PRAGMA busy_timeout = 0")
    reader = connect()
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM consumer_progress").fetchone()
    sink.begin("g", {P0: Advance(10, 15, 3)})
    for commit in (sink.commit, lambda: claim(sink, 4)):
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            commit()
    reader.rollback()
    assert claim(sink, 4) == {P0: 10}


@OF_SQL
def test_after_a_begin_that_has_waited_for_too_long_no_transaction_stays_open(
    sink: Sink, connect: Connect, database: str
) -> None:
    claim(sink, 3)
    other = connect()
    impatient = as_sink(other)
    other.execute("PRAGMA busy_timeout = 0" if database == "sqlite" else "SET lock_timeout = '20ms'")
    other.commit()
    sink.begin("g", {P0: Advance(10, 15, 3)})
    for _ in range(2):
        with pytest.raises((sqlite3.OperationalError, psycopg.errors.LockNotAvailable)):
            impatient.begin("g", {P0: Advance(10, 15, 3)})
    sink.rollback()
    assert advance(impatient, 10, 15, 3)


@OF_SQL
def test_partitions_of_other_members_are_not_locked(sink: Sink, connect: Connect, database: str) -> None:
    """In PostgreSQL; SQLite has one writer."""
    other = as_sink(connect())
    sink.claim("g", [Claim(P0, 1, ID, 0, 0)])
    other.claim("g", [Claim(P1, 1, ID, 0, 0)])
    sink.begin("g", {P0: Advance(0, 5, 1)})
    if database == "postgres":
        assert other.begin("g", {P1: Advance(0, 5, 1)}) == set()
        other.commit()
    sink.commit()
    assert other.claim("g", [Claim(P1, 2, ID, 0, 9)]) == {P1: 5 if database == "postgres" else 0}


@OF_SQL
def test_a_transaction_of_the_application_is_refused(connect: Connect, database: str) -> None:
    busy = connect()
    busy.execute("INSERT INTO results VALUES ('mine')")
    with pytest.raises(ConsumerStateError, match="is in a transaction; commit it or roll it back first"):
        as_sink(busy)
    busy.commit()
    sink = as_sink(busy)
    assert as_sink(sink) is sink
    busy.execute("INSERT INTO results VALUES ('mine')")
    with pytest.raises(ConsumerStateError, match="is in a transaction"):
        claim(sink, 1)
    with pytest.raises(ConsumerStateError, match="is in a transaction"):
        sink.begin("g", {})
    busy.rollback()
    claim(sink, 1)
    sink.begin("g", {P0: Advance(10, 11, 1)})
    busy.commit()
    with pytest.raises(ConsumerStateError, match="has ended the transaction of its region"):
        sink.commit()


def test_connections_with_automatic_commits(server: str, tmp_path: Path) -> None:
    """They serve as well as others: the region's transactions are its own."""
    with psycopg.connect(server, autocommit=True) as postgres_connection:
        postgres_connection.execute("DROP TABLE IF EXISTS consumer_progress")
        connections: list[Any] = [postgres_connection, sqlite3.connect(tmp_path / "1.db", isolation_level=None)]
        if sys.version_info >= (3, 12):
            connections.append(sqlite3.connect(tmp_path / "2.db", autocommit=True))
            with pytest.raises(ConfigurationError, match="must not have autocommit=False"):
                as_sink(sqlite3.connect(tmp_path / "3.db", autocommit=False))
        for connection in connections:
            connection.execute("CREATE TABLE rows_of_it (result TEXT)")
            sink = as_sink(connection)
            claim(sink, 1)
            for ends, after in ((sink.rollback, 10), (sink.commit, 11)):
                assert sink.begin("g", {P0: Advance(10, 11, 1)}) == set()
                sink.connection.execute("INSERT INTO rows_of_it VALUES ('x')")
                ends()
                assert claim(sink, 1) == {P0: after}
            assert connection.execute("SELECT count(*) FROM rows_of_it").fetchall() == [(1,)]
            connection.execute("DROP TABLE rows_of_it")


def test_a_suspended_transaction_in_postgresql_ends(server: str) -> None:
    """The limit is set unless the connection has one."""
    with psycopg.connect(server) as connection:
        as_sink(connection)
        assert connection.execute(SHOW_LIMIT).fetchall() == [("1min",)]
    with closing(psycopg.connect(server, options="-c idle_in_transaction_session_timeout=50")) as connection:
        sink = as_sink(connection)
        claim(sink, 100, identity="of-this-test")
        sink.begin("g", {P0: Advance(10, 11, 100)})
        with psycopg.connect(server) as watching:
            give_up_at = time.monotonic() + WITHIN_S
            is_there = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
            while watching.execute(is_there, (connection.info.backend_pid,)).fetchall():
                assert time.monotonic() < give_up_at
                watching.rollback()
        with pytest.raises(psycopg.Error):
            sink.connection.execute("SELECT 1")
        sink.rollback()  # raises nothing that would hide that


def test_a_spark_query_may_compute_in_its_transaction_for_as_long_as_a_batch_may_take(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are computed in there. In `SparkRegion.store`, use the limit of others: the server ends it after 60 s.

    Spark repeats the same batch after each restart, so the query never gets beyond it.
    """
    monkeypatch.setattr("zkrebalancer.pipeline.source.region.ranges_of", lambda *_: [Range(*P0, 10, 11, 300)])
    shown: list[Any] = []

    def write(transaction: Any, _rows: object) -> None:
        shown.extend(transaction.execute(SHOW_LIMIT).fetchall())
        names = "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count"
        source = "SELECT DISTINCT source FROM pg_settings WHERE name = ANY(%s)"
        shown.extend(transaction.execute(source, (list(names),)).fetchall())

    region = SparkRegion(group="of-spark", checkpoint="c", open_database=lambda: psycopg.connect(server), write=write)
    region.store(mock.Mock(columns=["topic", "partition", "offset"]), 1)
    assert shown == [("1h",), ("session",)]  # a host that is gone is noticed earlier


@pytest.mark.parametrize("again_after", [0, 7])
def test_an_interrupt_leaves_no_transaction_open_in_postgresql(server: str, again_after: int) -> None:
    """In `PostgresSink.claim`, use psycopg's `transaction()`: after an interrupt it refuses every rollback."""
    for at in itertools.count(1, 23):
        interrupt = Interrupt(at, *[at + again_after] * bool(again_after))
        with closing(psycopg.connect(server)) as connection:
            sink = PostgresSink(connection)
            before = claim(sink, 200, identity="of-this-test")[P0]
            with suppress(Interrupted):
                interrupt.during(lambda: _claim_and_advance(sink, before))  # noqa: B023
            sink.rollback()  # as a region does before its next transaction
            assert connection.closed or connection.info.transaction_status is TransactionStatus.IDLE
            if not connection.closed:
                assert claim(sink, 200, identity="of-this-test")[P0] in {before, before + 1}
        if interrupt.points < at:
            break


def _claim_and_advance(sink: Sink, before: int) -> None:
    claim(sink, 200, identity="of-this-test")
    advance(sink, before, before + 1, 200)


def test_what_is_no_sink_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"sqlite3 or psycopg 3, or a Sink is needed, not builtins\.int"):
        as_sink(3)
