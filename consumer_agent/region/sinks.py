"""Which sink serves which database."""

from __future__ import annotations

import sqlite3
import sys
from typing import Any

from consumer_agent.region.sink import IDLE_LIMIT_MS, Sink
from consumer_agent.region.sqlite_sink import SqliteSink
from zkrebalancer.protocol.errors import ConfigurationError


def as_sink(
    database: Any,  # noqa: ANN401  # a connection of any known database, or a sink
    idle_limit_ms: int = IDLE_LIMIT_MS,
) -> Sink:
    """Return the sink for a database; raises ConfigurationError. `idle_limit_ms`: see `PostgresSink`."""
    if isinstance(database, Sink):
        return database
    if isinstance(database, sqlite3.Connection):
        return SqliteSink(database)
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(database, psycopg.Connection):  # it is imported, because it made this one
        from consumer_agent.region.postgres_sink import PostgresSink  # noqa: PLC0415  # an extra

        return PostgresSink(database, idle_limit_ms)
    kind = type(database)
    known = "a connection of sqlite3 or psycopg 3, or a Sink"
    raise ConfigurationError(f"transaction: {known} is needed, not {kind.__module__}.{kind.__qualname__}")
