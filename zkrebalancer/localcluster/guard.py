"""Kills a cluster's processes if the process that started it dies without stopping it, even by SIGKILL.

`python -m zkrebalancer.localcluster.guard DIRECTORY OWNER_PID`, spawned by the owner with a pipe as standard input.
When the owner is gone (end of the pipe, or a new parent), the guard kills the processes in the state file and removes
the folder. The message RELEASE on the pipe keeps the cluster running. A parent-death signal is no alternative: it fires
when the spawning thread ends, and it cannot remove the folder.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

from zkrebalancer.localcluster.state import end_cluster

RELEASE = b"release"
PARENT_CHECK_INTERVAL_S = 0.5  # needed because a forked child of the owner may keep the pipe open


def watch(directory: Path, owner_pid: int) -> None:
    """Wait until the owner ends or releases the cluster; kill the cluster unless it was released."""
    received = b""
    while os.getppid() == owner_pid:
        if select.select([0], [], [], PARENT_CHECK_INTERVAL_S)[0]:
            chunk = os.read(0, len(RELEASE))
            received += chunk
            if not chunk:
                break
    if received != RELEASE:
        end_cluster(directory)


if __name__ == "__main__":
    watch(Path(sys.argv[1]), int(sys.argv[2]))
