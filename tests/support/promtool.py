"""Finds Prometheus and promtool: the installed ones, or Debian's, which are kept unpacked in the user's cache."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from zkrebalancer.localcluster.cached import make_once
from zkrebalancer.localcluster.jars import JarSource

DOWNLOAD_LIMIT_S = 120
PROGRAMS = ("prometheus", "promtool")


def find_promtool() -> str | None:
    """Return the checker; None if it is not installed and cannot be downloaded."""
    found = _find("promtool")
    return None if found is None else str(found)


def find_prometheus() -> Path | None:
    """Return the server, with `promtool` beside it; None if there is none and none can be downloaded."""
    return _find("prometheus")


def _find(program: str) -> Path | None:
    installed = shutil.which(program)
    if installed is not None:
        return Path(installed)
    if shutil.which("apt-get") is None:
        return None
    cache = JarSource.of(None, None, lambda _line: None).cache
    kept = cache / "debian-prometheus"
    try:  # to download and unpack takes 2 s of processor time
        make_once(kept, cache / "debian-prometheus.lock", _download, lambda _line: None)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    found = kept / program
    return found if found.exists() else None


def _download(folder: Path) -> None:
    unpacked = folder / "unpacked"
    download = ["apt-get", "--quiet", "download", "prometheus"]
    subprocess.run(download, cwd=folder, capture_output=True, timeout=DOWNLOAD_LIMIT_S, check=True)
    for package in folder.glob("prometheus_*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(unpacked)], capture_output=True, check=True)
        package.unlink()
    for program in PROGRAMS:
        (unpacked / "usr" / "bin" / program).rename(folder / program)
    shutil.rmtree(unpacked)
