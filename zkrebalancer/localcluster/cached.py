"""Folders of the user's cache that are made once, by the process that needs them first."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.locks import locked

LOCK_DEADLINE_S = 900.0  # the other process may be fetching jars, or building

_log = logging.getLogger(__name__)


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
        with _beside(folder) as partial:
            make(partial)


@contextmanager
def made_by_one(folder: Path) -> Iterator[Path | None]:
    """Give the block an empty folder, which becomes `folder` when the block ends, unless the block has removed it.

    None if there is nothing to do: `folder` exists, another process is making it, or the cache cannot be written. If it
    no longer can when the block ends, `folder` is missing, with a warning.
    """
    with ExitStack() as stack:
        partial = None
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder.with_name(f"{folder.name}.lock"), 0.0))
            if not folder.is_dir():
                partial = stack.enter_context(_beside(folder))
        except (LocalClusterError, OSError):
            pass
        yield partial
        try:
            stack.close()
        except OSError as error:
            _log.warning("%s cannot be kept: %s", folder, error)


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed run
    partial.mkdir()
    try:
        yield partial
        if partial.is_dir():
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
