"""Group tests of other projects' clients against a gateway: the quickest of them here, all in `make conformance`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zkrebalancer.localcluster.server import child_environment

WITHIN_S = 1_700.0


def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    environment = {**child_environment(), "PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "tests.conformance", "--test", "TestGroupSimple"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=WITHIN_S, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "Error: there is no go")


@pytest.mark.long
@pytest.mark.timeout(1_800)  # the first run fetches and builds franz-go
@pytest.mark.skipif(shutil.which("go") is None, reason="franz-go's tests are built with Go")
def test_the_quickest_of_franz_gos_group_tests() -> None:
    command = [sys.executable, "-m", "tests.conformance", "--test", "TestGroupSimple", "--assign", "client"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=child_environment(), timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    assert line.split()[:4] == ["client", "franz-go", "TestGroupSimple", "passed"]
