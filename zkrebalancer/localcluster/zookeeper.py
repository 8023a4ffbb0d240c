"""ZooKeeper servers: configuration, and queries by four-letter words."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.ports import HOST

MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
ASK_TIMEOUT_S = 30.0  # an overloaded machine may stall for seconds
PROBE_TIMEOUT_S = 2.0  # for who asks again and again, or many servers
MAX_SESSION_TIMEOUT_MS = 60_000
INITIALIZE_MS = 10_000  # a follower may take this long to connect and catch up
LAG_MS = 3_000  # a server that is silent for longer leaves the ensemble
_ZXID = re.compile(rb"^Zxid: 0x([0-9a-f]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """The address and the ports of one server of an ensemble."""

    client_port: int
    peer_port: int
    election_port: int
    host: str = HOST


def settings(servers: int, tick_ms: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Return each server's properties without addresses and folder; `extra` adds or overrides some."""
    properties = {
        "tickTime": str(tick_ms),
        "minSessionTimeout": str(2 * tick_ms),
        "maxSessionTimeout": str(MAX_SESSION_TIMEOUT_MS),
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "*",
    }
    if servers > 1:
        properties["initLimit"] = str(-(-INITIALIZE_MS // tick_ms))
        properties["syncLimit"] = str(-(-LAG_MS // tick_ms))
    return {**properties, **extra}


def render_config(
    members: Sequence[EnsembleMember], index: int, data: Path, tick_ms: int, extra: Mapping[str, str]
) -> str:
    """Return `zoo.cfg` of the server `members[index]`; `extra` adds or overrides properties."""
    properties = {
        "dataDir": str(data),
        "clientPort": str(members[index].client_port),
        "clientPortAddress": members[index].host,
    }
    if len(members) > 1:
        for number, member in enumerate(members, start=1):
            properties[f"server.{number}"] = f"{member.host}:{member.peer_port}:{member.election_port}"
    return render_properties({**properties, **settings(len(members), tick_ms, extra)})


def render_properties(properties: Mapping[str, str]) -> str:
    """Return a Java properties file: lines of `key=value`."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def ask(host: str, port: int, word: str, timeout_s: float = ASK_TIMEOUT_S) -> bytes:
    """Return a server's reply to a four-letter word (`srvr`, `mntr`, `ruok`, …); raises OSError without a reply."""
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        connection.sendall(word.encode())
        answer = b""
        while chunk := connection.recv(65_536):
            answer += chunk
    return answer


def leads(port: int, host: str = HOST, timeout_s: float = ASK_TIMEOUT_S) -> bool:
    """Whether a server leads an ensemble; raises OSError without a reply."""
    return b"\nMode: leader" in ask(host, port, "srvr", timeout_s)


class ServingProbe:
    """Checks whether one server serves clients."""

    def __init__(self, port: int, host: str = HOST) -> None:
        """Prepare to probe the server with client port `port`."""
        self._host, self._port = host, port

    def __call__(self) -> bool:
        """Whether the server serves clients, alone or as part of a quorum."""
        try:
            return b"\nMode: " in ask(self._host, self._port, "srvr", PROBE_TIMEOUT_S)
        except OSError:
            return False


def zxid(hosts: str) -> int:
    """Return the newest transaction id of all servers of "HOST:PORT[,…][/CHROOT]".

    Its lower 32 bits count transactions (including opened and closed sessions) since the leader's election, so the
    difference of two ids is the number of transactions between them.

    Raises:
        LocalClusterError: no server answered.

    """
    newest = -1
    for host, port in split_hosts(hosts):
        try:
            found = _ZXID.search(ask(host, port, "srvr"))
        except OSError:
            continue
        if found:
            newest = max(newest, int(found[1], 16))
    if newest < 0:
        raise LocalClusterError(f"no ZooKeeper server at {hosts} reported a zxid; is `srvr` in 4lw.commands.whitelist?")
    return newest


def split_hosts(hosts: str) -> list[tuple[str, int]]:
    """Return the servers of a connection string "HOST:PORT[,…][/CHROOT]"."""
    servers = hosts.partition("/")[0].split(",")
    return [(host, int(port)) for host, _, port in (server.rpartition(":") for server in servers)]
