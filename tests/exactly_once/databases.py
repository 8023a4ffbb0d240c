"""The databases that hold results: PostgreSQL or SQLite, with the same table."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.exactly_once.judging import Judgement, Log, judge

TABLE = "CREATE TABLE results (id {}, grp TEXT, part INTEGER, at BIGINT, number BIGINT)"
INDEX = "CREATE INDEX of_record ON results (grp, part, at)"
ROWS_AT_ONCE = 10_000
IDLE_LIMIT_MS = 3_000  # of a worker that is suspended within a transaction
SQLITE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Database:
    """A database by its address: "sqlite:FILE", or what psycopg connects to."""

    address: str

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file of SQLite."""
        return self.address.startswith("sqlite:")

    def connect(self) -> Any:
        """Open a connection, which commits only when it is told to."""
        if self.is_sqlite:
            return sqlite3.connect(self.address.removeprefix("sqlite:"), timeout=SQLITE_TIMEOUT_S)
        return psycopg.connect(self.address, options=f"-c idle_in_transaction_session_timeout={IDLE_LIMIT_MS}")

    def create(self) -> None:
        """Create the table of results."""
        kind = "INTEGER PRIMARY KEY" if self.is_sqlite else "BIGSERIAL PRIMARY KEY"
        with closing(self.connect()) as connection:
            connection.execute(TABLE.format(kind))
            connection.execute(INDEX)
            connection.commit()

    def insert(self) -> str:
        """Return the statement that adds a result."""
        return self._with_marks("INSERT INTO results (grp, part, at, number) VALUES (?, ?, ?, ?)")

    def next_offsets(self, group: str) -> dict[int, int]:
        """Return the next offset of each partition; none before the first transaction."""
        try:
            question = "SELECT partition, next_offset FROM consumer_progress WHERE group_name = ?"
            return dict(self._ask(question, group))
        except (sqlite3.OperationalError, psycopg.errors.UndefinedTable):
            return {}

    def has_doubles(self, group: str) -> bool:
        """Whether a record has two results."""
        question = "SELECT 1 FROM results WHERE grp = ? GROUP BY part, at HAVING count(*) > 1 LIMIT 1"
        return bool(self._ask(question, group))

    def rows(self, group: str) -> Iterator[tuple[int, int, int]]:
        """Yield partition, offset and number of each result, by partition and in the order in which it was stored."""
        question = self._with_marks("SELECT part, at, number FROM results WHERE grp = ? ORDER BY part, id")
        with closing(self.connect()) as connection:
            cursor = connection.cursor() if self.is_sqlite else connection.cursor("rows")  # it stays at the server
            cursor.execute(question, (group,))
            while some := cursor.fetchmany(ROWS_AT_ONCE):
                yield from some

    def judge(self, group: str, log: Log) -> Judgement:
        """Compare the results with the log."""
        return judge(log, self.rows(group))

    def _ask(self, question: str, group: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            return connection.execute(self._with_marks(question), (group,)).fetchall()  # type: ignore[no-any-return]

    def _with_marks(self, statement: str) -> str:
        return statement if self.is_sqlite else statement.replace("?", "%s")
