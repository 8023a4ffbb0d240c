"""A gateway's central groups in random order: the real agents, all on one session, group machine and coordinators.

Each step is drawn from all that could happen next: a call of the gateway, an answer to it, a report of its groups, a
call of a coordinator. Between any two, the gateway's connection breaks, its session ends with all of its members, it
dies, or a leader dies, or both die with their host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from tests.support.central_world import CentralWorld
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL, GroupSettings

KINDS = ("kip-848", "cooperative", "eager")
FAULTS = ("connection", "connection", "session", "gateway", "leader")  # what breaks, ends or dies
MAX_CLIENTS, MAX_AGENTS = 5, 2
STEPS = 40
FAULT = 0.01  # between two steps of the actors
MAX_STARTING = 3  # gateways of which each died before it had started
CALM_MS = 80_000  # a client that died is waited for


class GatewayRun(CentralWorld):
    """One run."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(f"{seed}/gateway")
        self.seen = Counter[str]()
        self.is_calm = True
        self.starting = 0
        strategy = self.draw.choice(["sticky", "range", "balanced"])
        super().__init__(GroupSettings(mode=self.draw.choice((INCREMENTAL, EAGER)), strategy=strategy))
        self.born = 0

    def play(self) -> None:
        """Run with faults, then without; raise AssertionError if a promise is broken."""
        for _ in range(STEPS):
            self.is_calm = False
            self.act()
            self.pass_time(self.draw.choice((100, 300, 1_000)))
        self.is_calm = True
        self.finish()
        self.pass_time(CALM_MS)
        assert all(map(self.is_member, self.clients)), "clients have stayed out"
        if self.shares():
            self.assert_shared()

    def finish(self) -> None:
        """Let end what faults have begun."""

    @property
    def is_served(self) -> bool:
        """Whether the gateway serves the group."""
        return True

    # ---- steps

    def run(self) -> None:
        """Let all actors go on in random order until only clients or timers have anything left to do."""
        while moves := self.moves():
            self._move(moves)

    def moves(self) -> list[Callable[[], object]]:
        moves: list[Callable[[], object]] = []
        if self.session.model.sent or self.session.model.inbox:
            moves += [self.session.move] * 2
        if self.groups.unheard and self.is_served:
            moves.append(self._report)
        for process in self.world.coordinators:
            if process.alive and (process.session.sent or process.session.inbox or process.computing):
                moves.append(partial(self.world.move, process))
        for agent in self.world.agents.values():
            if self.world.act(agent):
                moves.append(self.check)
        return moves

    def _move(self, moves: list[Callable[[], object]]) -> None:
        self.draw.choice(moves)()
        self.check()
        if not self.is_calm and self.starting <= MAX_STARTING and self.draw.random() < FAULT:
            self.fault()
            self.check()

    def _report(self) -> None:
        self.agents.reported(self.groups.unheard.pop(0))

    def act(self) -> None:
        """Let clients and agents come and go."""
        roll = self.draw.random()
        client = self.draw.choice(self.clients) if self.clients else None
        self.born += 1
        if roll < 0.4 and len(self.clients) < MAX_CLIENTS:
            self.add_client()
        elif roll < 0.5 and client is not None:
            self.drop(client)
        elif roll < 0.6 and client is not None and self.is_member(client):
            self.leave(client)
        elif roll < 0.7 and len(self.world.agents) < MAX_AGENTS:
            self.world.add_agent(f"a{self.born}")
        elif roll < 0.75 and self.world.agents:
            self.end_agent(self.draw.choice(sorted(self.world.agents)))

    def add_client(self) -> None:
        self.add(f"c{self.born}", self.draw.choice(KINDS))

    def end_agent(self, name: str) -> None:
        self.world.kill_agent(self.world.agents.pop(name))

    def fault(self) -> None:
        kind = self.draw.choice(FAULTS)
        self.seen[kind] += 1
        if kind == "connection":
            self.world.zk.disconnect(self.session.model)
            self.world.zk.reconnect(self.session.model)
        elif kind == "session":
            self._end_session()
        elif kind == "gateway":
            is_host = self.draw.random() < 0.5  # the leader dies with it
            if is_host:
                self.kill_coordinators()
            self.world.zk.kill(self.session.model)
            if is_host:
                self.world.add_coordinator()
            self.read_groups()
            self.starting += 1
            self.start_gateway()
            self.starting -= 1
        else:
            self.kill_coordinators()
            self.world.add_coordinator()

    def _end_session(self) -> None:
        """End the gateway's session, with all of its members; it gets another, and reads its groups again."""
        zk, session = self.world.zk, self.session
        zk.expire(session.model)
        while session.model.inbox:
            session.move()
        self.session_ended()
        session.model = zk.open(session.model.timeout_ms)
        self.read_groups()

    def session_ended(self) -> None:
        """Let the gateway do what it does before it has another session."""

    def read_groups(self) -> None:
        self.groups.unheard = []
        for client in self.clients:
            client.ticket = 0
        self.groups.crash()

    def kill_coordinators(self) -> None:
        for process in self.world.coordinators:
            if process.alive:
                self.world.kill_coordinator(process)
