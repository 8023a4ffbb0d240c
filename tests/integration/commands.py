"""The two commands as a user runs them: as processes, with what they print and their exit code."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import gevent

from zkrebalancer.localcluster.server import child_environment

DEADLINE_S = 60.0
Result = subprocess.CompletedProcess[str]


def begin(program: str, *arguments: object, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    """Begin `zkrebalancer` or `consumer-agent`."""
    module = {"zkrebalancer": "zkrebalancer.cli.main", "consumer-agent": "consumer_agent.sidecar.cli"}[program]
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
        start_new_session=True,
    )


def end(process: subprocess.Popen[str], deadline_s: float = DEADLINE_S) -> Result:
    """Wait for the end of a process, while the test's ZooKeeper session lives on.

    In a thread: gevent's own `Popen` takes the exit codes of all children from then on, and the others' read as 0.
    """
    try:
        out, err = gevent.get_hub().threadpool.apply(process.communicate, (), {"timeout": deadline_s})
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(program: str, *arguments: object) -> Result:
    """Run a command to its end."""
    return end(begin(program, *arguments))


def run_all(commands: list[tuple[object, ...]]) -> list[Result]:
    """Run commands at the same time; the first of each is the program."""
    return [end(process) for process in [begin(str(program), *arguments) for program, *arguments in commands]]


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal, or waits for it: one that is just being started does neither."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigCgt:", "SigBlk:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)
