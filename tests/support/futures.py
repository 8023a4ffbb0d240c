"""Futures as Kafka's client returns them, which have ended already."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any


def ended(result: object) -> Future[Any]:
    """Return a future with this result; an exception is what it raises."""
    future: Future[Any] = Future()
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future
