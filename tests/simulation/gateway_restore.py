"""A gateway, whose tree is lost and put back: the real restore and the gateway's real announcement, call by call.

The operator stops everybody before, clients too. The restore may be killed between any two calls, and is repeated.
Meanwhile a gateway, coordinators and clients start; sometimes before the restore keeps them from writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import cast

from greenlet import GreenletExit, greenlet

from tests.simulation.gateway import MAX_CLIENTS, STEPS, GatewayRun
from tests.simulation.stepped_restore import RepeatedRestore, in_memory
from tests.support.central_world import GatewaySession, Member
from zkrebalancer.gateway.membership import Membership, UnfinishedRestoreError
from zkrebalancer.gateway.service import RETRY_S
from zkrebalancer.gateway.session import Session
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Refusal, Reply
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError

RESTORES = 2  # in one run
FIRST_STEP, LAST_STEP = 3, STEPS - 5
PORTS = (9_092, 9_093)
AT_ONCE = (0, 1, 4)  # calls of a restore while virtual time stands still
MAX_COORDINATORS = 2
BEGUN, EARLY = 0.3, 0.1  # after each call of a restore, let a process start; also before it keeps that from writing
COMES = 0.3  # share of the steps during a restore in which a client comes
MAX_SECONDS = 600  # of virtual time, until a restore is complete
FORMER_MS = 50_000  # what is restored waits so long for dead members, and only then their successors get it
RETRY_MS = int(1_000 * RETRY_S)


class Announcement:
    """What a gateway does until it is listed, and again in each session; it takes the place of its session."""

    def __init__(self, session: GatewaySession, port: int) -> None:
        self._session = session
        self._membership = Membership(cast("Session", self), "gateway", port)
        self._not_before_ms = 0
        self._replies: list[Reply] | None = None  # to the call that is waited for
        self._greenlet: greenlet | None = None
        self.is_listed = False
        self.waits = 0  # for the end of a restore

    @property
    def session_id(self) -> int:
        return self._session.session_id

    @property
    def is_under_way(self) -> bool:
        return self._greenlet is not None

    def can_move(self, now_ms: int) -> bool:
        if self.is_under_way:
            return bool(self._replies)
        return not self.is_listed and self.session_id != 0 and now_ms >= self._not_before_ms

    def move(self, now_ms: int) -> None:
        """Go on until the next call is sent."""
        self._greenlet = self._greenlet or greenlet(self._refresh)
        self._greenlet.switch()
        if self._greenlet.dead:
            self._greenlet = None
            self._not_before_ms = now_ms + RETRY_MS

    def end(self) -> None:
        """End with the gateway's process."""
        if self._greenlet is not None:
            self._greenlet.throw(GreenletExit)
        self._greenlet, self.is_listed = None, False

    def _refresh(self) -> None:
        try:
            self._membership.refresh()
            self.is_listed = True
        except UnfinishedRestoreError:
            self.waits += 1
        except ZooKeeperUnavailableError:
            pass

    # ---- the session

    def require(self, call: Call, *expected: Refusal) -> Reply:
        return Session.require(cast("Session", self), call, *expected)

    def perform(self, call: Call) -> Reply:
        replies: list[Reply] = []
        self._replies = replies
        self._session.request(call, replies.append)
        while not replies:
            assert self._greenlet is not None
            assert self._greenlet.parent is not None
            self._greenlet.parent.switch()
        return replies[0]


