"""The agents of all members of central groups, with their timers, on the gateway's one ZooKeeper session."""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Protocol

from gevent.event import Event

from consumer_agent.membership import effects, events
from consumer_agent.membership.offset_books import NO_OFFSET
from zkrebalancer.gateway.member_agent import MemberAgent
from zkrebalancer.gateway.pauses import Pauses
from zkrebalancer.group_protocol.effects import Fenced, Reported, Standing, Targeted
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.scheduler import SPARE_QUEUE_ENTRIES
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Call,
    Connected,
    Delete,
    Lost,
    Multi,
    Refusal,
    Refused,
    Reply,
    Suspended,
    Watched,
)
from zkrebalancer.protocol.complaints import Complaints
from zkrebalancer.protocol.refusals import refused_text
from zkrebalancer.protocol.requests import RequestLimit

MAX_WAIT_MS = 60_000
DELETED_AT_ONCE = 200  # paths of clients that have left, while ZooKeeper refuses that
GONE = (Refusal.NO_NODE, Refusal.NOT_EMPTY)  # nothing can be below a node that ends with its session
_log = logging.getLogger(__name__)


class ZooKeeper(Protocol):
    """The session: `gateway.session.Session`, or a model of it."""

    session_id: int

    @property
    def request_limit(self) -> RequestLimit:
        """How large a transaction may be."""

    def request(self, call: Call, when_replied: Callable[[Reply], None]) -> None:
        """Send a call."""


