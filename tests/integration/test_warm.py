"""The forks that stand for a scenario's processes end with the test process, also when that is killed."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import suppress

from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster.ports import HOST

TEST_PROCESS = f"""
import sys
from tests.support.warm import starter
child = starter().begin(["http.server", "--bind", "{HOST}", "0"], 2, 2)
print(child.pid, flush=True)
sys.stdin.read()  # for ever
"""


def test_a_killed_test_process_leaves_no_child() -> None:
    """In `warm.serve`, end without the children."""
    with subprocess.Popen(
        [sys.executable, "-c", TEST_PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as one:
        assert one.stdout is not None
        pid = int(one.stdout.readline())
        child = os.pidfd_open(pid)
        try:
            one.kill()
            ended, _, _ = select.select([child], [], [], WITHIN_S)
            assert ended
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
            os.close(child)
