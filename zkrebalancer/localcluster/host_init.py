"""The first process of a Docker host: starts its programs, restarts those that end, and stops them on SIGTERM.

`python host_init.py FILE`: the file is a JSON list of programs, each `{"command": […], "log": PATH}`, in the order of
their start. SIGTERM stops them in the opposite order, one after the other. It uses only the standard library, so that
it starts in milliseconds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

MIN_PAUSE_S = 1.0  # before a restart; doubles up to MAX_PAUSE_S, until the program has run for STEADY_S
MAX_PAUSE_S = 8.0
STEADY_S = 30.0
STOP_LIMIT_S = 20.0  # for each program; then it is killed
LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
HANDLED = {signal.SIGTERM, signal.SIGCHLD}


class Programs:
    """The programs, and the process ids of those that run."""

    def __init__(self, programs: list[dict[str, Any]]) -> None:
        """Start none yet."""
        self._programs = programs
        self._running: dict[int, int] = {}  # process id -> index of the program
        self._start_at: dict[int, float] = dict.fromkeys(range(len(programs)), 0.0)
        self._started_at: dict[int, float] = {}
        self._pauses_s = dict.fromkeys(range(len(programs)), MIN_PAUSE_S)

    def start_due(self) -> None:
        """Start the programs whose pause is over."""
        now = time.monotonic()
        for index in [index for index, moment in self._start_at.items() if moment <= now]:
            del self._start_at[index]
            self._started_at[index] = now
            self._running[_spawn(**self._programs[index])] = index

    def reap(self) -> None:
        """Collect every process that has ended, orphans too; a program is due again after a pause."""
        while True:
            try:
                pid, _status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            index = self._running.pop(pid, None)
            if index is not None:
                now = time.monotonic()
                if now - self._started_at[index] > STEADY_S:
                    self._pauses_s[index] = MIN_PAUSE_S
                self._start_at[index] = now + self._pauses_s[index]
                self._pauses_s[index] = min(2 * self._pauses_s[index], MAX_PAUSE_S)

    def stop(self) -> None:
        """Stop all programs, the last one first."""
        for pid, _index in sorted(self._running.items(), key=lambda each: each[1], reverse=True):
            os.kill(pid, signal.SIGTERM)
            give_up_at = time.monotonic() + STOP_LIMIT_S
            while pid in self._running:
                signal.sigtimedwait(HANDLED, max(0.0, give_up_at - time.monotonic()))
                self.reap()
                if pid in self._running and time.monotonic() > give_up_at:
                    os.kill(pid, signal.SIGKILL)
                    give_up_at += STOP_LIMIT_S


def _spawn(command: list[str], log: str) -> int:
    actions = [(os.POSIX_SPAWN_OPEN, 1, log, LOG_FLAGS, 0o644), (os.POSIX_SPAWN_DUP2, 1, 2)]
    return os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsigmask=[], setsid=True)


def main(file: str) -> None:
    """Run the programs until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    programs = Programs(json.loads(Path(file).read_text()))
    while True:
        programs.start_due()
        received = signal.sigtimedwait(HANDLED, MIN_PAUSE_S)
        if received is not None and received.si_signo == signal.SIGTERM:
            return programs.stop()
        programs.reap()


if __name__ == "__main__":
    main(sys.argv[1])
