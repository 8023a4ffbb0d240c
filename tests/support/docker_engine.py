"""A Docker engine of a test's own, in a folder of its own, and a base image from this machine's files.

It does not touch an engine that runs already. It adds no bridge, no firewall rule and no forwarding to this machine's
network; networks that a test creates are removed with it. `python -m tests.support.docker_engine FOLDER` runs the
engine; it ends when the process that started it does, even by SIGKILL, and removes all containers, networks, control
groups and files.
"""

from __future__ import annotations

import io
import os
import select
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster.locks import locked
from zkrebalancer.localcluster.server import child_environment

PYTHON = Path(sys.base_prefix)
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
SKIPPED = frozenset({"__pycache__", "idlelib", "tkinter", "lib2to3"})
EXPECTED = frozenset(  # by wheels
    {"libstdc++.so.6", "libgcc_s.so.1", "librt.so.1", "libpthread.so.0", "libdl.so.2", "libresolv.so.2"}
)
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
CONTROL_GROUPS = Path("/sys/fs/cgroup")
PROGRAMS = ("docker", "dockerd", "runc", "iptables", "ldd")
INSTALL = ["apt-get", "install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"]
INSTALL_DEADLINE_S = 600.0
# Of processor time on a busy machine, for all containers together: as four processes. One group counts as one process.
WEIGHTS = {"cpu/{}/cpu.shares": "4096", "{}/cpu.weight": "400"}
PARENT_CHECK_INTERVAL_S = 0.5  # a fork of the owner may keep its end of the pipe open


def provide(*others: str) -> None:
    """Install Docker's programs if they are missing, and this is root on Debian; skip the test if that cannot be.

    `others`: more programs, each from the package of its name.
    """
    needed, packages = (*PROGRAMS, *others), ["docker.io", *others]
    if os.geteuid():
        pytest.skip("only root can start a Docker engine")
    with locked(Path(tempfile.gettempdir(), "zkrebalancer-install.lock"), INSTALL_DEADLINE_S):
        if _missing(needed) and shutil.which("apt-get"):
            sys.stderr.write(f"installing a Docker engine: {' '.join(packages)}\n")
            for command in (["apt-get", "update"], [*INSTALL, *packages]):
                subprocess.run(command, capture_output=True, check=False, timeout=INSTALL_DEADLINE_S)
    if missing := _missing(needed):
        pytest.skip(f"no {missing[0]}: apt-get install {' '.join(packages)}")


def _missing(programs: Iterable[str]) -> list[str]:
    return [name for name in programs if shutil.which(name) is None]


