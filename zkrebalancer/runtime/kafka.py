"""Clients of Kafka: what is wrong with their settings, and why one gets no answer.

A client is made of librdkafka's settings, texts by key: `bootstrap.servers`, and what the user has set besides. When no
broker can be reached, or none lets it in, librdkafka says that time is up; the reason it tells to a callback only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

BOOTSTRAP = "bootstrap.servers"


def fault(settings: Mapping[str, str]) -> str | None:
    """Say why a client cannot be made of these settings, None if it can; nothing is connected."""
    quiet: dict[str, Any] = {**settings, "log_level": 0}
    try:
        AdminClient(quiet)
        Consumer({**quiet, "group.id": "none"}).close()
    except KafkaException as error:
        text = str(error.args[0].str())
        return text.removeprefix("Failed to create admin client: ").removeprefix("Failed to create consumer: ")
    except TypeError as error:  # the name of a callback
        return str(error)
    return None


class Complaints:
    """What one client has heard of its brokers, and of the way to them."""

    def __init__(self) -> None:
        """Nothing is heard yet."""
        self._first: str | None = None

    def settings(self, kafka: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings of a client whose complaints come here, and not to stderr."""
        return {"log_level": 0, **kafka, "error_cb": self.hear}

    def hear(self, error: KafkaError) -> None:
        """Take a complaint, as a client's `error_cb`."""
        if self._first is None:
            self._first = error.str()

    def heard(self, client: Consumer | AdminClient) -> str:
        """Return what the client has heard first since it was last asked, in parentheses, to be added to an error."""
        client.poll(0)  # what was heard waits until then
        first, self._first = self._first, None
        return "" if first is None else f" ({first})"
