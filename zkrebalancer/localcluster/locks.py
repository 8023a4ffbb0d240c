"""A lock between processes: a locked file, which the kernel unlocks when the locking process ends."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from zkrebalancer.localcluster.errors import LocalClusterError

ASK_INTERVAL_S = 0.1
LOCK = ".lock"


@contextmanager
def locked(path: Path, deadline_s: float, report: Callable[[str], None] = lambda _line: None) -> Iterator[None]:
    """Lock the file while the block runs; call `report` once if another process has locked it.

    Raises:
        LocalClusterError: another process still has the lock after `deadline_s`.
        OSError: the file cannot be opened.

    """
    give_up_at = time.monotonic() + deadline_s
    is_reported = False
    with path.open("w") as file:
        while not _try_lock(file.fileno()):
            if not is_reported:
                report(f"waiting for another zkrebalancer, which has locked {path}")
                is_reported = True
            if time.monotonic() > give_up_at:
                raise LocalClusterError(f"another zkrebalancer has locked {path} (waited {deadline_s:g} s)")
            time.sleep(ASK_INTERVAL_S)
        yield


def folder_locked(folder: Path) -> AbstractContextManager[None]:
    """Lock a folder of results against other commands that write there, as `locked` does, without waiting."""
    return locked(folder / LOCK, 0.0)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
