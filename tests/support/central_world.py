"""A gateway with its central groups in a world of real coordinators and agents, on a ZooKeeper in memory.

The group machine, the gateway's agents, the coordinator's core and the strategies are real; the clients are models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.support.classic_consumer import ClassicConsumer
from tests.support.group_coordinator import Coordinator
from tests.support.groups import world_with
from tests.support.kip848_group import Client, coordinator_with
from tests.support.secured_model import COORDINATOR, GATEWAY, SecuredTree, who
from tests.support.world import GROUP, World
from zkrebalancer.gateway.agents import Agents
from zkrebalancer.group_protocol.effects import Fenced, Targeted
from zkrebalancer.group_protocol.requests import LeaveGroupRequest, MemberIdentity
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol.calls import Call, Connected, Lost, Replied, Reply, Suspended, Watched
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit
from zkrebalancer.protocol.settings import GroupSettings

SESSION_MS = 6_000
STEP_MS = 100
Member = ClassicConsumer | Client


class GatewaySession:
    """The gateway's session on the ZooKeeper in memory."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.model = world.zk.open(SESSION_MS)
        self.session_id = 0
        self.agents: Agents | None = None
        self._waiting: dict[int, Callable[[Reply], None]] = {}
        self._last_id = 0

    @property
    def request_limit(self) -> RequestLimit:
        return DEFAULT_LIMIT

    def request(self, call: Call, when_replied: Callable[[Reply], None]) -> None:
        self._last_id += 1
        self._waiting[self._last_id] = when_replied
        self.world.zk.send(self.model, self._last_id, call)

    def move(self) -> bool:
        """Perform one call, or deliver one answer."""
        assert self.agents is not None
        if self.model.sent:
            self.world.zk.perform_next(self.model)
            return True
        if not self.model.inbox:
            return False
        event = self.model.take()
        if isinstance(event, Replied):
            self._waiting.pop(event.call_id)(event.reply)
        elif isinstance(event, Watched):
            assert self.agents.watched(event.path) or event.path
        elif isinstance(event, Connected | Suspended | Lost):
            self.session_id = event.session_id if isinstance(event, Connected) else 0
            self.agents.session_changed(event)
        return True


