"""Runs the two commands as processes, and returns their output and exit code.

They are forks of an interpreter that has imported the packages; `begin_cold` begins a new one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import gevent

from tests.support.deadlines import WITHIN_S
from tests.support.warm import WarmPopen, starter
from zkrebalancer.localcluster.server import child_environment

Result = subprocess.CompletedProcess[str]


def command_of(program: str, *arguments: object) -> list[str]:
    """Return the command line of `zkrebalancer` or `consumer-agent`."""
    module = {"zkrebalancer": "zkrebalancer.cli.main", "consumer-agent": "consumer_agent.sidecar.cli"}[program]
    return [sys.executable, "-m", module, *map(str, arguments)]


def begin(program: str, *arguments: object, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start `zkrebalancer` or `consumer-agent`; only what `WarmPopen` has may be used of it."""
    return cast("subprocess.Popen[str]", WarmPopen(command_of(program, *arguments)[2:], environment))


def begin_cold(program: str, *arguments: object, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    """Start it as a user's shell does, in a new interpreter."""
    return subprocess.Popen(
        command_of(program, *arguments),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
        start_new_session=True,
    )


def end(process: subprocess.Popen[str], deadline_s: float = WITHIN_S) -> Result:
    """Wait for the end of a process, and kill it if it does not end."""
    try:
        out, err = communicate(process, deadline_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def communicate(process: subprocess.Popen[str], deadline_s: float) -> tuple[str, str]:
    """Wait for the end of a process, keeping the test's ZooKeeper session alive; return its stdout and stderr.

    In a thread: gevent's `Popen` would collect the exit codes of all children, and those of others would read as 0.
    """
    out, err = gevent.get_hub().threadpool.apply(process.communicate, (), {"timeout": deadline_s})
    return out, err


def run(program: str, *arguments: object) -> Result:
    """Run a command to its end."""
    (result,) = run_all([(program, *arguments)])
    return result


def run_all(commands: list[tuple[object, ...]]) -> list[Result]:
    """Run commands at the same time; the first of each is the program."""
    return [command.result() for command in [WarmCommand(str(name), *arguments) for name, *arguments in commands]]


class WarmCommand:
    """A command that has begun; what it prints goes to files in memory."""

    def __init__(self, program: str, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        self._arguments = command_of(program, *arguments)
        self._outputs = [os.memfd_create(name) for name in ("out", "err")]
        self._process = starter().begin(self._arguments[2:], self._outputs[0], self._outputs[1], environment)

    def result(self) -> Result:
        """Wait for its end, while the test's ZooKeeper session lives on."""
        try:
            code = gevent.get_hub().threadpool.apply(self._process.wait, (WITHIN_S,))
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        texts = []
        for output in self._outputs:
            with open(output) as file:  # noqa: PTH123  # a descriptor has no path
                file.seek(0)
                texts.append(file.read())
        return subprocess.CompletedProcess(self._arguments, code, *texts)


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process handles a signal or waits for it, blocked; a starting process does neither.

    A process that begins a thread blocks all signals for a moment, which says nothing: one that waits blocks only some.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    lines = (line.split() for line in status.splitlines())
    masks = {words[0]: int(words[1], 16) for words in lines if words[0] in {"SigCgt:", "SigBlk:"}}
    if _has(masks["SigBlk:"], signal.SIGSEGV):
        return False
    return any(_has(mask, number) for mask in masks.values())


def _has(mask: int, number: signal.Signals) -> bool:
    return bool(mask >> (number - 1) & 1)
