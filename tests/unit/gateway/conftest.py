"""Connections to a gateway, on real sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.gateway.wire import Broker, Open, Wire


@pytest.fixture
def connect() -> Iterator[Open]:
    """Return a function that opens a connection to a gateway whose broker is a function."""
    opened: list[Wire] = []

    def open_one(broker: Broker, *, with_tls: bool = False, asks_for_rights: bool = False) -> Wire:
        opened.append(Wire(broker, with_tls=with_tls, asks_for_rights=asks_for_rights))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
