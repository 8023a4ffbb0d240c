"""Runs a command, and prints how long it took and how much processor time all of its processes used.

`python -m tests.support.processor_time COMMAND…`: it also counts processes that outlive their parents, such as servers,
because it adopts them. It kills processes that still run 20 s after the command has ended, for example after `kill -9`
of a test run. The exit code is the command's, or 1 if it killed any.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
LEFT_DEADLINE_S = 20.0  # for guards to end their clusters
ASK_INTERVAL_S = 0.05


def main(command: list[str]) -> int:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1) != 0:
        raise OSError(ctypes.get_errno(), "orphans cannot be counted: prctl(PR_SET_CHILD_SUBREAPER) failed")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # the command handles it; unlike SIG_IGN, a handler is not inherited
    began = time.monotonic()
    code = _wait(subprocess.Popen(command).pid)
    wall_s = time.monotonic() - began
    left = _end_others()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    sys.stderr.write(f"{wall_s:.1f} s, processor time {used.ru_utime + used.ru_stime:.1f} s\n")
    for line in left:
        sys.stderr.write(f"Error: still ran, and was killed: {line}\n")
    return code or int(bool(left))


def _wait(pid: int) -> int:
    """Reap processes until this one ends; return its exit code."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_others() -> list[str]:
    """Reap orphans, and kill those that do not end; return the command lines of the killed ones."""
    killed: dict[str, str] = {}  # pid -> command line
    give_up_at = time.monotonic() + LEFT_DEADLINE_S
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return list(killed.values())
        if ended:
            continue
        if time.monotonic() > give_up_at:  # the next turns reap the children of killed processes
            for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                if pid not in killed:
                    killed[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                    os.kill(int(pid), signal.SIGKILL)
        time.sleep(ASK_INTERVAL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
