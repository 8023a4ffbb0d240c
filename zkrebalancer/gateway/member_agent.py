"""The agent of one client in a central group: registers the client as a consumer, and answers commands for it.

The agent's own machine (`consumer_agent.membership`) decides every ZooKeeper call. The group takes the application's
part: a start or a stop becomes a target, and a stop is over when the group has stored that the client gave up the
partitions. The client manages its offsets; the machine knows none.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import Protocol
from urllib.parse import quote

from consumer_agent.membership import effects, events
from consumer_agent.membership.offset_books import NO_OFFSET, Storage
from consumer_agent.membership.registered_member import MemberSettings
from consumer_agent.membership.state_machine import MachineSettings, State, StateMachine
from zkrebalancer.group_protocol.central import registered_as
from zkrebalancer.group_protocol.effects import Fenced, Standing, Targeted
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Call, Connected, Content, Delete, Get, Lost, Multi, Refused, Replied, Reply
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.registration import (
    MAX_SESSION_TIMEOUT_MS,
    MAX_STATIC_GRACE_MS,
    MAX_STOP_TIMEOUT_MS,
    Registration,
)
from zkrebalancer.protocol.requests import RequestLimit

NEVER_MS = 10**12  # clients of a gateway do not poll the machine
MAX_INSTANCE_LENGTH = 150
DYNAMIC = "dynamic."  # before the id of a member without an instance id, if its form is not one of these:
# Kafka's text of a UUID (22 characters with 128 bits), or what ends with a UUID, as the gateway and librdkafka make it.
_GENERATED = re.compile(r"[a-zA-Z0-9_-]{21}[AQgw]|([a-zA-Z0-9._-]*-)?[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")
FIRST_RETRY_MS, LONGEST_RETRY_MS = 1_000, 30_000  # before a subscription is written again that ZooKeeper refuses
LEAST_SESSION_MS = 1_000  # a stored group may be damaged: without a lease, an agent would renew it without a pause
STOP_MARGIN_MS = 10_000  # so that a client, whose time starts when it learns of a stop, is fenced before it is evicted
_ESCAPE = "~"  # not allowed in ZooKeeper's layout
_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]+")
_NOWHERE = events.Position(NO_OFFSET, NO_OFFSET)
_log = logging.getLogger(__name__)


class Desk(Protocol):
    """What an agent needs of its gateway."""

    @property
    def request_limit(self) -> RequestLimit:
        """Return the limit of a transaction."""

    @property
    def session_id(self) -> int:
        """Return the id of the ZooKeeper session, 0 while none is usable."""

    def now_ms(self) -> int:
        """Return the time by a clock that never jumps."""

    def request(self, call: Call, when_replied: Callable[[Reply], None]) -> None:
        """Perform a ZooKeeper call."""

    def give(self, event: Targeted | Fenced) -> None:
        """Send the group the member's target, or that another consumer has its instance id."""

    def note_name(self, agent: MemberAgent, former: str) -> None:
        """Note that the agent registers under `agent.consumer` from now on, not under its former name."""

    def note_timer(self, agent: MemberAgent) -> None:
        """Queue the agent for `agent.wake_at_ms`."""

    def note_end(self, agent: MemberAgent) -> None:
        """Note that the agent has left and will do nothing more."""

    def clean_up(self, group: str, consumer: str) -> None:
        """Delete what may be left of a registration."""

    def record(self, group: str, effect: effects.RecordFetcher) -> None:
        """Write an event."""


