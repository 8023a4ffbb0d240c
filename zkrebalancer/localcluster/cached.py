"""Folders of the user's cache that are made once, by the process that needs them first."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from zkrebalancer.localcluster.locks import locked

LOCK_DEADLINE_S = 900.0  # the other process may be fetching jars, or building


def make_once(folder: Path, lock: Path, make: Callable[[Path], None], report: Callable[[str], None]) -> None:
    """Unless `folder` exists, call `make` with an empty folder beside it, and rename that one when it is complete.

    Raises:
        LocalClusterError: another process still has the lock after LOCK_DEADLINE_S.
        OSError: the cache cannot be written.

    """
    if folder.is_dir():  # before the lock: another process may make something else for minutes
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock, LOCK_DEADLINE_S, report):
        if folder.is_dir():
            return
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed run
        partial.mkdir()
        try:
            make(partial)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