class Agents:
    """One agent for each member, by its group and by the identity that it keeps through all its lives."""

    def __init__(
        self,
        session: ZooKeeper,
        event_log: EventLog,
        give: Callable[[Targeted | Fenced], None],
        now_ms: Callable[[], int],
    ) -> None:
        """Start without agents; `give` gets what agents tell their groups, `now_ms` is a clock that never jumps."""
        self._session = session
        self._event_log = event_log
        self.give = give
        self.now_ms = now_ms
        self._agents: dict[str, dict[tuple[str, str], MemberAgent]] = {}  # group -> identity -> its agent
        self._groups_in: dict[int, dict[str, None]] = {}  # bucket -> the groups of these agents
        self._leaving: set[MemberAgent] = set()
        self._by_consumer: dict[str, MemberAgent] = {}
        self._litter: deque[str] = deque()  # paths to delete once the session is usable, or ZooKeeper permits it
        self._clean_at_ms: int | None = None  # when that is tried again
        self._pauses = Pauses()
        self._complaints = Complaints()
        self._queue: list[tuple[int, int, MemberAgent]] = []
        self._queued: dict[MemberAgent, int] = {}  # agent -> when it is woken
        self._order = itertools.count()
        self._sooner = Event()

    # ---- members

    def reported(self, report: Reported) -> None:
        """Update the agents of a group to its members as they are stored."""
        known = self._agents.setdefault(report.group_id, {})
        in_bucket = self._groups_in.setdefault(bucket_of(report.group_id), {})
        in_bucket[report.group_id] = None
        standings = {_identity(standing): standing for standing in report.members}
        for identity in [identity for identity in known if identity not in standings]:
            self._end(known.pop(identity), MemberAgent.leave)
        for identity, standing in standings.items():
            agent = known.get(identity)
            if agent is not None and agent.fenced is not None and agent.fenced.member_id == standing.member_id:
                self.give(agent.fenced)  # again, if the group was read again meanwhile
                continue
            if agent is None or agent.is_over:
                agent = known[identity] = MemberAgent(report.group_id, standing, self)
            elif agent.knows(standing):
                continue
            agent.stand(standing)
        if not known:
            self._agents.pop(report.group_id, None)
            in_bucket.pop(report.group_id, None)

    def keep(self, buckets: Collection[int]) -> None:
        """Hand over the members of groups in all other buckets to the gateways that serve those."""
        for bucket in self._groups_in.keys() - set(buckets):
            for group in self._groups_in.pop(bucket):
                for agent in self._agents.pop(group).values():
                    self._end(agent, MemberAgent.hand_over)

    def loaded(self, bucket: int, groups: Collection[str]) -> None:
        """After a bucket was read, make the members of groups that no longer exist leave."""
        for group in [group for group in self._groups_in.get(bucket, ()) if group not in groups]:
            self.reported(Reported(group, ()))

    def _end(self, agent: MemberAgent, how: Callable[[MemberAgent], None]) -> None:
        if not agent.is_over:
            self._leaving.add(agent)
            how(agent)

    @property
    def count(self) -> int:
        """Return the number of members with an agent."""
        return sum(map(len, self._agents.values()))

    # ---- the session

    def _all(self) -> list[MemberAgent]:
        return [*(agent for known in self._agents.values() for agent in known.values()), *self._leaving]

    def session_changed(self, event: Connected | Suspended | Lost) -> None:
        """Inform all agents; after the end of a session, the next session gets new agents."""
        for agent in self._all():
            agent.session_changed(event)
        if isinstance(event, Lost):
            self._agents, self._groups_in, self._leaving = {}, {}, set()
            self._by_consumer, self._litter = {}, deque()
            self._queue, self._queued = [], {}
        elif isinstance(event, Connected):
            self._delete_litter()

    def watched(self, path: str) -> bool:
        """Handle a watch that has fired; return whether it belongs to an agent."""
        if path == paths.RESTORE:
            for waiting in self._all():
                waiting.step(Watched(path, children=False))
            return True
        agent = self._by_consumer.get(path.rpartition("/")[2])
        if agent is None:
            return False
        agent.step(Watched(path, children=True))
        return True

    # ---- services for agents

    @property
    def request_limit(self) -> RequestLimit:
        """How large a transaction may be."""
        return self._session.request_limit

    @property
    def session_id(self) -> int:
        """Return the id of the ZooKeeper session, 0 while none is usable."""
        return self._session.session_id

    def request(self, call: Call, when_replied: Callable[[Reply], None]) -> None:
        """Perform a ZooKeeper call."""
        if isinstance(call, Multi):
            self._event_log.flush()  # the call may be the acknowledgement of an event
        self._session.request(call, when_replied)

    def note_name(self, agent: MemberAgent, former: str) -> None:
        """Note that the agent registers under `agent.consumer` from now on, not under its former name."""
        self._by_consumer.pop(former, None)
        self._by_consumer[agent.consumer] = agent

    def note_end(self, agent: MemberAgent) -> None:
        """Note that the agent has left and will do nothing more."""
        self._leaving.discard(agent)
        self._by_consumer.pop(agent.consumer, None)
        self._queued.pop(agent, None)
        self._limit_queue()

    def clean_up(self, group: str, consumer: str) -> None:
        """Delete what may be left of a registration."""
        for path in (paths.ids(group, consumer), paths.owners(group, consumer)):
            self._delete(path)

    def _delete_litter(self) -> None:
        """Delete some of it; as soon as that is permitted, each answer lets the next path follow."""
        self._clean_at_ms = None
        some = [self._litter.popleft() for _ in range(min(len(self._litter), DELETED_AT_ONCE))]
        for path in some:
            self._delete(path)

    def _delete(self, path: str) -> None:
        """Delete a node, however often that is refused: a member that seems to be there would keep its partitions."""
        call = Multi((Delete(path),))

        def replied(reply: Reply) -> None:
            if not isinstance(reply, Refused) or reply.refusal in GONE:
                if self._litter and self._clean_at_ms is None:
                    self._delete(self._litter.popleft())
                return
            self._litter.append(path)
            if not reply.outcome_unknown and self._clean_at_ms is None:
                now_ms = self.now_ms()
                text = self._complaints.text("", refused_text(call, reply), now_ms / 1_000)
                if text is not None:
                    _log.warning("what a client has left cannot be deleted yet: %s", text)
                self._clean_at_ms = now_ms + int(1_000 * self._pauses.after_failure("", now_ms / 1_000))
                self._sooner.set()

        self._session.request(call, replied)

    def record(self, group: str, effect: effects.RecordFetcher) -> None:
        """Write `fetcher_started` or `fetcher_stopped`, for each topic."""
        more: dict[str, Any] = {} if effect.reason is None else {"reason": effect.reason}
        if effect.command_id is not None:
            more["command_id"] = effect.command_id
        for topic, found in itertools.groupby(sorted(effect.positions), key=lambda partition: partition[0]):
            numbers = [number for _topic, number in found]
            self._event_log.write(
                effect.kind,
                group=group,
                generation=effect.generation,
                cause_id=effect.cause_id,
                mono_us=time.monotonic_ns() // 1_000 - effect.late_ms * 1_000,
                member=effect.member,
                topic=topic,
                partitions=numbers,
                positions=[NO_OFFSET] * len(numbers),
                **more,
            )

    # ---- timers

    def note_timer(self, agent: MemberAgent) -> None:
        """Queue the agent for `agent.wake_at_ms`."""
        wake_at_ms = agent.wake_at_ms
        if wake_at_ms is None or wake_at_ms >= self._queued.get(agent, wake_at_ms + 1):
            return
        self._queued[agent] = wake_at_ms
        heapq.heappush(self._queue, (wake_at_ms, next(self._order), agent))
        self._limit_queue()
        if self._queue[0][2] is agent:
            self._sooner.set()

    def _limit_queue(self) -> None:
        """Drop the entries that are out of date once they are many: some would stay for an hour, with their agents."""
        if len(self._queue) > 2 * len(self._queued) + SPARE_QUEUE_ENTRIES:
            self._queue = [(wake_at_ms, next(self._order), agent) for agent, wake_at_ms in self._queued.items()]
            heapq.heapify(self._queue)

    def wake_due(self) -> None:
        """Wake the agents that are due, and try again what could not be deleted."""
        now_ms = self.now_ms()
        if self._clean_at_ms is not None and self._clean_at_ms <= now_ms:
            self._delete_litter()
        while self._queue and self._queue[0][0] <= now_ms:
            queued_ms, _order, agent = heapq.heappop(self._queue)
            if self._queued.get(agent) != queued_ms:
                continue  # it was queued again for an earlier time
            del self._queued[agent]
            if not agent.is_over:
                agent.step(events.Tick())

    def wake_timers(self) -> None:
        """Wake agents when they are due, for ever; runs in a separate greenlet."""
        while True:
            self._sooner.clear()
            self.wake_due()
            due = [*(queued_ms for queued_ms, _order, _agent in self._queue[:1]), *filter(None, [self._clean_at_ms])]
            wait_ms = min(due) - self.now_ms() if due else MAX_WAIT_MS
            self._sooner.wait(max(0, min(wait_ms, MAX_WAIT_MS)) / 1_000)


def _identity(standing: Standing) -> tuple[str, str]:
    """Return the identity that a member keeps through all its lives."""
    return ("static", standing.instance_id) if standing.instance_id is not None else ("dynamic", standing.member_id)
