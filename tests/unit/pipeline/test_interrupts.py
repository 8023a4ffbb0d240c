"""An interrupt ends every process that was started, also one that appears meanwhile."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from tests.support.command import processes_naming
from zkrebalancer.pipeline.interrupts import interruptible

# Starts a child every other millisecond, as no program does, so that some start while the processes are listed.
PROLIFIC = """
import subprocess, sys, time
for _ in range(200):
    subprocess.Popen(["sh", "-c", "read line", sys.argv[1]])
    print(flush=True)
    time.sleep(0.002)
input()
"""


@pytest.fixture(autouse=True)
def logs_again() -> Iterator[None]:
    """Let later tests log again: an interrupted command switches logging off in this process."""
    yield
    logging.disable(logging.NOTSET)


def test_a_process_that_starts_others_leaves_none(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            start_and_interrupt([sys.executable, "-c", PROLIFIC, str(mark)])
        assert processes_naming(mark) == []
    finally:
        for process in processes_naming(mark):
            process.kill()


def start_and_interrupt(command: list[str]) -> None:
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE) as prolific:
        assert prolific.stdout is not None
        for _ in range(10):
            prolific.stdout.readline()
        signal.raise_signal(signal.SIGINT)


def test_processes_of_before_stay() -> None:
    with subprocess.Popen(["sleep", "60"]) as before:
        with pytest.raises(KeyboardInterrupt), interruptible():
            signal.raise_signal(signal.SIGINT)
        assert psutil.Process(before.pid).is_running()
        before.kill()
