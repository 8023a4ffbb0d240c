"""Runs a short command to its end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from zkrebalancer.localcluster.interrupts import interrupts_deferred


def run(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Return a command's exit code and output; whatever ends the wait also ends the command.

    `subprocess.run` does not wait for the end of a command that an interrupt has made it kill.

    Raises:
        OSError: the command cannot be started.
        subprocess.TimeoutExpired: it did not end within `timeout_s`.

    """
    process = None
    try:
        with interrupts_deferred():  # between its start and our knowing of it
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        output, errors = process.communicate(timeout=timeout_s)
    finally:
        if process is not None:
            with process:  # which closes its pipes, and waits
                process.kill()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
