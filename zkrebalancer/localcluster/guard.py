"""Ends a cluster whose holder died without stopping it, be it by SIGKILL: nothing may outlive the holder.

`python -m zkrebalancer.localcluster.guard DIRECTORY HOLDER_PID`, begun by the holder with a pipe as standard input.
When the holder is gone (end of the pipe, or another parent), the guard ends what the state file names. The word
RELEASE on the pipe means that the cluster shall stay. A parent-death signal would not do: it fires when the thread
that began the server ends, and it cannot remove the folder.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

from zkrebalancer.localcluster.state import end_cluster

RELEASE = b"release"
PARENT_CHECK_INTERVAL_S = 0.5  # a forked child of the holder may keep the pipe open


def watch(directory: Path, holder_pid: int) -> None:
    """Wait for the holder's end or its release, then act."""
    received = b""
    while os.getppid() == holder_pid:
        if select.select([0], [], [], PARENT_CHECK_INTERVAL_S)[0]:
            chunk = os.read(0, len(RELEASE))
            received += chunk
            if not chunk:
                break
    if received != RELEASE:
        end_cluster(directory)


if __name__ == "__main__":
    watch(Path(sys.argv[1]), int(sys.argv[2]))
