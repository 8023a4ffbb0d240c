"""A lock between processes: a file that the kernel unlocks when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from zkrebalancer.localcluster.errors import LocalClusterError

ASK_INTERVAL_S = 0.1


@contextmanager
def locked(path: Path, deadline_s: float, report: Callable[[str], None] = lambda _line: None) -> Iterator[None]:
    """Hold the lock file while the block runs; `report` is told once if another process holds it.

    Raises:
        LocalClusterError: another process still holds it after `deadline_s`.
        OSError: the file cannot be opened.

    """
    give_up_at = time.monotonic() + deadline_s
    has_told = False
    with path.open("w") as file:
        while not _take(file.fileno()):
            if not has_told:
                report(f"waiting for another zkrebalancer that holds {path}")
                has_told = True
            if time.monotonic() > give_up_at:
                raise LocalClusterError(f"another zkrebalancer holds {path} (waited {deadline_s:g} s)")
            time.sleep(ASK_INTERVAL_S)
        yield


def _take(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