class RestoredGatewayRun(GatewayRun):
    """A run with restores; when they begin is drawn apart."""

    def __init__(self, seed: int) -> None:
        moments = Random(f"{seed}/gateway restores").sample(range(FIRST_STEP, LAST_STEP), RESTORES)
        self.moments = sorted(moments)
        self.steps = self.budget = 0
        self.announcements: list[Announcement] = []  # the present one; empty before the first gateway
        self.restore: RepeatedRestore | None = None
        self.is_stopped = False  # whether there is no gateway
        super().__init__(seed)

    def play(self) -> None:
        with in_memory(self.draw):
            super().play()

    def finish(self) -> None:
        for _ in range(MAX_SECONDS):
            if self.restore is None:
                break
            self.pass_time(1_000)
        assert self.restore is None, "no restore completes"
        self.pass_time(FORMER_MS)

    # ---- the gateway

    @property
    def announcement(self) -> Announcement:
        return self.announcements[0]

    @property
    def is_served(self) -> bool:
        return self.announcement.is_listed and self.session.session_id != 0

    def served(self) -> Iterator[Member]:
        for client in list(self.clients):
            if self.is_served and client in self.clients:  # a step of the former one may have changed that
                yield client

    def begin_gateway(self) -> None:
        super().begin_gateway()
        for former in self.announcements:
            former.end()
        self.announcements = [Announcement(self.session, self.draw.choice(PORTS))]
        self.is_stopped = False

    def session_ended(self) -> None:
        """Let a call that is under way fail, before there is another session."""
        self.announcement.is_listed = False
        while self.announcement.is_under_way:
            self.announcement.move(self.groups.now_ms)
            while self.session.model.inbox:
                self.session.move()

    def _announce(self) -> None:
        waits = self.announcement.waits
        self.announcement.move(self.groups.now_ms)
        self.seen["gateways waited"] += self.announcement.waits - waits
        if self.announcement.is_listed:
            self.read_groups()

    def _stop_gateway(self) -> None:
        self.announcement.end()
        self.world.zk.kill(self.session.model)
        self.session.session_id = 0
        self.forget_agents()
        self.is_stopped = True

    # ---- steps

    def run(self) -> None:
        self.budget = self.draw.choice(AT_ONCE)
        super().run()

    def moves(self) -> list[Callable[[], object]]:
        moves = super().moves()
        if self.announcement.can_move(self.groups.now_ms):
            moves.append(self._announce)
        if self.restore is not None and self.budget > 0:
            moves.append(self._restore_on)
        return moves

    def act(self) -> None:
        self.steps += 1
        if self.restore is None and self.moments and self.steps >= self.moments[0]:
            self.moments.pop(0)
            self._stop()
            self.restore = RepeatedRestore(self.world.zk, self.draw)
            self.world.evictions_seen.clear()  # they may be lost
            self.seen["restores"] += 1
        elif self.restore is not None and len(self.clients) < MAX_CLIENTS and self.draw.random() < COMES:
            self.born += 1
            self.add_client()
        elif self.restore is None and self.is_served:
            super().act()

    def fault(self) -> None:
        if not self.is_stopped:
            super().fault()

    def check(self) -> None:
        super().check()
        is_partial = self.restore is not None and self.restore.is_partial
        assert not (is_partial and self.is_served), "a gateway serves groups in a part of a tree"

    # ---- the operator

    def _restore_on(self) -> None:
        assert self.restore is not None
        restore = self.restore
        self.budget -= 1
        if restore.move():
            self._stop(only_registered=restore.is_barred)  # the others wait
        if restore.is_complete:
            self.restore = None
            self.seen["restores complete"] += 1
            self.seen["restores killed"] += restore.kills
            for _ in range(MAX_COORDINATORS + 1):
                self._start_one()
        elif not self.is_calm and self.draw.random() < (BEGUN if restore.is_barred else EARLY):
            self._start_one()

    def _stop(self, *, only_registered: bool = False) -> None:
        if not only_registered or self.world.zk.children(paths.LIVE_GATEWAYS):
            self._stop_gateway()
        if only_registered:
            return
        self.kill_coordinators()
        for name in sorted(self.world.agents):
            self.end_agent(name)
        self.clients.clear()
        self.read_groups()

    def _start_one(self) -> None:
        if self.is_stopped:
            self.start_gateway()
        elif sum(process.alive for process in self.world.coordinators) < MAX_COORDINATORS:
            self.world.add_coordinator()
