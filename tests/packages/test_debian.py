"""The Debian package, built and judged by lintian, is installed in a clean system, runs there, and leaves nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.style.sources import ROOT
from tests.support.answers import get
from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import HOST, free_ports

MIRROR = "http://deb.debian.org/debian"
# What apt and dpkg write for any package.
BOOKKEEPING = (
    "/var/cache/",
    "/var/lib/apt/",
    "/var/lib/dpkg/",
    "/var/log/apt/",
    "/var/log/dpkg.log",
    "/var/log/alternatives.log",
)
ELSEWHERE = ("/proc/", "/sys/", "/dev/", "/tmp/", "/run/")


def obstacle() -> str | None:
    """Say why no package can be built and installed here, if so."""
    release = Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else ""
    if os.geteuid() or "\nID=debian" not in release:
        return "only root on Debian can install the build tools and a clean system"
    return None


pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3_600),
    pytest.mark.skipif(obstacle() is not None, reason=str(obstacle())),
]


def run(*command: object) -> str:
    """Run a command; return what it writes, or fail with it."""
    done = subprocess.run(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-6_000:]}"
    return done.stdout


def provide(tool: str) -> None:
    """Install a tool that is missing, from the package of its name."""
    if shutil.which(tool) is None:
        run("apt-get", "update")
        run("apt-get", "install", "--yes", "--no-install-recommends", tool)


@pytest.fixture(scope="session")
def deb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, ROOT / "deploy/packages.py", "--out", out)
    assert len(list(out.glob("*.whl"))) == 1
    (package,) = out.glob("*.deb")
    return package


@pytest.fixture
def clean(tmp_path: Path) -> Iterator[Path]:
    """Install a clean system of the same release, with this machine's sources of packages."""
    provide("debootstrap")
    codename = run("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME").strip()
    root = tmp_path / "root"
    run("debootstrap", "--variant=minbase", codename, root, MIRROR)
    for mounted in ("proc", "dev"):
        run("mount", "--rbind", f"/{mounted}", root / mounted)
    yield root
    for mounted in ("proc", "dev"):
        run("mount", "--make-rslave", root / mounted)
        run("umount", "--recursive", root / mounted)
    shutil.rmtree(root)


def files(root: Path) -> set[str]:
    """Return every file of a system, without what apt and dpkg note of each package."""
    found = run("find", root, "-xdev").splitlines()
    names = {name.removeprefix(str(root)) for name in found}
    return {name for name in names if not f"{name}/".startswith((*BOOKKEEPING, *ELSEWHERE))}


def test_lintian_has_nothing_to_say(deb: Path) -> None:
    provide("lintian")
    assert run("lintian", "--allow-root", "--fail-on=error,warning", "--info", deb) == ""


def test_it_is_installed_runs_and_leaves_nothing(deb: Path, clean: Path, tmp_path: Path) -> None:
    chroot = ("chroot", clean, "env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
    run(*chroot, "apt-get", "update")
    # What it depends on stays, so it is there before.
    needed = run("dpkg-deb", "--field", deb, "Depends")
    names = [one.split()[0] for one in needed.split(",")]
    run(*chroot, "apt-get", "install", "--yes", "--no-install-recommends", *dict.fromkeys(names))
    before = files(clean)
    shutil.copy(deb, clean / deb.name)
    run(*chroot, "apt-get", "install", "--yes", f"/{deb.name}")
    (clean / deb.name).unlink()
    assert run(*chroot, "zkrebalancer", "--version").startswith("zkrebalancer, version ")
    assert "run" in run(*chroot, "consumer-agent", "--help")
    assert len(unit_names(clean)) == 4
    with LocalCluster(broker="none", directory=tmp_path / "cluster") as cluster:
        check_coordinator(clean, cluster.zookeeper)
    run(*chroot, "apt-get", "purge", "--yes", "zkrebalancer")
    assert files(clean) - before == set()


def unit_names(root: Path) -> list[str]:
    """Return the units that the package has installed."""
    found = [path.name for path in (root / "lib/systemd/system").glob("*.service")]
    return [name for name in found if name.startswith(("zkrebalancer-", "consumer-agent@"))]


def check_coordinator(root: Path, zookeeper: str) -> None:
    """Run a coordinator in the installed system, with its own file of settings, as its unit does."""
    http = f"{HOST}:{free_ports(1)[0]}"
    settings = root / "etc/zkrebalancer/coordinator.toml"
    settings.write_text(f'zookeeper = "{zookeeper}"\nbroker_id = 9\nhttp = "{http}"\n')
    secrets = "/etc/zkrebalancer/coordinator.secrets.toml"
    assert (root / secrets[1:]).stat().st_mode & 0o777 == 0o600
    (start,) = [
        line.removeprefix("ExecStart=")
        for line in (root / "lib/systemd/system/zkrebalancer-coordinator.service").read_text().splitlines()
        if line.startswith("ExecStart=")
    ]
    command = start.replace("${CREDENTIALS_DIRECTORY}/secrets.toml", secrets).split()
    process = subprocess.Popen(
        ["chroot", str(root), *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        give_up_at = time.monotonic() + WITHIN_S
        while get(http, "leader")[0] != 200:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < give_up_at, "it does not lead"
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN_S) == 0
    finally:
        process.kill()
        process.communicate()
