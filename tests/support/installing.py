"""Installs what later tests need while others run: to fetch an engine and a browser takes minutes, each of a worker.

`python -m tests.support.installing FILE…` installs for these files of tests. What cannot be installed, the tests tell.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

PROVIDERS = {  # of a file of tests: a module, which only the new process imports, and its function
    "test_hosts.py": ("tests.support.docker_engine", "provide"),
    "test_pages.py": ("tests.support.browser", "require_browser"),
}
FIRST_WORKER = "gw0"


def begin(config: pytest.Config, files: Iterable[Path]) -> subprocess.Popen[bytes] | None:
    """Begin to install for these files, if this is one of several workers, the first; a single process need not."""
    wanted = sorted({file.name for file in files} & PROVIDERS.keys())
    if not wanted or getattr(config, "workerinput", {}).get("workerid") != FIRST_WORKER:
        return None
    return subprocess.Popen([sys.executable, "-m", __name__, *wanted], stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with suppress(pytest.skip.Exception):
            module, function = PROVIDERS[name]
            getattr(importlib.import_module(module), function)()
