"""ZooKeeper's ensemble in virtual time: servers that lag or are cut off, and restarts.

The tree itself is `ZkModel`; `network.py` has the links of clients to the servers.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.host import Host
from tests.simulation.reads import draw_limits
from tests.simulation.schedule import Schedule
from tests.support.zk_model import Change, Server, ZkModel
from zkrebalancer.protocol.calls import Call, Operation
from zkrebalancer.protocol.shards import Shard

if TYPE_CHECKING:
    from tests.simulation.network import Connection

SERVERS = 3
FOLLOW_DELAY_US = 3_000
FIRST_ZXID = 1 << 32  # as of the first transaction of a real ensemble: far above every generation

Transaction = Callable[[int, tuple[Operation, ...], tuple[Change, ...]], None]


class Ensemble:
    """Three servers of one tree; the first one leads and never lags."""

    def __init__(self, schedule: Schedule, seed: int) -> None:
        self.schedule = schedule
        self.random = Random(f"{seed}/ensemble")
        self.zk = ZkModel()
        self.zk.zxid = FIRST_ZXID
        self.zk.has_lasting_watches = seed % 4 != 3
        self.read_limits = draw_limits(seed)
        self.zk.observe = self._committed
        self.zk.identity = self._identity
        self.watchers: list[Transaction] = []
        self.servers = [self.zk.servers[0], *(self.zk.add_server() for _ in range(SERVERS - 1))]
        self.connections: list[Connection] = []
        self.hosts: dict[int, Host] = {}  # session id -> owner
        self.on_request: Callable[[Host, Call], None] = lambda _host, _call: None
        self.down = False
        self.sessions_ms = 0, 1_000_000  # the timeouts that servers grant, at least and at most
        self.cut_off: Server | None = None
        self.refusing_groups: set[str] = set()  # below whose nodes a coordinator was or is refused something
        self.shards: tuple[Shard, ...] = ()  # when their number could be read last
        self.lagging_until_us: dict[int, int] = {}  # by the server's position in `servers`
        self._following: set[int] = set()

    def _identity(self, session_id: int) -> str:
        """Return the identity for access control lists: coordinators, or the agents of a group."""
        return self.hosts[session_id].name.split("-")[0] if session_id in self.hosts else "operator"

    def _committed(self, session_id: int, operations: tuple[Operation, ...], changes: tuple[Change, ...]) -> None:
        for watcher in self.watchers:
            watcher(session_id, operations, changes)
        for number in range(1, SERVERS):
            self._plan_follow(number)

    def _plan_follow(self, number: int) -> None:
        if number not in self._following:
            self._following.add(number)
            at_us = self.schedule.now_us + self.random.randrange(FOLLOW_DELAY_US)
            self.schedule.at(max(at_us, self.lagging_until_us.get(number, 0)), self._follow, number)

    def _follow(self, number: int) -> None:
        self._following.discard(number)
        server = self.servers[number]
        if server is self.cut_off:
            return
        if self.schedule.now_us >= self.lagging_until_us.get(number, 0):
            behind = len(self.zk.log) - server.applied
            self.zk.follow_server(server, self.random.randint(0, behind))
        if server.applied < len(self.zk.log):
            self._plan_follow(number)

    def accepting(self, seen: int) -> list[Server]:
        """Return the servers that accept a client which has seen this transaction."""
        if self.down:
            return []
        return [server for server in self.servers if server is not self.cut_off and server.applied >= seen]

    def restart(self, outage_us: int) -> None:
        """Stop every server; when they return, the timeout of every session starts again."""
        self.down = True
        for connection in self.connections:
            connection.break_off()
        self.schedule.after(outage_us, self._come_up)

    def _come_up(self) -> None:
        self.down = False
        for connection in self.connections:
            connection.count_down_anew()

    def cut_server_off(self, duration_us: int) -> None:
        """Cut a follower off from the others; until it notices, it still answers reads."""
        if self.cut_off is not None:
            return
        self.cut_off = self.servers[self.random.randrange(1, SERVERS)]
        for connection in self.connections:
            connection.heard_or_not()
        self.schedule.after(duration_us, self._let_server_back)

    def _let_server_back(self) -> None:
        server, self.cut_off = self.cut_off, None
        if server is not None:
            for connection in self.connections:
                if connection.session is not None and connection.session.server is server:
                    connection.break_off()
            self._plan_follow(self.servers.index(server))

    def lag(self, number: int, duration_us: int) -> None:
        """Make a follower apply only its clients' writes for a while, so its watches are late."""
        self.lagging_until_us[number] = self.schedule.now_us + duration_us

    def lag_behind(self, ahead: Server, duration_us: int) -> None:
        """Make every other follower lag."""
        for number, server in enumerate(self.servers[1:], 1):
            if server is not ahead:
                self.lag(number, duration_us)
