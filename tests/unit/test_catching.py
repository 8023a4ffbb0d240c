"""When a process of a test is ready for a signal."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.integration.commands import catches

BLOCK = "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {}); print(flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    ("blocked", "is_ready"),
    [("{signal.SIGTERM}", True), ("{signal.SIGHUP}", False), ("signal.valid_signals()", False)],
    ids=["waits for it", "blocks another one", "begins a thread"],
)
def test_a_process_that_begins_a_thread_is_not_ready_yet(blocked: str, is_ready: bool) -> None:
    command = [sys.executable, "-c", BLOCK.format(blocked)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert catches(process.pid, signal.SIGTERM) is is_ready
        process.communicate()
