"""The consumer as a pure machine: `step(event, now_ms) -> effects`. It decides every ZooKeeper call and its order.

No clock, no randomness, no I/O: events bring times and names, and a shell performs the effects
(`runtime/machine_thread.py`, or a simulation). When `wake_at_ms` comes, the shell has to send `Tick`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import Enum

from consumer_agent.errors import FencedInstanceError, IllegalTransitionError
from consumer_agent.membership.command_channel import quarantine
from consumer_agent.membership.effects import (
    BecameOut,
    Closed,
    CloseSession,
    CommitFinished,
    Effect,
    EffectQueue,
    EmitUntil,
    Failed,
    Failpoint,
    Forget,
    OpenSession,
    RecordLost,
    RecordQuarantined,
    TellLost,
    TellStored,
    Warn,
)
from consumer_agent.membership.emission import NEVER_MS
from consumer_agent.membership.events import (
    Abandoned,
    CloseRequested,
    CommitRequested,
    Event,
    GaveUp,
    NotOpened,
    Polled,
    Resubscribed,
    StoredRequested,
    Tick,
)
from consumer_agent.membership.join import Join, fenced_text
from consumer_agent.membership.registered_member import Ending, Member, MemberSettings, RefusedCommand
from consumer_agent.membership.rejoin_pause import RejoinPause
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Children,
    Connected,
    ListChildren,
    Lost,
    Replied,
    Reply,
    Suspended,
    Watched,
)
from zkrebalancer.protocol.errors import RebalancerError, ZooKeeperUnavailableError
from zkrebalancer.protocol.registration import Registration

STORY_LENGTH = 50
QUARANTINE_TIMEOUT_MS = 5_000


class State(Enum):
    """The phase of a consumer's life; each comment also says what ends it."""

    OUT = "out"  # in no group, no session; ends when the application polls
    CONNECTING = "connecting"  # waits for a session; ends when connected
    REGISTERING = "registering"  # creates the group and its own nodes; ends when they exist, or are refused
    ACTIVE = "active"  # a member; ends when the application closes, or the membership is lost
    YIELDING = "yielding"  # the application no longer polls: gives up everything cleanly; ends when that is done
    LEAVING = "leaving"  # finishes, commits, deletes its nodes; ends when that is done or given up
    RESIGNING = "resigning"  # a command could not be read: puts it into quarantine, then gives up the session
    CLOSED = "closed"  # the end