class CentralWorld:
    """A topic "t", a coordinator, a gateway, and the clients and agents that a test adds."""

    def __init__(self, group: GroupSettings | None = None, partitions: int = 6) -> None:
        self.world = world_with(group or GroupSettings(), partitions=partitions)
        central = GroupProtocolSettings(
            assigns_centrally=True, consumer_heartbeat_interval_ms=1_000, consumer_urgent_heartbeat_interval_ms=200
        )
        self.groups: Coordinator = coordinator_with({"t": partitions}, central)
        self.partitions = partitions
        self.clients: list[Member] = []
        self.world.zk.identity = self._login
        self.secured = SecuredTree(self.world.zk, who(GROUP), lambda login: login or None)
        self.start_gateway()

    def _login(self, session_id: int) -> str:
        """Return who has a session in a secured tree; agents, which are scripted, may do everything."""
        if session_id == self.session.model.session_id:
            return GATEWAY
        leads = any(session_id == process.session.session_id for process in self.world.coordinators)
        return COORDINATOR if leads else ""

    # ---- the gateway

    def start_gateway(self) -> None:
        self.begin_gateway()
        self.run()

    def begin_gateway(self) -> None:
        self.session = GatewaySession(self.world)
        self.forget_agents()

    def forget_agents(self) -> None:
        """Let the gateway have no members yet."""
        self.agents = self.session.agents = Agents(
            self.session, EventLog(None, "gateway"), self._give, lambda: self.groups.now_ms
        )

    def _give(self, event: Targeted | Fenced) -> None:
        self.groups.step(event)

    def restart_gateway(self, after_ms: int) -> None:
        """Kill the gateway and end its session; `after_ms` later, another gateway serves the group."""
        self.world.zk.kill(self.session.model)
        self.groups.unheard = []
        self.world.pass_time(after_ms)
        for client in self.clients:
            client.ticket = 0
        self.groups.now_ms += after_ms
        self.groups.crash()
        self.start_gateway()

    def break_connection(self) -> None:
        """Interrupt the gateway's connection; its session continues."""
        self.world.zk.disconnect(self.session.model)
        self.run()
        self.world.zk.reconnect(self.session.model)
        self.run()

    # ---- clients

    def add(self, name: str, kind: str = "kip-848") -> Member:
        client: Member
        if kind == "kip-848":
            client = Client(self.groups, name)
        else:
            client = ClassicConsumer(self.groups, name, is_eager=kind == "eager")
        self.clients.append(client)
        return client

    def drop(self, client: Member) -> None:
        """Let a client vanish without leaving."""
        self.clients.remove(client)

    def leave(self, client: Member) -> None:
        self.clients.remove(client)
        if isinstance(client, ClassicConsumer):
            request = LeaveGroupRequest(GROUP, (MemberIdentity(client.member_id),))
            self.groups.send(request, 5)  # in a group with many members, the answer comes later
        else:
            client.send(-1)
        self.run()

    def served(self) -> Iterable[Member]:
        """Return the clients that the gateway answers."""
        return self.clients

    # ---- time

    def run(self) -> None:
        """Run all actors until only clients or timers have anything left to do."""
        moved = True
        while moved:
            moved = self.session.move()
            while self.groups.unheard:
                self.agents.reported(self.groups.unheard.pop(0))
                moved = True
            moved = self.world.run_once() or moved
            self.check()

    def pass_time(self, duration_ms: int) -> None:
        """Let time pass; in every step, each client sends a heartbeat unless it waits for an answer."""
        for _ in range(duration_ms // STEP_MS):
            for client in self.served():
                if isinstance(client, ClassicConsumer):
                    client.act()
                elif not client.ticket or client.ticket in self.groups.answers:
                    if client.ticket:
                        client.receive()
                    client.send()
                self.run()
            self.world.pass_time(STEP_MS)
            self.groups.pass_time(STEP_MS)
            self.agents.wake_due()
            self.run()

    # ---- what has to hold

    def read_by(self, client: Member) -> set[int]:
        if isinstance(client, ClassicConsumer):
            return set(client.owned)
        return set(client.numbers()) if client.epoch > 0 else set()

    def is_member(self, client: Member) -> bool:
        name = client.member_id if isinstance(client, ClassicConsumer) else client.name
        return name in self.groups.standings

    def shares(self) -> list[set[int]]:
        """Return what clients, and this project's agents, read."""
        agents = [
            {number for _topic, number in self.world.owned().get(agent.name or "", {})}
            for agent in self.world.agents.values()
        ]
        return [self.read_by(client) for client in self.clients if self.is_member(client)] + agents

    def check(self) -> None:
        read = [number for share in self.shares() for number in share]
        assert len(read) == len(set(read)), f"two owners: {self.shares()}"
        self.check_tables()
        assert not self.secured.refused, "a coordinator or a gateway lacks a right"

    def check_tables(self) -> None:
        """Assert that the gateway remembers its members' agents and no others: it may run for a year."""
        known = [agent for agents in self.agents._agents.values() for agent in agents.values()]
        assert all(self.agents._agents.values()), "a group without members"
        working = {agent for agent in {*known, *self.agents._leaving} if not agent.is_over}
        assert self.agents._leaving <= working
        assert set(self.agents._by_consumer.values()) <= working
        assert all(agent.consumer == name for name, agent in self.agents._by_consumer.items())
        assert self.agents._queued.keys() <= working
        assert self.agents._queued.items() <= {(agent, at_ms) for at_ms, _order, agent in self.agents._queue}

    def assert_shared(self) -> None:
        """Assert that every partition is read, and every member has a share."""
        shares = self.shares()
        assert sorted(number for share in shares for number in share) == list(range(self.partitions)), shares
        assert max(map(len, shares)) - min(map(len, shares)) <= 1, shares
        self.world.assert_settled()
        assert len(self.world.owned()) == len(shares)