class MemberAgent:
    """One member of a central group. `stand` reports its changes; `leave` or `hand_over` ends the agent."""

    def __init__(self, group: str, standing: Standing, desk: Desk) -> None:
        """Begin for a new member. One that holds something comes from another gateway, or a former process.

        Its partitions then wait for it in ZooKeeper, and it keeps them while it is registered anew.
        """
        self.group = group
        self.instance_id = _instance_id(standing)
        self.consumer = ""
        self._desk = desk
        self._standing: Standing | None = standing
        self._is_taking_over = bool(standing.held)
        self._has_asked = False  # whether it has read which partitions wait for it
        self._target: frozenset[TopicPartition] | None = None if standing.held else frozenset()
        self._number = 0  # of the last target
        self._stop: tuple[int, frozenset[TopicPartition]] | None = None  # its token and partitions
        self._is_open = False  # whether the machine uses the session
        self.fenced: Fenced | None = None  # once another consumer has the instance id
        self._is_evicted = False
        self._wanted = registration_of(standing, self.instance_id)
        self._subscribe_at_ms: int | None = None  # when it is written again
        self._subscribe_pause_ms = FIRST_RETRY_MS
        self._machine = StateMachine(
            MachineSettings(
                MemberSettings(
                    group=group,
                    auto_commit_interval_ms=None,
                    pause_when_suspended=False,
                    storage=Storage.KAFKA,
                    begins_anywhere=False,
                    max_poll_interval_ms=NEVER_MS,
                    request_limit=desk.request_limit,
                    has_own_session=False,
                ),
                self._wanted,
                connect_timeout_ms=NEVER_MS,
            )
        )
        self._events: deque[events.Event] = deque()
        self._stepped_ms = 0  # when the last step began
        self._is_stepping = False

    @property
    def wake_at_ms(self) -> int | None:
        """Return when `step(Tick())` is due."""
        times = self._machine.wake_at_ms, self._subscribe_at_ms
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    @property
    def is_over(self) -> bool:
        """Whether the agent does nothing more."""
        return self._machine.state is State.CLOSED

    # ---- reports of the group

    def knows(self, standing: Standing) -> bool:
        """Whether this is the member as last reported; each report has all members, and few of them have changed."""
        return standing is self._standing

    def stand(self, standing: Standing) -> None:
        """Update the agent to the member as it is stored."""
        former, self._standing = self._standing, standing
        is_other = former is not None and former.member_id != standing.member_id
        if self._target is not None and (is_other or (standing.number == 0 and self._number > 0)):
            self._give(self._target)  # the group was read again, or a static member was replaced by its later self
            if standing.held:
                self._fence_if_evicted()
        wanted = registration_of(standing, self.instance_id)
        if wanted != self._wanted:
            self._wanted = wanted
            self._subscribe_pause_ms = FIRST_RETRY_MS
            self._subscribe()
        self._go_on()

    def _subscribe(self) -> None:
        self._subscribe_at_ms = None
        self.step(events.Resubscribed(self._wanted, ask_application=False))

    def leave(self) -> None:
        """Leave, because the member left or was fenced; its partitions do not wait for it.

        After an eviction, the leader ends the record: it may name what the client still reads.
        """
        if self._standing is None:
            return
        self._standing = None
        if self.instance_id is not None and not self._is_evicted:
            gone = Multi((Delete(paths.static(self.group, self.instance_id)),))
            self._desk.request(gone, lambda _reply: self.step(events.CloseRequested()))
        else:
            self.step(events.CloseRequested())

    def hand_over(self) -> None:
        """End, because another gateway serves the group now; the partitions wait until the member registers there."""
        self._standing = None
        self.step(events.CloseRequested())

    # ---- steps of the machine

    def session_changed(self, event: events.Event) -> None:
        """Pass a session event to the machine. After the end of the session, this agent is useless."""
        if isinstance(event, Lost):
            self._standing = None
        if self._is_open and isinstance(event, Connected):
            self._connect()
        elif self._is_open:
            self._events.append(event)
        self._handle_events()

    def step(self, event: events.Event) -> None:
        """Let the machine handle an event, now or after the present one."""
        self._events.append(event)
        self._handle_events()

    def _handle_events(self) -> None:
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                self._stepped_ms = self._desk.now_ms()
                for effect in self._machine.step(self._events.popleft(), self._stepped_ms):
                    self._perform(effect)
        finally:
            self._is_stepping = False
        self._desk.note_timer(self)
        self._go_on()

    def _perform(self, effect: effects.Effect) -> None:  # noqa: C901, PLR0912  # a table
        match effect:
            case effects.OpenSession():
                self._is_open = True
                if self._desk.session_id:
                    self._connect()
            case effects.CloseSession():
                self._is_open = False
                if self.consumer:
                    self._desk.clean_up(self.group, self.consumer)
            case effects.Request(call_id, call):
                self._desk.request(call, lambda reply: self.step(Replied(call_id, reply)))
            case effects.ReadKafkaOffsets(token):
                self._events.append(events.KafkaOffsetsRead(token, {}))
            case effects.LookAtApplication(token):
                self._events.append(events.ApplicationSeen(token, None, {}))
            case effects.ReadProgress(token):
                self._events.append(events.Progress(token, dict.fromkeys(self._owned(), _NOWHERE)))
            case effects.StartFetching() | effects.ResumeFetching():
                self._stop = None
                self._give(self._owned())
            case effects.StopEmitting(token, partitions):
                self._stop = token, partitions
                if self._standing is not None:
                    self._give(self._owned() - partitions)
            case effects.TellLost(is_evicted):
                self._stop, self._is_evicted = None, is_evicted
                self._give(frozenset())
                self._fence_if_evicted()
            case effects.RecordFetcher():
                self._desk.record(self.group, effect.as_of_step(self._stepped_ms, self._desk.now_ms()))
            case effects.RecordLost(member, generation, lost):
                nowhere = dict.fromkeys(lost, NO_OFFSET)
                stopped = effects.RecordFetcher("fetcher_stopped", member, generation, None, nowhere, "lost")
                self._desk.record(self.group, stopped)
            case effects.Warn(text) | effects.RecordQuarantined(reason=text):
                _log.warning("group %s: %s", self.group, text)
            case effects.Failed(error, for_good):
                self._failed(error, for_good=for_good)
            case effects.Closed():
                self._subscribe_at_ms = None
                self._desk.note_end(self)

    def _failed(self, error: RebalancerError, *, for_good: bool) -> None:
        is_refused = not for_good and self._machine.state is State.ACTIVE  # a new subscription; no client hears of it
        if not is_refused or self._subscribe_pause_ms == FIRST_RETRY_MS:
            _log.warning("group %s: %s", self.group, error)
        if is_refused:
            self._subscribe_at_ms = self._stepped_ms + self._subscribe_pause_ms
            self._subscribe_pause_ms = min(2 * self._subscribe_pause_ms, LONGEST_RETRY_MS)
        elif for_good and self._standing is not None:
            self.fenced = Fenced(self.group, self._standing.member_id)
            self._desk.give(self.fenced)

    def _connect(self) -> None:
        timeout_ms = self._wanted.session_timeout_ms  # the client's, because the client may read on for that long
        self._events.append(Connected(self._desk.session_id, timeout_ms))

    def _owned(self) -> frozenset[TopicPartition]:
        member = self._machine.member
        return frozenset() if member is None else frozenset(member.lane.record.partitions)

    def _give(self, partitions: frozenset[TopicPartition]) -> None:
        standing, self._target = self._standing, partitions
        if standing is not None:
            self._number += 1
            self._desk.give(Targeted(self.group, standing.member_id, self._number, partitions))

    def _fence_if_evicted(self) -> None:
        """Let the group remove an evicted client: others wait for one lease only, and it may be slower to give up."""
        if self._is_evicted and self._standing is not None:
            self._desk.give(Fenced(self.group, self._standing.member_id, for_good=False))

    # ---- next steps

    def _go_on(self) -> None:
        """Join, read what waits for the member, or end a stop, if possible now."""
        if self._is_stepping:
            return
        if self._subscribe_at_ms is not None and self._stepped_ms >= self._subscribe_at_ms:
            self._subscribe_at_ms = None
            if self._standing is not None:  # else it leaves
                self._subscribe()
                return
        if self._stop is not None and self._has_let_go(self._stop[1]):
            (token, partitions), self._stop = self._stop, None
            self.step(events.Progress(token, dict.fromkeys(partitions, _NOWHERE)))
        elif self._machine.state is State.OUT and self._may_join():
            name = _ILLEGAL.sub("-", self._wanted.client_id)[:MAX_INSTANCE_LENGTH] or "client"
            former, self.consumer, self._is_evicted = self.consumer, f"{name}-{uuid.uuid4()}", False
            self._desk.note_name(self, former)
            self.step(events.Polled(self.consumer, time.time_ns() // 1_000_000))
        elif self._machine.state is State.ACTIVE and self._is_taking_over and not self._has_asked:
            self._has_asked = True
            self._ask_what_waits()

    def _has_let_go(self, partitions: frozenset[TopicPartition]) -> bool:
        standing = self._standing
        return standing is None or (standing.number >= self._number and standing.held.isdisjoint(partitions))

    def _may_join(self) -> bool:
        """Whether the member holds nothing beyond what is known to wait for it."""
        standing = self._standing
        if standing is None or not self._desk.session_id:
            return False
        return self._is_taking_over or (standing.number >= self._number and not standing.held)

    def _ask_what_waits(self) -> None:
        if self.instance_id is None:
            self._taken_over(frozenset())
            return

        def replied(reply: Reply) -> None:
            if isinstance(reply, Refused) and reply.outcome_unknown:
                self._has_asked = False  # ask again once the session is usable
                return
            try:
                waiting = ownership.decode_static(reply.content).partitions if isinstance(reply, Content) else ()
            except NodeContentError as error:
                _log.warning("group %s: %s", self.group, error)
                waiting = ()
            self._taken_over(frozenset(waiting))

        self._desk.request(Get(paths.static(self.group, self.instance_id)), replied)

    def _taken_over(self, waiting: frozenset[TopicPartition]) -> None:
        """Let the client keep what waits for it; a start of these partitions, and perhaps of others, follows."""
        self._is_taking_over = False
        standing = self._standing
        if standing is not None and self._target is None and not standing.held <= waiting:
            self._give(standing.held & waiting)


def registration_of(standing: Standing, instance_id: str | None) -> Registration:
    """Return a member's registration; the timestamp is filled in later."""
    pattern, subscription = registered_as(standing.topic_names, standing.topic_regex)
    session_timeout_ms = min(max(standing.session_timeout_ms, LEAST_SESSION_MS), MAX_SESSION_TIMEOUT_MS)
    margin_ms = max(STOP_MARGIN_MS, session_timeout_ms)  # by then, a client that lives has learned of the stop
    return Registration(
        pattern=pattern,
        subscription=subscription,
        timestamp="",
        client_id=standing.client_id,
        host=standing.client_host.lstrip("/"),
        session_timeout_ms=session_timeout_ms,
        instance_id=instance_id,
        rack=standing.rack_id,
        stop_timeout_ms=min(max(standing.rebalance_timeout_ms, 0) + margin_ms, MAX_STOP_TIMEOUT_MS),
        static_grace_ms=min(session_timeout_ms, MAX_STATIC_GRACE_MS),
    )


def _instance_id(standing: Standing) -> str | None:
    """Return the name under which partitions wait for a member: its instance id, or a dynamic one's member id.

    Two members of the same name would end each other, and clients choose their ids. So only member ids of the usual
    form are kept, and others have a prefix; instance ids that look like either are changed. A name that ZooKeeper's
    layout does not allow becomes a longer one than those that are kept, with a digest.
    """
    wanted = standing.instance_id or standing.member_id
    is_generated = _GENERATED.fullmatch(wanted) is not None
    if not standing.instance_id:
        wanted = wanted if is_generated else DYNAMIC + wanted
    elif is_generated or wanted.startswith((DYNAMIC, _ESCAPE)):
        wanted = _ESCAPE + wanted
    name = quote(wanted, safe="").replace("%", "_").replace("~", "_")
    if name != wanted:
        digest = sha256(wanted.encode()).hexdigest()
        length = MAX_INSTANCE_LENGTH - len(digest)
        return f"{name[:length]:_<{length}}_{digest}"
    return name if len(name) <= MAX_INSTANCE_LENGTH and name.strip(".") else None
