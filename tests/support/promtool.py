"""Prometheus' own checker of rules: the installed one, or Debian's, unpacked without installing it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

DOWNLOAD_LIMIT_S = 120


def find_promtool(folder: Path) -> str | None:
    """Return the program; None if it is not installed and cannot be downloaded to `folder`."""
    installed = shutil.which("promtool")
    if installed is not None or shutil.which("apt-get") is None:
        return installed
    try:
        download = ["apt-get", "--quiet", "download", "prometheus"]
        subprocess.run(download, cwd=folder, capture_output=True, timeout=DOWNLOAD_LIMIT_S, check=True)
        for package in folder.glob("prometheus_*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(folder)], capture_output=True, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    found = folder / "usr" / "bin" / "promtool"
    return str(found) if found.exists() else None