TRANSITIONS: dict[State, frozenset[State]] = {
    State.OUT: frozenset({State.CONNECTING, State.CLOSED}),
    State.CONNECTING: frozenset({State.REGISTERING, State.OUT, State.CLOSED}),
    State.REGISTERING: frozenset({State.ACTIVE, State.OUT, State.CLOSED}),
    State.ACTIVE: frozenset({State.YIELDING, State.LEAVING, State.RESIGNING, State.OUT, State.CLOSED}),
    State.YIELDING: frozenset({State.LEAVING, State.OUT, State.CLOSED}),
    State.LEAVING: frozenset({State.CLOSED}),
    State.RESIGNING: frozenset({State.OUT, State.CLOSED}),
    State.CLOSED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """The part of the configuration that the machine needs; registering fills in timestamp and session timeout."""

    member: MemberSettings
    registration: Registration
    zookeeper: str = ""  # the address, for messages
    connect_timeout_ms: int = 10_000


class StateMachine:
    """One consumer. `state` and everything below it is plain data."""

    def __init__(self, settings: MachineSettings) -> None:
        """Begin in no group."""
        self._settings = settings
        self._effects = EffectQueue()
        self.state = State.OUT
        self._story: deque[tuple[int, State, type[Event]]] = deque(maxlen=STORY_LENGTH)  # for error messages
        self.joining: Join | None = None
        self.member: Member | None = None
        self.session_id: int | None = None
        self.former: str | None = None  # the name that it had in the group before
        self._close_not_before_ms = 0  # until then, a commit in flight to Kafka may arrive
        self.was_ever_connected = False
        self.give_up_at_ms: int | None = None  # the first connection, or the quarantine
        self.open_at_ms: int | None = None  # set while the next try to join waits
        self._rejoin_pause = RejoinPause()
        self.refused: RefusedCommand | None = None  # while it is put into quarantine

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle one event and return the effects to perform, in order.

        Raises:
            IllegalTransitionError: the table does not allow what the event leads to; the text lists the last events.

        """
        self._story.append((now_ms, self.state, type(event)))
        self._effects.now_ms = now_ms
        if self.state is not State.CLOSED:
            self._dispatch(event, now_ms)
            self._settle(now_ms)
        return self._effects.drain()

    @property
    def wake_at_ms(self) -> int | None:
        """Return when the next `Tick` is due, None if there is nothing to wait for."""
        times = [self.give_up_at_ms, self.open_at_ms, self.member.wake_at_ms() if self.member is not None else None]
        return min([time for time in times if time is not None], default=None)

    def _dispatch(self, event: Event, now_ms: int) -> None:
        match event:
            case Replied(call_id, reply):
                self._replied(call_id, reply)
            case Connected() | Suspended() | Lost():
                self._session_changed(event, now_ms)
            case Tick():
                self._tick(now_ms)
            case Polled() if self.state is State.OUT:
                self._begin_joining(event, now_ms)
            case NotOpened(error) if self.state is State.CONNECTING:
                self._rejoin_pause.note_refused(now_ms)
                self._fail(error)
            case Resubscribed():
                self._resubscribe(event)
            case CloseRequested() | GaveUp():
                self._close_requested(event)
            case Abandoned():
                self._become_closed()
            case _ if self.member is not None:
                self.member.handle(event, now_ms)
            case _:
                self._handle_outside(event)

    def _handle_outside(self, event: Event) -> None:
        if isinstance(event, CommitRequested):  # without membership nothing was ever returned
            error = None if self.former is None else "the consumer is in no group"
            self._effects.add(CommitFinished((event.token,), error))
        elif isinstance(event, StoredRequested):
            self._effects.add(TellStored(event.token, {}, "the consumer is in no group"))
        elif isinstance(event, Watched) and self.joining is not None:
            self.joining.handle_watched(event.path)

    def _replied(self, call_id: int, reply: Reply) -> None:
        if self._effects.answer(call_id, reply) and self.member is not None:
            self.member.proceed()

    def _tick(self, now_ms: int) -> None:
        if self.give_up_at_ms is not None and now_ms >= self.give_up_at_ms:
            self.give_up_at_ms = None
            if self.state is State.RESIGNING:
                self._become_out()
            elif self.state is State.CONNECTING:
                seconds = self._settings.connect_timeout_ms / 1_000
                text = f"no ZooKeeper answered at {self._settings.zookeeper} within {seconds:g} s"
                self._fail(ZooKeeperUnavailableError(text))
        if self.open_at_ms is not None and now_ms >= self.open_at_ms:
            self.open_at_ms = None
            self._effects.add(OpenSession())
        if self.member is not None:
            self.member.handle_tick(now_ms)

    # ---- session

    def _session_changed(self, event: Connected | Suspended | Lost, now_ms: int) -> None:
        if self.state is State.OUT or self.open_at_ms is not None:
            return  # of a client that was closed after it had reported this
        if isinstance(event, Connected):
            self._connected(event, now_ms)
        elif isinstance(event, Lost):
            self._lost()
        elif self.joining is not None:
            self.joining.connected = False
        elif self.member is not None:
            self.member.handle_suspended(now_ms)

    def _connected(self, event: Connected, now_ms: int) -> None:
        if self.session_id is not None and event.session_id != self.session_id:
            self._lost()
            return
        self.session_id = event.session_id
        self.was_ever_connected = True
        if self.state is State.CONNECTING:
            self._move(State.REGISTERING)
            self.give_up_at_ms = None
        if self.joining is not None:
            self.joining.handle_connected(event.session_id, event.session_timeout_ms)
        elif self.member is not None:
            self.member.handle_connected(now_ms, event.session_timeout_ms)

    def _lost(self) -> None:
        if self.state is State.LEAVING:
            self._lose_member("the session expired while leaving")
            self._become_closed()
        elif self.state in {State.REGISTERING, State.ACTIVE, State.YIELDING, State.RESIGNING}:
            is_fenced = self.member is not None and self.member.is_fenced
            self._lose_member("the session expired")
            (self._be_fenced if is_fenced else self._become_out)()

    # ---- into the group

    def _begin_joining(self, event: Polled, now_ms: int) -> None:
        self._move(State.CONNECTING)
        registration = self._settings.registration._replace(timestamp=str(event.timestamp_ms))
        settings = self._settings
        self.joining = Join(
            self._effects, settings.member.group, event.consumer, registration, settings.zookeeper, self.former
        )
        opens_ms = max(now_ms, self._rejoin_pause.not_before_ms)
        if not self.was_ever_connected:
            self.give_up_at_ms = opens_ms + settings.connect_timeout_ms
        if now_ms < opens_ms:
            self.open_at_ms = opens_ms
        else:
            self._effects.add(OpenSession())

    def _resubscribe(self, event: Resubscribed) -> None:
        member = replace(self._settings.member, ask_application=event.ask_application)
        self._settings = replace(self._settings, member=member, registration=event.registration)
        if self.member is not None:
            self.member.handle_resubscribed(member, event.registration)

    def _settle(self, now_ms: int) -> None:
        """Change state if joining or the membership is over."""
        joining, member = self.joining, self.member
        if joining is not None and isinstance(joining.error, FencedInstanceError):
            self._be_fenced(joining.error)
        elif joining is not None and joining.error is not None:
            self._rejoin_pause.note_refused(now_ms)
            self._fail(joining.error)
        elif joining is not None and joining.registered:
            self.joining = None
            self._rejoin_pause.note_joined(now_ms)
            self._move(State.ACTIVE)
            self._effects.add(Failpoint("after-registration"))
            written = joining.registration
            self.member = Member(self._effects, self._settings.member, joining.consumer, written, now_ms)
            self.member.begin(joining.lease_from_ms, now_ms)
            self.member.handle_resubscribed(self._settings.member, self._settings.registration)  # while it registered
        elif member is not None and member.ending is not None and self.state is not State.RESIGNING:
            self._membership_ended(member, member.ending, now_ms)
        elif member is not None and member.poll_watch.is_over and self.state is State.ACTIVE:
            self._move(State.YIELDING)

    def _membership_ended(self, member: Member, ending: Ending, now_ms: int) -> None:
        if ending is Ending.LEFT:
            self._left(member)
            return
        self._rejoin_pause.note_ended(now_ms)
        if member.refused is not None:
            self._begin_quarantine(member, member.refused, now_ms)
        elif ending is Ending.FENCED:
            self._lose_member("a younger consumer has its group_instance_id")
            self._be_fenced()
        else:
            evicted = ending is Ending.EVICTED
            self._lose_member("evicted by the coordinator" if evicted else member.unclear, is_evicted=evicted)
            if self.state is State.LEAVING:
                self._become_closed()
            elif member.is_fenced:
                self._be_fenced()
            else:
                self._become_out()

    def _left(self, member: Member) -> None:
        self.member = None
        if self.state is State.LEAVING:
            if member.has_given_up:  # without `on_revoke`
                self._effects.add(TellLost())
            self._effects.add(Forget(frozenset(member.lane.record.partitions)))
            # Their offsets were written with the final ones, or earlier.
            self._end_commits(member, member.commits.left_out or member.lane.failure)
            self._become_closed()
        else:
            self.former = member.name
            self._effects.add(TellLost(), Forget(frozenset(member.lane.record.partitions)))
            self._end_commits(member, "the application had not polled in time")
            self._become_out()

    # ---- out of the group

    def _begin_quarantine(self, member: Member, refused: RefusedCommand, now_ms: int) -> None:
        self.refused = refused
        text = f"{member.name}: {refused.name} is refused and put into quarantine: {refused.reason}"
        self._effects.add(Warn(text), RecordQuarantined(member.name, refused.name, refused.reason))
        self._lose_member("a command could not be read")
        self._move(State.RESIGNING)
        self.give_up_at_ms = now_ms + QUARANTINE_TIMEOUT_MS
        listing = ListChildren(paths.quarantine(self._settings.member.group))
        self._effects.request(listing, self._quarantine_listed)

    def _quarantine_listed(self, reply: Reply) -> None:
        if isinstance(reply, Children) and self.refused is not None:
            refused, group = self.refused, self._settings.member.group
            write = quarantine(
                group, refused.name, refused.content, refused.reason, reply.names, self._settings.member.request_limit
            )
            if write.operations:
                self._effects.request(write, self._quarantined)
                return
        self._become_out()

    def _quarantined(self, _reply: Reply) -> None:
        self._become_out()

    def _lose_member(self, reason: str, *, is_evicted: bool = False) -> None:
        """Drop everything that was owned: return nothing more, and run `on_lost`."""
        member, self.member, self.joining = self.member, None, None
        self._effects.forget_calls()
        self._effects.add(EmitUntil(NEVER_MS))
        if member is None:
            return
        self._close_not_before_ms = member.lane.kafka_until_ms
        self.former = member.name
        self._effects.add(Warn(f"{member.name} is out of its group: {reason}"), TellLost(is_evicted))
        partitions = frozenset(member.lane.record.partitions)
        if partitions:
            generation = member.lane.record.generation
            self._effects.add(RecordLost(member.name, generation, partitions), Forget(partitions))
        self._end_commits(member, reason)

    def _end_commits(self, member: Member, error: str | None) -> None:
        if member.commits.tokens:
            self._effects.add(CommitFinished(member.commits.tokens, error))

    def _fail(self, error: RebalancerError) -> None:
        self._effects.add(Failed(error))
        self._become_out()

    def _be_fenced(self, error: FencedInstanceError | None = None) -> None:
        """Leave for good: joining again under this instance id would fence the successor."""
        text = fenced_text(self._settings.registration.instance_id, self._settings.member.group)
        self._effects.add(Failed(error or FencedInstanceError(text), for_good=True))
        self._become_closed()

    def _become_out(self) -> None:
        self._move(State.OUT)
        self._end_session()
        self._effects.add(BecameOut())

    def _close_requested(self, event: CloseRequested | GaveUp) -> None:
        if isinstance(event, GaveUp) and self.state in {State.ACTIVE, State.LEAVING}:
            self._give_up(event.reason)
        elif self.state is State.ACTIVE and self.member is not None:
            self._move(State.LEAVING)
            self.member.handle_close_requested()
        elif self.state is State.YIELDING:
            self._move(State.LEAVING)  # it is leaving already
        elif self.state is not State.LEAVING:
            self._become_closed()

    def _give_up(self, reason: str) -> None:
        """Leave for good, and store what is finished; `on_lost` reports the rest if the application still exists."""
        if self.member is not None:
            self._effects.add(Warn(f"{self.member.name} leaves its group: {reason}"))
            if self.state is State.ACTIVE:
                self._move(State.LEAVING)
            self.member.handle_give_up()

    def _become_closed(self) -> None:
        if self.member is not None:
            self._lose_member("closed before it could leave")
        self._move(State.CLOSED)
        self._end_session()
        self._effects.add(Closed())

    def _end_session(self) -> None:
        self.joining = None
        self.session_id = None
        self._effects.forget_calls()
        self.give_up_at_ms = self.open_at_ms = None
        self._effects.add(CloseSession(self._close_not_before_ms))
        self._close_not_before_ms = 0

    def _move(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            story = "; ".join(f"{at_ms} {state.value}: {event.__name__}" for at_ms, state, event in self._story)
            raise IllegalTransitionError(f"{self.state.value} -> {state.value} is not allowed; story: {story}")
        self.state = state
