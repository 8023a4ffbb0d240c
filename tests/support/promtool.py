"""Finds Prometheus and promtool: the installed ones, or Debian's, unpacked into a folder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

DOWNLOAD_LIMIT_S = 120


def find_promtool(folder: Path) -> str | None:
    """Return the checker; None if it is not installed and cannot be downloaded to `folder`."""
    found = _find("promtool", folder)
    return None if found is None else str(found)


def find_prometheus(folder: Path) -> Path | None:
    """Return the server, with `promtool` beside it; None if there is none and none can be downloaded to `folder`."""
    return _find("prometheus", folder)


def _find(program: str, folder: Path) -> Path | None:
    installed = shutil.which(program)
    if installed is not None:
        return Path(installed)
    if shutil.which("apt-get") is None:
        return None
    try:
        download = ["apt-get", "--quiet", "download", "prometheus"]
        subprocess.run(download, cwd=folder, capture_output=True, timeout=DOWNLOAD_LIMIT_S, check=True)
        for package in folder.glob("prometheus_*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(folder)], capture_output=True, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    found = folder / "usr" / "bin" / program
    return found if found.exists() else None
