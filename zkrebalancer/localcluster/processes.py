"""Records of processes: a pid together with the process's start time.

A pid in a file may belong to another process by now. Hence each record contains the start time (from /proc: clock ticks
since boot, with the id of the boot), and signals go through a pidfd that was opened before the comparison.
"""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path

from zkrebalancer.localcluster.errors import LocalClusterError

END_TIMEOUT_S = 20.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Identifies one process, even if its pid is reused later."""

    pid: int
    began: str


def began(pid: int) -> str | None:
    """Return the process's start time ("<boot id>/<clock ticks>"), None if it does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name in parentheses may contain blanks; fields[0] is the state
    return None if fields[0] in "ZX" else f"{_BOOT_ID.read_text().strip()}/{fields[19]}"


def record(pid: int) -> ProcessRecord | None:
    """Return the record of a running process, None if it is gone."""
    moment = began(pid)
    return None if moment is None else ProcessRecord(pid, moment)


def is_alive(process: ProcessRecord) -> bool:
    """Whether the recorded process still runs."""
    return began(process.pid) == process.began


def end(process: ProcessRecord, timeout_s: float = END_TIMEOUT_S) -> None:
    """Kill the recorded process, if it still runs, and wait for its end.

    Raises:
        LocalClusterError: the process did not end within `timeout_s`.

    """
    if not is_alive(process):
        return  # its pid may be a thread's by now, for which pidfd_open has other errors
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if is_alive(process):
            kill(handle, process.pid, timeout_s)
    finally:
        os.close(handle)


def kill(handle: int, pid: int, timeout_s: float) -> None:
    """Send SIGKILL through a pidfd and wait for the end of the process; `pid` is for the message only.

    Raises:
        LocalClusterError: the process did not end within `timeout_s`.

    """
    signal.pidfd_send_signal(handle, signal.SIGKILL)
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    if not poller.poll(timeout_s * 1000):
        raise LocalClusterError(f"process {pid} did not end within {timeout_s:g} s of SIGKILL")
