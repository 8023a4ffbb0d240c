"""Group tests of other projects' clients against a gateway: the quickest of them here, all in `make conformance`."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from zkrebalancer.localcluster.server import child_environment

WITHIN_S = 1_700.0


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
