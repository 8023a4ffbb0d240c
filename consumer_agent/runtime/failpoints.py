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

_wanted, _, _count = os.environ.get(VARIABLE, "").partition(":")  # read once: some places are reached with every batch
_reached = 0


def reach(name: str) -> None:
    """Die as by `kill -9` if this is the place and the time."""
    global _reached  # noqa: PLW0603  # counts the one wanted place
    if name != _wanted:
        return
    _reached += 1
    if _reached == int(_count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
