"""A small disk for one ZooKeeper server, which can be filled: a detached tmpfs.

It is mounted, opened and unmounted at once; the server uses it through this process's open descriptor. No clean-up is
needed: it vanishes with the last process that uses it.
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
    """The disk for the log and snapshots of one ZooKeeper server."""

    def __init__(self, server: Server, data: Path) -> None:
        """Move a server's data folder onto the disk, and restart the server.

        Raises:
            LocalClusterError: it cannot be mounted (this needs root).

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
        """Fill all free space."""
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
        """Free the space."""
        (self._root / FILLER).unlink()

    def close(self) -> None:
        """Release the disk, after its server has ended."""
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
