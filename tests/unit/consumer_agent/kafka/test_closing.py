"""Kafka's clients are closed in a thread of their own, and never in one that belongs to a client."""

from __future__ import annotations

import threading
from typing import Any
from unittest import mock

from consumer_agent.kafka import client
from consumer_agent.kafka.client import close_aside
from consumer_agent.runtime.threads import Thread
from tests.support.waiting import wait_until


class Client:
    """Notes the thread that frees it."""

    def __init__(self, closed: list[str]) -> None:
        self._closed = closed

    def __del__(self) -> None:
        self._closed.append(threading.current_thread().name)


def test_clients_that_cannot_be_closed_now_are_closed_with_the_next_ones() -> None:
    """A callback may run in a thread of librdkafka, which aborts the process if that closes its own client."""
    closed: list[str] = []
    clients: list[Any] = [Client(closed)]
    with mock.patch.object(Thread, "start", side_effect=RuntimeError("can't start new thread")):
        close_aside(clients)
    assert (clients, closed, len(client._unclosed)) == ([], [], 1)
    close_aside([Client(closed)])  # type: ignore[list-item]
    wait_until(lambda: len(closed) >= 2, "both are closed")
    assert (closed, client._unclosed) == (["consumer-agent-closing"] * 2, [])
