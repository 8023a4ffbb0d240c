"""The campaign's end of the proxy: each process has a separate link to ZooKeeper, which can be broken."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from tests.campaign.frames import Direction, Session
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import HOST
from zkrebalancer.localcluster.server import Program

ANSWER_TIMEOUT_S = 10.0
Way = Literal["open", "refused", "silent", "slow"]


class Links:
    """The proxy's process and its orders; a context manager."""

    def __init__(self, cluster: LocalCluster) -> None:
        """Prepare a proxy in front of the servers of a started cluster."""
        self._cluster = cluster
        self._addresses: dict[str, str] = {}
        self._name = f"{cluster.directory.name}-proxy"
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(ANSWER_TIMEOUT_S)

    def __enter__(self) -> Self:
        """Start the proxy."""
        program = self._cluster.program("proxy", [sys.executable, "-m", "tests.campaign.proxy", self._name])
        program.spawn()
        program.wait_until(self._is_there)
        self._answers = self._connection.makefile("r")
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the connection; the process ends with the cluster."""
        self._answers.close()
        self._connection.close()

    def address(self, name: str) -> str:
        """Return a process's address for ZooKeeper; the first call opens its link."""
        if name not in self._addresses:
            servers = [server.port for server in self._cluster.zookeeper_servers]
            ports = self._order(do="open", link=name, servers=servers)["ports"]
            self._addresses[name] = ",".join(f"{HOST}:{port}" for port in ports) + self._cluster.chroot
        return self._addresses[name]

    def break_(self, name: str, way: Way, delay_ms: int = 0) -> None:
        """Refuse connections, drop everything, delay everything, or repair the link."""
        self._order(do="break", link=name, how=way, delay_ms=delay_ms)

    def cut(self, name: str) -> int:
        """End a process's connections and return their number; it may reconnect at once."""
        return int(self._order(do="cut", link=name)["cut"])

    def lose(self, name: str, what: Direction, fragment: str, times: int) -> int:
        """Lose the next requests or replies of transactions on such a path; return how many were lost so far."""
        return int(self._order(do="lose", link=name, what=what, fragment=fragment, times=times)["lost"])

    def lose_nothing(self, name: str) -> int:
        """Undo `lose`; return how many requests or replies this link has lost so far."""
        return int(self._order(do="lose", link=name, what="", fragment="", times=0)["lost"])

    def session(self, name: str) -> Session | None:
        """Return a process's session at ZooKeeper, None while it has none."""
        answer = self._order(do="session", link=name)
        return Session(answer["id"], bytes.fromhex(answer["password"])) if answer else None

    def _is_there(self) -> bool:
        try:
            self._connection.connect(f"\0{self._name}")
        except ConnectionRefusedError:
            return False
        return True

    def _order(self, **order: Any) -> dict[str, Any]:
        self._connection.sendall(json.dumps(order).encode() + b"\n")
        answer: dict[str, Any] = json.loads(self._answers.readline())
        return answer


@dataclass(slots=True)
class ProxiedLab(Lab):
    """A lab whose processes reach ZooKeeper through separate links."""

    links: Links = field(kw_only=True)

    def _spawn(
        self,
        name: str,
        command: list[str],
        options: Mapping[str, object],
        environment: Mapping[str, str] | None,
        *,
        takes_orders: bool = False,
    ) -> Program:
        if "--zookeeper" in options:
            options = {**options, "--zookeeper": self.links.address(name)}
        # super() without arguments fails in a class that a decorator has recreated for its slots
        return super(ProxiedLab, self)._spawn(name, command, options, environment, takes_orders=takes_orders)
