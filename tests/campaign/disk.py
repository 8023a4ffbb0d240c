"""A small disk for one ZooKeeper server, which can be filled: a tmpfs that is mounted nowhere.

It is mounted, opened and unmounted at once; the server reaches it through this process's open descriptor. So nothing
has to be cleaned up: it is gone with the last process that uses it, however that one ends.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.server import Server

SIZE_MB = 512
CHUNK_BYTES = 1 << 20
FILLER = "filler"


class SmallDisk:
    """Where one ZooKeeper server keeps its log and snapshots."""

    def __init__(self, server: Server, data: Path) -> None:
        """Move the data folder of a server onto a disk of its own; the server is restarted.

        Raises:
            LocalClusterError: it cannot be mounted (it takes root).

        """
        self.server = server
        self._descriptor = _open_tmpfs(data.with_name(f"{data.name}.disk"))
        self._root = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        server.kill()
        shutil.copytree(data, self._root / "data")
        shutil.rmtree(data)
        data.symlink_to(self._root / "data")
        server.start()

    def fill(self) -> None:
        """Leave no byte free."""
        with (self._root / FILLER).open("ab", buffering=0) as file:
            size = CHUNK_BYTES
            while size:
                try:
                    file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def clear(self) -> None:
        """Make room again."""
        (self._root / FILLER).unlink()

    def close(self) -> None:
        """Let go of it, when its server has ended."""
        os.close(self._descriptor)


def _open_tmpfs(at: Path) -> int:
    at.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m,mode=700", "zkrebalancer-campaign", str(at))
        try:
            return os.open(at, os.O_RDONLY | os.O_DIRECTORY)
        finally:
            _run("umount", "--lazy", str(at))
    finally:
        at.rmdir()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LocalClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
