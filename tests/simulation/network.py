"""Links to ZooKeeper's ensemble, in virtual time: delays, cuts, expiry.

Messages on one connection keep their order in both directions. If a client gives up a
connection, a request in flight may still be performed until the client has reconnected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.ensemble import Ensemble
from tests.simulation.host import Host
from tests.simulation.reads import Batch, ReadSome, ReadsTogether, SetWatches
from tests.simulation.refusing import Refusing
from tests.support.zk_model import Session
from zkrebalancer.protocol import calls
from zkrebalancer.protocol.calls import (
    Call,
    Done,
    Get,
    ListChildren,
    Multi,
    Refusal,
    Refused,
    Replied,
    RepliedAll,
    WatchBelow,
    Watched,
    ZooKeeperEvent,
)

TICK_US = 200_000  # a session expires at the first tick after its timeout
QUICK_US = (80, 900)
SLOW_US = (5_000, 60_000)
SLUGGISH_US = (20_000, 250_000)
LONG_SLOW_US = 4_000_000
VERY_SLOW_US = (200_000, 1_500_000)  # as long as a lease
SLOW_PROBABILITY = 0.02
LAG_AFTER_LOSS_US = 2_000_000
RETRY_US = (20_000, 400_000)
HAND_ON_US = 50

Request = Call | SetWatches | ReadSome
Delivered = ZooKeeperEvent | RepliedAll


class Connection:
    """The ZooKeeper client of one process: one session at a time, replaced when it has expired, until closed."""

    def __init__(
        self,
        ensemble: Ensemble,
        host: Host,
        timeout_ms: int,
        on_event: Callable[[Any], None],
        performed: Callable[[Call, int], None] | None = None,
        *,
        replies_as_one: bool = False,
        reads_together: bool = True,
    ) -> None:
        self.ensemble = ensemble
        self.host = host
        self.timeout_ms = timeout_ms
        self.session: Session | None = None
        self.cut = False
        self.attached = False  # a server counts it as connected
        self.online = False  # the client counts it as connected
        self.closed = False
        self.loses_next_reply = False
        self.refusing: Refusing | None = None
        self.lags_after_loss = False  # after the loss, it reconnects to a server that lacks the write
        self._slow_until_us = 0
        self._slow_us = SLOW_US
        self._is_deaf = False  # no answer arrives any more, and the client has not noticed
        self._on_event = on_event
        self._performed = performed  # called with each successful write and the host's clock when it was sent
        self._epoch = 0  # counts connections; a message belongs to one
        self._in_flight: dict[int, Call] = {}
        self._parked: list[tuple[int, int, Request, int]] = []  # requests that wait for the network or the server
        self._downstream: deque[tuple[ZooKeeperEvent | Batch, int]] = deque()
        self._handed_on: deque[Delivered] = deque()  # by the client, and not handled yet
        self._up_us = 0
        self._down_us = 0
        self._heard_us = 0
        self._countdown: int | None = None  # None: the session is alive
        self._countdowns = 0
        limits = ensemble.read_limits if reads_together else None
        self._reads = None if limits is None else ReadsTogether(host, limits, self._send, as_one=replies_as_one)
        ensemble.connections.append(self)
        self._later(self._delay_us(), self._open)

    def _delay_us(self) -> int:
        draw = self.host.random
        if self.host.schedule.now_us < self._slow_until_us:
            return draw.randrange(*self._slow_us)
        return draw.randrange(*SLOW_US) if draw.random() < SLOW_PROBABILITY else draw.randrange(*QUICK_US)

    def _later(self, delay_us: int, action: Callable[..., None], *arguments: object) -> None:
        self.host.after(delay_us, self._unless_closed, action, *arguments)

    def _unless_closed(self, action: Callable[..., None], *arguments: object) -> None:
        if not self.closed:
            action(*arguments)

    # The client's side ----------------------------------------------------------------------------------------------

    def request(self, call_id: int, call: Call) -> None:
        if self.closed:
            return
        if not self.online:
            self._on_event(Replied(call_id, Refused(Refusal.CONNECTION_LOST)))
            return
        self.ensemble.on_request(self.host, call)
        self._in_flight[call_id] = call
        if self._reads is not None and isinstance(call, Get | ListChildren):
            self._reads.add(call_id, call)
            return
        if self._reads is not None:
            self._reads.send()
        self._send(call_id, call)

    def _send(self, call_id: int, call: Request, pause_us: int = 0) -> None:
        self._up_us = max(self._up_us + pause_us, self.host.schedule.now_us + self._delay_us())
        self.host.schedule.at(self._up_us, self._arrive, self._epoch, call_id, call, self.host.clock_us())

    def close(self) -> None:
        """Close the session cleanly, if the server can be reached."""
        if self.closed:
            return
        self.closed, self.online = True, False
        if self.attached and self._reachable() and self.session is not None:
            self._up_us = max(self._up_us, self.host.schedule.now_us + self._delay_us())
            self.host.schedule.at(self._up_us, self._end_session, self.session)
        else:
            self.drop()

    def drop(self) -> None:
        """Drop the connection of a dead process: the session ends by its timeout."""
        self.closed = True
        self.online = self.attached = False
        if self.session is None or self.session.expired:
            self.ensemble.connections.remove(self)
        self.heard_or_not()

    def _end_session(self, session: Session) -> None:
        self.attached = False
        if not session.expired:
            self.ensemble.zk.end(session)
            self.ensemble.connections.remove(self)

    def _suspend(self, epoch: int) -> None:
        """Let the client notice the lost connection and reconnect."""
        if epoch != self._epoch:
            return
        was_online, self.online, self.attached = self.online, False, False
        self._epoch += 1
        lost, self._in_flight = list(self._in_flight), {}
        self._downstream.clear()
        self._parked.clear()
        self._is_deaf = False
        if self.session is not None:
            self.ensemble.zk.forget_watches(self.session)
        self.heard_or_not()
        if was_online:
            while self._handed_on:
                self._on_event(self._handed_on.popleft())
            self._on_event(calls.Suspended())
            singly = [Replied(call_id, Refused(Refusal.CONNECTION_LOST)) for call_id in lost]
            for event in singly if self._reads is None else self._reads.lost(lost):
                self._on_event(event)
        self._later(self.host.random.randrange(*RETRY_US), self._open)

    def _open(self) -> None:
        """Connect with the existing session, or with a new one."""
        zk, session = self.ensemble.zk, self.session
        has_session = session is not None and not session.expired
        servers = [] if self.cut else self.ensemble.accepting(session.seen if session and has_session else 0)
        if not servers:
            self._later(self.host.random.randrange(*RETRY_US), self._open)
            return
        server = self.host.random.choice(servers)
        if session is not None and session.expired:
            self.session = None
            self._on_event(calls.Lost())
            self._later(self._delay_us(), self._open)
            return
        self.attached = True
        if session is None:
            shortest, longest = self.ensemble.sessions_ms
            self.session = zk.open(max(shortest, min(longest, self.timeout_ms)), server, self._pull)
            self.ensemble.hosts[self.session.session_id] = self.host
        else:
            zk.reconnect(session, server)
        self._pull()
        self.heard_or_not()

    def _deliver(self, epoch: int) -> None:
        if epoch != self._epoch or self.closed:
            return
        if self._handed_on:
            self._handle(self._handed_on.popleft())
        elif self._downstream and not self.cut:
            event, position = self._downstream.popleft()
            if self.session is not None and not isinstance(event, Watched):  # these have no transaction id
                self.session.seen = max(self.session.seen, position)
            if isinstance(event, Batch):
                self._hand_on([] if self._reads is None else self._reads.answered(event))
            elif self._reads is None or not isinstance(event, Watched) or not self._reads.holds(event):
                self._handle(event)

    def _hand_on(self, events: Sequence[Delivered]) -> None:
        """Give the process several events; others of its own may come in between."""
        self._handed_on.extend(events[1:])
        for number in range(1, len(events)):
            self._later(number * self.host.random.randrange(HAND_ON_US), self._deliver, self._epoch)
        self._handle(events[0])

    def _handle(self, event: Delivered) -> None:
        for one in event.replies if isinstance(event, RepliedAll) else (event,):
            if isinstance(one, Replied):
                self._in_flight.pop(one.call_id, None)
        self.online = self.online or isinstance(event, calls.Connected)
        self._on_event(event)

    # The network ----------------------------------------------------------------------------------------------------

    def _reachable(self) -> bool:
        return not self.cut and not self.ensemble.down

    def break_off(self) -> None:
        """Break the connection, noticed by both ends."""
        if self.attached and not self.closed:
            self._later(self.host.random.randrange(1_000), self._suspend, self._epoch)

    def slow_down(self, duration_us: int, range_us: tuple[int, int]) -> None:
        """Delay every message, so that other processes act in between."""
        self._slow_us = range_us
        self._slow_until_us = self.host.schedule.now_us + duration_us

    def cut_link(self, duration_us: int) -> None:
        if self.cut:
            return
        self.cut = True
        self.heard_or_not()
        notices_us = self.host.random.randrange(50_000, self.timeout_ms * 1_000 * 2 // 3)
        self._later(notices_us, self._notice_cut, self._epoch)
        self.host.schedule.after(duration_us, self._heal)

    def _notice_cut(self, epoch: int) -> None:
        if self.cut and self.attached:
            self._suspend(epoch)

    def _heal(self) -> None:
        self.cut = False
        parked, self._parked = self._parked, []
        for message in parked:
            self._arrive(*message)
        for _ in self._downstream:
            self._plan_delivery()
        self.heard_or_not()

    def _arrive(self, epoch: int, call_id: int, call: Request, sent_us: int) -> None:
        """A request reaches its server."""
        session = self.session
        if session is None or self.ensemble.down:
            return
        if session.expired and session.server is not self.ensemble.cut_off:
            return
        if epoch != self._epoch:  # given up by the client, but still performed
            is_given_up = not self.attached and epoch == self._epoch - 1 and not self.cut
            if is_given_up and self.host.random.random() < 0.5 and not isinstance(call, SetWatches | ReadSome):
                self.ensemble.zk.perform(call, session.session_id)
            return
        is_write = not isinstance(call, Get | ListChildren | WatchBelow | SetWatches | ReadSome)
        if self.cut or (session.server is self.ensemble.cut_off and (is_write or self._parked)):
            self._parked.append((epoch, call_id, call, sent_us))
            return
        self._heard_us = self.host.schedule.now_us
        if isinstance(call, SetWatches | ReadSome):
            call.perform(session, self.ensemble.zk, self._refusal)
        else:
            self._perform(session, call_id, call, sent_us)

    def _perform(self, session: Session, call_id: int, call: Call, sent_us: int) -> None:
        if self.ensemble.zk.is_too_large(call):
            self.host.tell(f"{call_id} is too large for the server")
            self.break_off()
            return
        refused = self._refusal(call)
        if refused is not None:
            session.answer(Replied(call_id, refused))
            return
        session.sent.append((call_id, call))
        if self._performed is None:
            self.ensemble.zk.perform_next(session)
        else:
            self._perform_and_tell(session, call, sent_us)

    def _refusal(self, call: Call) -> Refused | None:
        return self.refusing.reply(call) if self.refusing and self.refusing.until_us > self._heard_us else None

    def _perform_and_tell(self, session: Session, call: Call, sent_us: int) -> None:
        count = len(session.inbox) + len(self._downstream)
        self.ensemble.zk.perform_next(session)
        if self._performed is not None and len(session.inbox) + len(self._downstream) > count:
            event = self._downstream[-1][0]
            if isinstance(event, Replied) and isinstance(event.reply, Done):
                self._performed(call, sent_us)

    def _pull(self) -> None:
        """Handle an answer of the server."""
        session = self.session
        while session is not None and session.inbox:
            event, position = session.inbox.popleft()
            if self.loses_next_reply and isinstance(event, Replied) and self._is_written(event):
                self.loses_next_reply, self._is_deaf = False, True
                self.host.tell("a reply is lost")
                if self.lags_after_loss:
                    self.ensemble.lag_behind(session.server, LAG_AFTER_LOSS_US)
                self.break_off()
            if self._is_deaf:
                continue
            self._downstream.append((event, position))
            self._plan_delivery()

    def _is_written(self, event: Replied) -> bool:
        """Whether this is the answer to a successful write other than a renewal, which has only one operation."""
        call = self._in_flight.get(event.call_id)
        return isinstance(call, Multi) and len(call.operations) > 1 and isinstance(event.reply, Done)

    def _plan_delivery(self) -> None:
        self._down_us = max(self._down_us, self.host.schedule.now_us + self._delay_us())
        self.host.schedule.at(self._down_us, self.host.run, self._deliver, self._epoch)

    # The session's life -----------------------------------------------------------------------------------------------

    def heard_or_not(self) -> None:
        """Start or stop the session's timeout, depending on whether the ensemble hears from the client."""
        session = self.session
        if session is not None and session.expired and self._reachable():
            self.break_off()  # its server has closed it
        if session is None or session.expired:
            return
        is_heard = self.attached and self._reachable() and not self.host.suspended and self.host.alive
        if is_heard and session.server is not self.ensemble.cut_off:
            self._countdown = None
        elif self._countdown is None:
            since_us = self.host.schedule.now_us - self.host.random.randrange(session.timeout_ms * 250)
            self._count_down(session, max(since_us, self._heard_us))

    def count_down_anew(self) -> None:
        """Restart the timeout of disconnected clients, after the ensemble has returned."""
        if self._countdown is not None and self.session is not None:
            self._count_down(self.session, self.host.schedule.now_us)

    def _count_down(self, session: Session, since_us: int) -> None:
        self._countdowns += 1
        self._countdown = self._countdowns
        at_us = since_us + session.timeout_ms * 1_000 + self.host.random.randrange(TICK_US)
        self.host.schedule.at(at_us, self._run_out, session, self._countdown)

    def _run_out(self, session: Session, countdown: int) -> None:
        if countdown == self._countdown and not session.expired and not self.ensemble.down:
            self.expire()

    def expire(self) -> None:
        """End the session; a connected client is notified if its server knows."""
        session = self.session
        if session is None or session.expired:
            return
        self._countdown = None
        self.host.tell("its session ends at the ensemble")
        self.ensemble.zk.end(session)
        if self.closed:
            self.ensemble.connections.remove(self)
        elif self.attached and not self.cut and session.server is not self.ensemble.cut_off:
            self.break_off()
