"""Who asked for what, on which host, and when: as a line of the command's log, and in the group's settings."""

from __future__ import annotations

import getpass
import logging
import os
import platform

from zkrebalancer.protocol.last_change import MAX_WHAT, MAX_WHO, LastChange, printable
from zkrebalancer.runtime import clock

_log = logging.getLogger(__name__)


def change(what: str) -> LastChange:
    """Return what this process's user does to a group, to be written into the group's settings with the change."""
    return LastChange(printable(_who(), MAX_WHO), clock.epoch_ms(), printable(what, MAX_WHAT))


def record(what: str) -> None:
    """Log what an operator has done, as a warning, so that commands show it by default."""
    _log.warning("audit: %s %s", _who(), what)


def _who() -> str:
    return f"{_user()}@{platform.node()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())
