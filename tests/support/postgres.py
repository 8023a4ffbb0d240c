"""A PostgreSQL server of a test's own, in a folder of its own, reached by a socket in that folder.

It does not touch a server that runs already. PostgreSQL refuses to run as root; then it runs as `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster.locks import locked

USER = "nobody"
INSTALL = ["apt-get", "install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", "postgresql"]
INSTALL_DEADLINE_S = 600.0
ASK_INTERVAL_S = 0.02
# Its processes are killed, and this machine is not: nothing has to reach the disk.
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "40",
    "autovacuum": "off",
    "deadlock_timeout": "100ms",
}


class PostgresMissingError(Exception):
    """There is no PostgreSQL, and it cannot be installed."""


def find_programs() -> Path:
    """Return the folder of PostgreSQL's programs; as root on Debian, install them if they are missing.

    Raises:
        PostgresMissingError: they are missing.

    """
    found = _found()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        with locked(Path(tempfile.gettempdir(), "zkrebalancer-install.lock"), INSTALL_DEADLINE_S):
            if _found() is None:
                sys.stderr.write("installing PostgreSQL\n")
                for command in (["apt-get", "update"], INSTALL):
                    subprocess.run(command, capture_output=True, check=False, timeout=INSTALL_DEADLINE_S)
        found = _found()
    if found is None:
        raise PostgresMissingError("no PostgreSQL server: apt-get install postgresql")
    return found


def _found() -> Path | None:
    on_path = shutil.which("initdb")
    candidates = [Path(on_path).resolve().parent] if on_path else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((one for one in candidates if (one / "initdb").exists() and (one / "postgres").exists()), None)


def as_user() -> list[str]:
    """Return the command that runs another one without root's rights, and ends it with this process."""
    if os.geteuid():
        return []
    group = pwd.getpwnam(USER).pw_gid
    return ["setpriv", f"--reuid={USER}", f"--regid={group}", "--clear-groups", "--pdeathsig=INT", "--"]


def make_data(programs: Path, folder: Path) -> None:
    """Create an empty data folder, with a superuser `test` who needs no password."""
    folder.mkdir()
    if os.geteuid() == 0:
        shutil.chown(folder, USER, pwd.getpwnam(USER).pw_gid)
    options = ["--auth=trust", "--username=test", "--no-sync", "--no-instructions", "--locale=C", "--encoding=UTF8"]
    command = [*as_user(), str(programs / "initdb"), f"--pgdata={folder}", *options]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def server_command(programs: Path, folder: Path) -> list[str]:
    """Return the command that runs the server of a data folder."""
    settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
    return [*as_user(), str(programs / "postgres"), "-D", str(folder), "-k", str(folder), *settings]


def address(folder: Path) -> str:
    """Return how clients reach the server."""
    return f"host={folder} user=test dbname=postgres"


def is_ready(folder: Path) -> bool:
    """Whether the server answers."""
    try:
        with psycopg.connect(address(folder)):
            return True
    except psycopg.OperationalError:
        return False


@contextmanager
def postgres() -> Iterator[str]:
    """Run a server; yield its address. Skips the test if there is none."""
    try:
        programs = find_programs()
    except PostgresMissingError as missing:
        pytest.skip(str(missing))
    with tempfile.TemporaryDirectory(prefix="zkrebalancer-postgres-") as above:
        Path(above).chmod(0o711)
        folder = Path(above, "data")
        make_data(programs, folder)
        with (Path(above) / "log").open("wb") as log:
            server = subprocess.Popen(server_command(programs, folder), cwd="/", stdout=log, stderr=log)
        try:
            give_up_at = time.monotonic() + WITHIN_S
            while not is_ready(folder):
                assert server.poll() is None, (Path(above) / "log").read_text()
                assert time.monotonic() < give_up_at, "PostgreSQL does not answer"
                time.sleep(ASK_INTERVAL_S)
            yield address(folder)
        finally:
            server.terminate()
            server.wait()
