"""SQLite as a sink: a table `consumer_progress` beside the tables of the application."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from consumer_agent.errors import ConsumerStateError
from consumer_agent.region.sink import Advance, Claim, Row, settled
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.fields import TopicPartition

TABLE = """
    CREATE TABLE IF NOT EXISTS consumer_progress (
        group_name TEXT, topic TEXT, partition INTEGER, identity TEXT NOT NULL, life INTEGER NOT NULL,
        generation INTEGER NOT NULL, next_offset INTEGER NOT NULL, PRIMARY KEY (group_name, topic, partition)
    ) WITHOUT ROWID
"""
BEGIN = "BEGIN IMMEDIATE"
READ = """
    SELECT identity, life, generation, next_offset FROM consumer_progress
    WHERE group_name = ? AND topic = ? AND partition = ?
"""
STORE = "INSERT OR REPLACE INTO consumer_progress VALUES (?, ?, ?, ?, ?, ?, ?)"
ADVANCE = """
    UPDATE consumer_progress SET next_offset = ?
    WHERE group_name = ? AND topic = ? AND partition = ? AND generation = ? AND next_offset = ?
"""


class SqliteSink:
    """A `Sink` in a SQLite database; transactions of all writers follow each other.

    A writer waits for another one as long as the connection's `timeout` says, then raises `sqlite3.OperationalError`.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Create the table if it is missing.

        Raises:
            ConfigurationError: the connection has `autocommit=False`, so it is always in a transaction.
            ConsumerStateError: it is in a transaction.
            sqlite3.Error: of the database.

        """
        if getattr(connection, "autocommit", None) is False:
            raise ConfigurationError("transaction: the connection to SQLite must not have autocommit=False")
        self.connection = connection
        self._require_idle()
        connection.execute(TABLE)
        if connection.in_transaction:  # of another version of Python
            connection.execute("COMMIT")

    def claim(self, group: str, claims: Sequence[Claim], /) -> dict[TopicPartition, int]:
        """See `Sink.claim`."""
        self._require_idle()
        answer = {}
        try:
            self.connection.execute(BEGIN)
            for claim in claims:
                stored = self.connection.cursor()
                stored.row_factory = None  # whatever the connection's is
                found = stored.execute(READ, (group, *claim.partition)).fetchone()
                row = settled(claim, None if found is None else Row(_text(found[0]), *found[1:]))
                if row is not None:
                    values = (row.identity, row.life, row.generation, row.next_offset)
                    self.connection.execute(STORE, (group, *claim.partition, *values))
                    answer[claim.partition] = row.next_offset
            self.connection.execute("COMMIT")
        except BaseException:
            self.rollback()
            raise
        return answer

    def begin(self, group: str, advances: Mapping[TopicPartition, Advance], /) -> set[TopicPartition]:
        """See `Sink.begin`; the whole database is locked until the end."""
        self._require_idle()
        refused = set()
        try:
            self.connection.execute(BEGIN)
            for partition, advance in advances.items():
                given = (advance.after, group, *partition, advance.generation, advance.before)
                if not self.connection.execute(ADVANCE, given).rowcount:
                    refused.add(partition)
        except BaseException:
            self.rollback()
            raise
        return refused

    def commit(self) -> None:
        """Commit; raises ConsumerStateError if the application has ended the transaction.

        A reader can make it fail: SQLite then keeps the transaction open, and its writer locks out all others.
        """
        if not self.connection.in_transaction:
            raise ConsumerStateError("the application has ended the transaction of its region; leave that to `with`")
        try:
            self.connection.execute("COMMIT")
        except BaseException:
            self.rollback()
            raise

    def rollback(self) -> None:
        """Roll back, unless the transaction has ended already, perhaps with its connection."""
        try:
            is_open = self.connection.in_transaction
        except sqlite3.ProgrammingError:  # the connection is closed
            return
        if is_open:
            self.connection.execute("ROLLBACK")

    def _require_idle(self) -> None:
        if self.connection.in_transaction:
            raise ConsumerStateError("the connection to SQLite is in a transaction; commit it or roll it back first")


def _text(stored: object) -> str:
    """Return a text; a connection whose `text_factory` is `bytes` reads it as such."""
    return stored.decode() if isinstance(stored, (bytes, bytearray)) else str(stored)
