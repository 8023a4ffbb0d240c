"""Which sink serves which database."""

from __future__ import annotations

from typing import Any

from consumer_agent.region.sink import Sink
from zkrebalancer.protocol.errors import ConfigurationError


def as_sink(database: Any) -> Sink:  # noqa: ANN401  # a connection of any known database, or a sink
    """Return the sink for a database; raises ConfigurationError."""
    if isinstance(database, Sink):
        return database
    raise ConfigurationError(f"transaction: no sink is known for {type(database).__name__}; see Sink")
