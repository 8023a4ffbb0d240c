"""Checks the settings of Kafka clients, and explains why a client gets no answer.

Settings are those of librdkafka, key -> text: `bootstrap.servers` and whatever the user adds. When no broker can be
reached, or authentication fails, librdkafka's calls report a timeout only; the reason goes to the `error_cb` callback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from zkrebalancer.protocol.errors import ConfigurationError

BOOTSTRAP = "bootstrap.servers"
T = TypeVar("T")
# librdkafka's limit of each request to a group's coordinator, the longest that it takes. The caller has to close the
# client before: librdkafka aborts the process if it ends a request itself and the coordinator comes back later
# (`eonce->refcnt > 0`, librdkafka#4605, up to 2.16 at least).
UNREACHED_S = 3_600.0


def fault(settings: Mapping[str, str]) -> str | None:
    """Return why librdkafka rejects these settings, None if it accepts them; opens no connection."""
    quiet: dict[str, Any] = {**settings, "log_level": 0}
    try:
        AdminClient(quiet)
        Consumer({**quiet, "group.id": "none"}).close()
    except KafkaException as error:
        text = str(error.args[0].str())
        return text.removeprefix("Failed to create admin client: ").removeprefix("Failed to create consumer: ")
    except TypeError as error:  # a key that expects a callback
        return str(error)
    return None


def new_client(kind: Callable[[dict[str, Any]], T], settings: Mapping[str, Any]) -> T:
    """Make a client of this kind.

    Raises:
        ConfigurationError: librdkafka refuses a setting that `fault` did not see: one that only this kind looks at, or
            a file that has changed since.

    """
    try:
        return kind(dict(settings))
    except KafkaException as error:
        raise ConfigurationError(f"no client of Kafka at {settings[BOOTSTRAP]}: {error.args[0].str()}") from None


class ConnectionErrors:
    """Collects the connection and authentication errors of one client, for use in error messages."""

    def __init__(self) -> None:
        """Begin without errors."""
        self._first: str | None = None

    def settings(self, kafka: Mapping[str, str]) -> dict[str, Any]:
        """Return client settings that report errors here instead of on stderr."""
        return {"log_level": 0, **kafka, "error_cb": self.record}

    def record(self, error: KafkaError) -> None:
        """Record an error; a client's `error_cb`."""
        if self._first is None:
            self._first = error.str()

    def drain(self, client: Consumer | Producer | AdminClient) -> str:
        """Forget all errors; return the first one as a suffix for a message, ` (…)`, or an empty text."""
        client.poll(0)  # runs the pending callbacks
        first, self._first = self._first, None
        return "" if first is None else f" ({first})"