class Engine:
    """A running engine; `docker` runs a command of its client."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix://{folder / 'docker.sock'}"
        self._environment = {**os.environ, "DOCKER_HOST": self.address, "DOCKER_BUILDKIT": "0"}

    def docker(self, *arguments: str, stdin: bytes | None = None) -> str:
        """Run a command; return its output, or fail with what it wrote."""
        done = subprocess.run(
            ["docker", *arguments], env=self._environment, input=stdin, capture_output=True, check=False
        )
        assert done.returncode == 0, f"docker {arguments}: {(done.stdout + done.stderr).decode()[-4_000:]}"
        return done.stdout.decode().strip()

    def run(self, line: str, folder: Path, **variables: str) -> str:
        """Run a line in a shell, in which `docker` and its like use this engine; return its output, or fail with it."""
        environment = {**self._environment, **variables}
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {(done.stdout + done.stderr).decode()[-4_000:]}"
        return done.stdout.decode()

    def answers(self) -> bool:
        """Whether the engine serves its client."""
        done = subprocess.run(["docker", "version"], env=self._environment, capture_output=True, check=False)
        return done.returncode == 0


@contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """Start an engine; at the end, stop its containers and itself, and delete the folder."""
    command = [sys.executable, "-m", __name__, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment(), start_new_session=True
    ) as owner:
        assert owner.stdout is not None
        try:
            assert owner.stdout.readline() == b"ready\n", "the engine did not start"
            yield Engine(folder)
        finally:
            owner.communicate(timeout=WITHIN_S)  # closes the pipe, at which it ends
    assert owner.returncode == 0, "the engine was not removed"


def main(folder: Path, owner_pid: int) -> None:
    """Run an engine until the owner is gone, or closes the pipe."""
    with _running(folder):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while os.getppid() == owner_pid and not select.select([0], [], [], PARENT_CHECK_INTERVAL_S)[0]:
            pass


@contextmanager
def _running(folder: Path) -> Iterator[None]:
    group = folder.name  # of control groups
    options = {"data-root": folder / "data", "exec-root": folder / "exec", "pidfile": folder / "pid"}
    flags = [f"--{name}={value}" for name, value in options.items()]
    flags += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"]
    flags += [f"--cgroup-parent=/{group}", "--exec-opt=native.cgroupdriver=cgroupfs"]
    started = Engine(folder)
    _give_weight(group)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["dockerd", *flags, f"--host={started.address}"], stdout=log, stderr=log)
    try:
        give_up_at = time.monotonic() + WITHIN_S
        while not started.answers():
            assert process.poll() is None, (folder / "log").read_text()[-4_000:]
            assert time.monotonic() < give_up_at, "the engine does not answer"
            time.sleep(0.1)
        yield
        if containers := started.docker("ps", "--all", "--quiet").split():
            started.docker("rm", "--force", "--volumes", *containers)  # all at once: one may take half a minute
        for network in started.docker("network", "ls", "--quiet", "--filter=type=custom").split():
            started.docker("network", "rm", network)
    finally:
        process.terminate()
        process.wait(WITHIN_S)
        subprocess.run(["umount", folder / "exec" / "netns" / "default"], capture_output=True, check=False)
        for left in (*CONTROL_GROUPS.glob(group), *CONTROL_GROUPS.glob(f"*/{group}")):
            left.rmdir()
        shutil.rmtree(folder)


def _give_weight(group: str) -> None:
    """Create the control group that the engine's containers share, and weigh it, where the machine allows it."""
    for pattern, weight in WEIGHTS.items():
        file = CONTROL_GROUPS / pattern.format(group)
        if (CONTROL_GROUPS / "cpu").is_dir() == pattern.startswith("cpu/"):
            file.parent.mkdir()
            if file.exists():
                file.write_text(weight)


def import_base(engine: Engine, name: str) -> None:
    """Make an image of this machine's Python, its shell, and the libraries that they need."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(PYTHON / "bin" / VERSION, f"usr/local/bin/{VERSION}")
        _link(tar, "usr/local/bin/python3", VERSION)
        tar.add(PYTHON / "lib" / VERSION, f"usr/local/lib/{VERSION}", filter=_wanted)
        tar.add(Path("/bin/sh").resolve(), "bin/sh")
        for library in _libraries():
            tar.add(library.resolve(), library.as_posix().lstrip("/"))
        for file in (CERTIFICATES, "/etc/pip.conf"):
            if Path(file).exists():
                tar.add(file, file.lstrip("/"))
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(folder)
    path = "ENV PATH=/usr/local/bin:/usr/bin:/bin"
    engine.docker("import", "--change", path, "-", name, stdin=archive.getvalue())


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = Path(entry.name).parts
    is_foreign = "site-packages" in parts[:-1] and not parts[parts.index("site-packages") + 1].startswith("pip")
    return None if is_foreign or SKIPPED & {*parts} or parts[4:5] == ("test",) else entry


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    tar.addfile(entry)


def libraries_of(*programs: str) -> set[str]:
    """Return the paths of the shared libraries that programs need."""
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    words = (word for line in listed.splitlines() for word in line.split())
    return {word for word in words if word[0] == "/" and word[-1] != ":" and ".so" in word}


def _libraries() -> list[Path]:
    """Return the shared libraries of Python, of its modules, of the shell, and those of C++ that wheels expect."""
    modules = [str(path) for path in (PYTHON / "lib" / VERSION / "lib-dynload").glob("*.so")]
    found = libraries_of(str(Path("/bin/sh").resolve()), str(PYTHON / "bin" / VERSION), *modules)
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    native = [line for line in cache.splitlines() if "x86-64" in line or "aarch64" in line or "AArch64" in line]
    found |= {line.split()[-1] for line in native if line.split()[0] in EXPECTED}
    return [Path(name) for name in sorted(found)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), os.getppid())
