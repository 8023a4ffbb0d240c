"""How tests wait for what other threads, processes and servers do."""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent

from tests.support.deadlines import WITHIN_S


def wait_until(is_so: Callable[[], object], what: str | Callable[[], str], within_s: float = WITHIN_S) -> None:
    """Let others run until it is so; `what` describes a failure, also as it is at the end of the wait."""
    began_s = time.monotonic()
    while not is_so():
        waited_s = time.monotonic() - began_s
        assert waited_s < within_s, f"waited {within_s:g} s: {what if isinstance(what, str) else what()}"
        gevent.sleep(max(0.001, min(0.5, waited_s / 20)))  # what takes long is asked for less often
