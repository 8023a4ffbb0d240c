"""Lets a test kill this process at a named place.

CONSUMER_AGENT_FAILPOINT=NAME[:N] kills it, as `kill -9` does, when NAME is reached the N-th time.

Names: before-ack, after-ack (of a start-fetcher), before-stop-ack, after-stop-ack, before-commit, before-emit,
after-registration.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "CONSUMER_AGENT_FAILPOINT"
NAMES = (
    "before-ack",
    "after-ack",
    "before-stop-ack",
    "after-stop-ack",
    "before-commit",
    "before-emit",
    "after-registration",
)

_reached: dict[str, int] = {}


def reach(name: str) -> None:
    """Die as by `kill -9` if this is the place and the time."""
    wanted, _, count = os.environ.get(VARIABLE, "").partition(":")
    if wanted != name:
        return
    _reached[name] = _reached.get(name, 0) + 1
    if _reached[name] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
