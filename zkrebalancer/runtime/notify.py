"""Reports to systemd (`sd_notify`): ready, reloading, stopping, and that the process is alive.

The protocol is one datagram to the socket that NOTIFY_SOCKET names; a library would add a dependency for ten lines.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from zkrebalancer.runtime import logs

MAX_STATE_BYTES = 1_000  # systemd ignores a message of more than 4,096 bytes, and with it that this process is alive
SOCKET, WATCHDOG_US, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
_log = logs.named(__name__)


class Notifier:
    """Sends states to systemd, or does nothing if systemd has not started this process."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Take the variables out of the environment, so that no child process speaks in this one's name."""
        address = environment.pop(SOCKET, "")
        watchdog_us, pid = environment.pop(WATCHDOG_US, ""), environment.pop(WATCHDOG_PID, "")
        self._socket: socket.socket | None = None
        self.watchdog_s: float | None = None  # systemd ends the process if it is not fed for this long
        if not address.startswith(("/", "@")):
            return
        self._address = f"\0{address[1:]}" if address[0] == "@" else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)  # noqa: FBT003  # its only argument
        if watchdog_us.isdigit() and pid in {"", str(os.getpid())}:
            self.watchdog_s = int(watchdog_us) / 1e6

    @property
    def is_used(self) -> bool:
        """Whether systemd listens."""
        return self._socket is not None

    def send(self, *states: str) -> bool:
        """Send states such as "READY=1"; return whether that worked: a failure is logged, and not repeated here.

        A status has names that clients choose. A line break would begin another state, and with a NUL, systemd ignores
        all of them.
        """
        if self._socket is None:
            return False
        try:
            self._socket.sendto(b"\n".join(map(_one_line, states)), self._address)
        except OSError as error:
            _log.info("systemd was not told %s: %s", states[0], error)
            return False
        return True


def _one_line(state: str) -> bytes:
    line = " ".join(state.replace("\0", " ").splitlines()).encode()
    return line[:MAX_STATE_BYTES].decode(errors="ignore").encode()  # no half of a character
