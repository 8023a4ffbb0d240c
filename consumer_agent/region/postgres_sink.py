"""PostgreSQL as a sink: a table `consumer_progress` beside the tables of the application."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from consumer_agent.errors import ConsumerStateError
from consumer_agent.region.sink import IDLE_LIMIT_MS, Advance, Claim, Row, settled
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import logs

_log = logs.named(__name__)
T = TypeVar("T")

EXISTS = "SELECT to_regclass('consumer_progress') IS NOT NULL"
TABLE = """
    CREATE TABLE IF NOT EXISTS consumer_progress (
        group_name text, topic text, partition integer, identity text NOT NULL, life bigint NOT NULL,
        generation bigint NOT NULL, next_offset bigint NOT NULL, PRIMARY KEY (group_name, topic, partition)
    )
"""
# However long the limit is, the server notices within a minute that the host of a connection is gone.
LIMIT = """
    SELECT set_config(name, wanted, false) FROM (VALUES ('idle_in_transaction_session_timeout', %s),
        ('tcp_keepalives_idle', '30'), ('tcp_keepalives_interval', '10'), ('tcp_keepalives_count', '3'))
        AS given (name, wanted) JOIN pg_settings USING (name) WHERE source = 'default' OR setting = '0'
"""
# A row for each claim, so that there is something to lock; its generation is below every other.
RESERVE = """
    INSERT INTO consumer_progress
    SELECT %s, topic, partition, '', -1, -1, 0 FROM unnest(%s::text[], %s::integer[]) AS claimed (topic, partition)
    ORDER BY topic, partition ON CONFLICT DO NOTHING
"""
# Rows are locked in one order, so that two transactions cannot wait for each other.
READ = """
    SELECT stored.topic, stored.partition, identity, life, generation, next_offset FROM consumer_progress AS stored
    JOIN unnest(%s::text[], %s::integer[]) AS claimed (topic, partition)
    ON stored.topic = claimed.topic AND stored.partition = claimed.partition
    WHERE group_name = %s ORDER BY stored.topic, stored.partition FOR UPDATE OF stored
