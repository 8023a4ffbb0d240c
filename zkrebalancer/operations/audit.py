"""Audit lines: who asked for what, on which host. The log adds when."""

from __future__ import annotations

import getpass
import logging
import os
import platform

_log = logging.getLogger(__name__)


def record(what: str) -> None:
    """Log what an operator has done, as a warning, so that commands show it by default."""
    _log.warning("audit: %s@%s %s", _user(), platform.node(), what)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())
