"""Free TCP ports on the loopback address.

They lie below the system's range for outgoing connections: a port in that range may be in use by a client's connection
just when a restarted server needs it again. A port stays reserved while its server is down, so that several clusters
can run at the same time.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from zkrebalancer.localcluster.errors import LocalClusterError

HOST = "127.0.0.1"
LOWEST_PORT = 15_000
MAX_TRIES = 1_000
_OUTGOING_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, slots=True)
class FixedPorts:
    """Ports chosen by the user: the client port of each ZooKeeper server, and of each broker; empty for any."""

    zookeepers: tuple[int, ...] = ()
    brokers: tuple[int, ...] = ()

    def all(self) -> tuple[int, ...]:
        """Return all chosen ports."""
        return (*self.zookeepers, *self.brokers)


def reserve_ports(count: int, fixed: Collection[int] = ()) -> list[socket.socket]:
    """Return `count` sockets, each bound to a different free port of HOST that is not `fixed`.

    While a socket is open, a server with SO_REUSEADDR can listen on its port, but no other call chooses it.
    """
    above = int(_OUTGOING_RANGE.read_text().split()[0])
    candidates = range(LOWEST_PORT, above) if above > LOWEST_PORT + MAX_TRIES else range(LOWEST_PORT, 65_536)
    reserved: list[socket.socket] = []
    for port in random.sample(candidates, MAX_TRIES):
        if port in fixed:
            continue
        one = socket.socket()
        try:
            one.bind((HOST, port))  # without SO_REUSEADDR, which would share the port with another reservation
        except OSError:
            one.close()
            continue
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.append(one)
        if len(reserved) == count:
            return reserved
    for one in reserved:
        one.close()
    raise LocalClusterError(f"no {count} free ports found on {HOST} after {MAX_TRIES} tries")


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that are free now and not reserved by a cluster."""
    reserved = reserve_ports(count)
    ports = [one.getsockname()[1] for one in reserved]
    for one in reserved:
        one.close()
    return ports


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does, to bind despite TIME_WAIT
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_block(count: int) -> int:
    """Return the first of `count` neighbouring ports that are free now and not reserved by a cluster."""
    for _ in range(MAX_TRIES):
        (first,) = free_ports(1)
        if all(is_free(port) for port in range(first, first + count)):
            return first
    raise LocalClusterError(f"no {count} neighbouring free ports found on {HOST} after {MAX_TRIES} tries")