"""
STORE = """
    UPDATE consumer_progress AS stored SET identity = next.identity, life = next.life, generation = next.generation,
        next_offset = next.next_offset
    FROM unnest(%s::text[], %s::integer[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[])
        AS next (topic, partition, identity, life, generation, next_offset)
    WHERE group_name = %s AND stored.topic = next.topic AND stored.partition = next.partition
"""
ADVANCE = """
    WITH locked AS (
        SELECT stored.topic, stored.partition, next.after FROM consumer_progress AS stored
        JOIN unnest(%s::text[], %s::integer[], %s::bigint[], %s::bigint[], %s::bigint[])
            AS next (topic, partition, generation, before, after)
        ON stored.topic = next.topic AND stored.partition = next.partition
            AND stored.generation = next.generation AND stored.next_offset = next.before
        WHERE group_name = %s ORDER BY stored.topic, stored.partition FOR UPDATE OF stored
    )
    UPDATE consumer_progress AS stored SET next_offset = locked.after FROM locked
    WHERE stored.group_name = %s AND stored.topic = locked.topic AND stored.partition = locked.partition
    RETURNING stored.topic, stored.partition
"""


class PostgresSink:
    """A `Sink` in a PostgreSQL database, for a connection of psycopg 3; the application writes rows with a cursor.

    A transaction whose application sends nothing for `idle_limit_ms` is ended by the server, so that a suspended
    consumer does not keep its rows locked. A limit of the connection (`idle_in_transaction_session_timeout`) stays.
    """

    def __init__(self, connection: psycopg.Connection[Any], idle_limit_ms: int = IDLE_LIMIT_MS) -> None:
        """Create the table if it is missing.

        Raises:
            ConsumerStateError: the connection is in a transaction.
            psycopg.Error: of the database.

        """
        self._connection = connection
        self._idle_limit_ms = idle_limit_ms
        self._cursor: psycopg.Cursor[Any] | None = None
        self._in_transaction(self._prepare)

    @property
    def connection(self) -> psycopg.Cursor[Any] | None:
        """The cursor of the open transaction, None outside; its `connection` is what the sink was made with."""
        return self._cursor

    def _prepare(self, cursor: psycopg.Cursor[Any]) -> None:
        if cursor.execute(EXISTS).fetchall() != [(True,)]:  # else no right to create tables is needed
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext('consumer_progress'))")
            cursor.execute(TABLE)
        cursor.execute(LIMIT, (str(self._idle_limit_ms),))

    def claim(self, group: str, claims: Sequence[Claim], /) -> dict[TopicPartition, int]:
        """See `Sink.claim`."""
        return self._in_transaction(lambda cursor: self._claim(cursor, group, claims))

    def _claim(self, cursor: psycopg.Cursor[Any], group: str, claims: Sequence[Claim]) -> dict[TopicPartition, int]:
        topics, numbers = [claim.partition[0] for claim in claims], [claim.partition[1] for claim in claims]
        cursor.execute(RESERVE, (group, topics, numbers))
        found = cursor.execute(READ, (topics, numbers, group)).fetchall()
        stored = {(topic, number): Row(*values) for topic, number, *values in found if values[2] >= 0}
        rows = {claim.partition: settled(claim, stored.get(claim.partition)) for claim in claims}
        taken = {partition: row for partition, row in rows.items() if row is not None}
        if taken:  # one statement: psycopg's `executemany`, interrupted, raises AssertionError instead
            values = ((*partition, *astuple(row)) for partition, row in taken.items())
            cursor.execute(STORE, (*map(list, zip(*values, strict=True)), group))
        return {partition: row.next_offset for partition, row in taken.items()}

    def begin(self, group: str, advances: Mapping[TopicPartition, Advance], /) -> set[TopicPartition]:
        """See `Sink.begin`."""
        self._require_idle()
        try:
            self._begin()
            self._cursor = self._connection.cursor()
            if not advances:
                return set()
            topics, numbers = [topic for topic, _ in advances], [number for _, number in advances]
            befores, afters, generations = (list(column) for column in zip(*advances.values(), strict=True))
            given = (topics, numbers, generations, befores, afters, group, group)
            with self._connection.cursor(row_factory=tuple_row) as cursor:
                return advances.keys() - set(cursor.execute(ADVANCE, given).fetchall())
        except BaseException:
            self.rollback()
            raise

    def _begin(self) -> None:
        if self._connection.autocommit:
            self._connection.execute("BEGIN")

    def _in_transaction(self, work: Callable[[psycopg.Cursor[Any]], T]) -> T:
        """Do this in a transaction of its own. psycopg's `transaction()`, interrupted, refuses any later rollback."""
        self._require_idle()
        try:
            self._begin()
            with self._connection.cursor(row_factory=tuple_row) as cursor:
                result = work(cursor)
            self._connection.commit()
        except BaseException:
            self.rollback()
            raise
        return result

    def commit(self) -> None:
        """Commit; raises ConsumerStateError if the application has ended the transaction."""
        if self._status() is not TransactionStatus.INTRANS:
            raise ConsumerStateError("the application has ended the transaction of its region; leave that to `with`")
        try:
            self._connection.commit()
        except BaseException:
            self.rollback()
            raise
        self._forget_cursor()

    def rollback(self) -> None:
        """Roll back; if the connection is lost, the server does it.

        If that is impossible, because a signal's exception has cut off a command, the connection is closed.
        """
        self._forget_cursor()
        if self._connection.broken or self._connection.closed:
            return
        why = "an interrupt has cut off a command"
        if self._status() is not TransactionStatus.ACTIVE:
            try:
                self._connection.rollback()
            except psycopg.Error as error:
                why = str(error)
        if self._status() is not TransactionStatus.IDLE:
            self._connection.close()
            _log.warning("a sink's connection to PostgreSQL is closed, for it could not roll back: %s", why)

    def _forget_cursor(self) -> None:
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.close()

    def _status(self) -> TransactionStatus:
        return self._connection.info.transaction_status

    def _require_idle(self) -> None:
        if self._status() not in {TransactionStatus.IDLE, TransactionStatus.UNKNOWN}:  # unknown: closed, which raises
            text = "the connection to PostgreSQL is in a transaction; commit it or roll it back first"
            raise ConsumerStateError(text)
