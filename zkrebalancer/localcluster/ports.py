"""Free TCP ports on the loopback address.

They lie below the system's range for outgoing connections: a port in that range may be in use by a client's connection
just when a restarted server needs it again.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from zkrebalancer.localcluster.errors import LocalClusterError

HOST = "127.0.0.1"
LOWEST_PORT = 15_000
MAX_TRIES = 1_000
_OUTGOING_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that nobody listens on now."""
    above = int(_OUTGOING_RANGE.read_text().split()[0])
    candidates = range(LOWEST_PORT, above) if above > LOWEST_PORT + MAX_TRIES else range(LOWEST_PORT, 65_536)
    found: list[int] = []
    for port in random.sample(candidates, MAX_TRIES):
        if is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise LocalClusterError(f"no {count} free ports found on {HOST} after {MAX_TRIES} tries")


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does, to bind despite TIME_WAIT
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
