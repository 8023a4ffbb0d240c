"""A member: it renews its lease, handles commands one at a time, commits, and leaves. Pure.

When `ending` is set, the registration is over and the state machine drops the member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from consumer_agent.errors import RegistrationError
from consumer_agent.membership.command_channel import Channel
from consumer_agent.membership.commit import Commits
from consumer_agent.membership.effects import EffectQueue, EmitUntil, Failed, Purpose
from consumer_agent.membership.events import ApplicationSeen, Position
from consumer_agent.membership.fenced_writes import Outcome, WriteLane
from consumer_agent.membership.leave import Leave, Leaving
from consumer_agent.membership.offset_books import Storage
from consumer_agent.membership.poll_watch import PollWatch
from consumer_agent.membership.registration_node import OwnRegistration
from consumer_agent.membership.start import Start
from consumer_agent.membership.stop import Stop
from zkrebalancer.protocol import command, paths
from zkrebalancer.protocol.calls import (
    Check,
    Children,
    Content,
    Done,
    Get,
    ListChildren,
    Multi,
    Refusal,
    Refused,
    Reply,
)
from zkrebalancer.protocol.command import StartFetcher
from zkrebalancer.protocol.errors import CommandError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit

FOREVER_MS = 2**63 - 1
NEVER_MS = 0
RENEWALS_PER_LEASE = 3  # each is two calls: about one call a second with the default session


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The part of the configuration that a member needs."""

    group: str
    auto_commit_interval_ms: int | None = 5_000  # None: the application commits
    ask_application: bool = False  # on_revoke is set
    pause_when_suspended: bool = True
    storage: Storage = Storage.ZOOKEEPER
    begins_anywhere: bool = True  # False: a partition without a stored offset waits for the application to seek
    max_poll_interval_ms: int = 300_000
    request_limit: RequestLimit = DEFAULT_LIMIT


class Ending(Enum):
    """Why a membership is over."""

    LEFT = auto()
    EVICTED = auto()
    UNCLEAR = auto()  # its ownership record is not what it wrote, or its writes are refused for good
    REFUSED_COMMAND = auto()
    FENCED = auto()  # a younger consumer has its instance id


@dataclass(frozen=True, slots=True)
class RefusedCommand:
    """A command that could not be read, for the quarantine."""

    name: str
    content: bytes
    reason: str


class Member:
    """Everything about one registration."""

    def __init__(
        self, effects: EffectQueue, settings: MemberSettings, name: str, registered: Registration, now_ms: int
    ) -> None:
        """Begin right after the registration has succeeded, on a connected session."""
        self._effects = effects
        self._settings = settings
        self.name = name
        self.lease_ms = registered.lease_ms
        self.registration = OwnRegistration(effects, paths.ids(settings.group, name), registered, registered)
        self.lane = WriteLane(effects, settings.group, name, self.lease_ms, settings.storage, settings.request_limit)
        self.channel = Channel()
        self.work: Start | Stop | None = None  # None while the current command is being read
        self.reading: str | None = None  # the command whose content was requested last
        self.refused: RefusedCommand | None = None
        self.departure: Leave | None = None
        limit_ms = settings.max_poll_interval_ms
        self.poll_watch = PollWatch(effects, name, limit_ms, now_ms + limit_ms * 2 // 3)
        self.has_given_up = False  # leaves without asking the application
        self.ending: Ending | None = None
        self.connected = True
        self.next_renewal_ms = now_ms
        self.renewal_sent_ms: int | None = None  # while one is under way
        self.listing = False
        self.list_again = False
        self.commits = Commits(effects, self.lane, settings.auto_commit_interval_ms, now_ms)

    @property
    def is_fenced(self) -> bool:
        """Whether it has to leave for a younger consumer with the same instance id."""
        return isinstance(self.work, Stop) and self.work.is_fencing

    # ---- session and lease

    def begin(self, lease_from_ms: int | None, now_ms: int) -> None:
        """Count the registration as the first renewal if the time it was sent is known, and look for commands."""
        if lease_from_ms is None:
            self._renew(now_ms)
        else:
            self._extend_lease(lease_from_ms)
            self.next_renewal_ms = lease_from_ms + self.lease_ms // RENEWALS_PER_LEASE
        self._list_channel()

    def handle_suspended(self) -> None:
        """The connection broke: stop emitting, as the lease may not be renewed in time."""
        self.connected = self.lane.connected = False
        if self._settings.pause_when_suspended:
            self._effects.add(EmitUntil(NEVER_MS))

    def handle_connected(self, now_ms: int) -> None:
        """Continue with the same session: renew, watch the channel again, resolve unknown outcomes."""
        self.connected = True
        self._renew(now_ms)
        self._list_channel()
        self.lane.handle_connected()
        if isinstance(self.work, Start):
            self.work.handle_connected()
        elif self.work is None and self.channel.current is not None and self.departure is None:
            self._read_command(self.channel.current)
        if self.departure is not None:
            self.departure.handle_connected()
        self._proceed()

    def handle_channel_changed(self) -> None:
        """Commands came or went. The next one is read along with the list, which saves a round trip."""
        foreseen = None if self.listing or self.departure is not None else self.channel.foreseen()
        self._list_channel()
        if foreseen is not None:
            self._read_command(foreseen)

    def handle_tick(self, now_ms: int) -> None:
        """Do what is due."""
        if self.connected and self.renewal_sent_ms is None and now_ms >= self.next_renewal_ms:
            self._renew(now_ms)
            self._list_channel()
        self.commits.handle_tick(now_ms)
        self._maybe_end_write(self.lane.handle_tick(now_ms))
        if isinstance(self.work, Start):
            self.work.handle_tick(now_ms)
        if self.departure is None:
            self.poll_watch.handle_tick(now_ms)
        self._proceed()

    def wake_at_ms(self) -> int | None:
        """When `handle_tick` has something to do."""
        times = [self.commits.wake_at_ms(), self.lane.wake_at_ms()]
        if self.connected and self.renewal_sent_ms is None:
            times.append(self.next_renewal_ms)
        if isinstance(self.work, Start):
            times.append(self.work.retry_at_ms)
        if self.departure is None:
            times.append(self.poll_watch.wake_at_ms)
        return min((time for time in times if time is not None), default=None)

    def _renew(self, now_ms: int) -> None:
        self.renewal_sent_ms = now_ms
        self.next_renewal_ms = now_ms + self.lease_ms // RENEWALS_PER_LEASE
        check = Multi((Check(paths.owners(self._settings.group, self.name)),))
        self._effects.request(Purpose.RENEW, check, now_ms)

    def _renewed(self, sent_ms: object, reply: Reply) -> None:
        if self.renewal_sent_ms == sent_ms:
            self.renewal_sent_ms = None
        if isinstance(reply, Done) and isinstance(sent_ms, int) and self.connected:
            self._extend_lease(sent_ms)
        elif isinstance(reply, Refused) and not reply.outcome_unknown:
            self.ending = Ending.EVICTED if reply.refusal is Refusal.NO_NODE else Ending.UNCLEAR

    def _extend_lease(self, from_ms: int) -> None:
        if self.has_given_up:
            return
        until_ms = from_ms + self.lease_ms if self._settings.pause_when_suspended else FOREVER_MS
        self._effects.add(EmitUntil(until_ms))

    # ---- commands

    def _list_channel(self) -> None:
        if self.listing:
            self.list_again = True
            return
        self.listing, self.list_again = True, False
        listing = ListChildren(paths.channel(self._settings.group, self.name), watch=True)
        self._effects.request(Purpose.LIST_CHANNEL, listing)

    def _channel_listed(self, reply: Reply) -> None:
        self.listing = False
        if isinstance(reply, Children):
            still_there = self.channel.listed(reply.names)
            if not still_there and self.work is not None and not self.work.is_acking:
                self.work.handle_cancelled()
        elif reply == Refused(Refusal.NO_NODE):
            self.ending = Ending.EVICTED
            return
        if self.list_again and self.connected:
            self._list_channel()

    def _read_command(self, name: str) -> None:
        self.reading = name
        path = f"{paths.channel(self._settings.group, self.name)}/{name}"
        self._effects.request(Purpose.READ_COMMAND, Get(path), name)

    def _command_read(self, name: object, reply: Reply) -> None:
        if name == self.reading:
            self.reading = None
        current = self.channel.current
        if current is None or name != current or self.work is not None or self.departure is not None:
            return
        if isinstance(reply, Content):
            self._begin_command(current, reply.content)
        elif isinstance(reply, Refused) and reply.outcome_unknown:
            if self.connected:
                self._read_command(current)
        elif reply == Refused(Refusal.NO_NODE):  # cancelled before it was read
            self.channel.finish()
        else:
            self._refuse_command(current, b"", "ZooKeeper does not let it be read")

    def _begin_command(self, name: str, content: bytes) -> None:
        try:
            decoded = command.decode(content)
        except CommandError as error:
            self._refuse_command(name, content, str(error))
            return
        if isinstance(decoded, StartFetcher):
            anywhere = self._settings.begins_anywhere
            self.work = Start(self._effects, self.lane, self._settings.group, self.name, name, decoded, anywhere)
        else:
            self.work = Stop(self._effects, self.lane, self.name, name, decoded, self._settings.ask_application)
        self.work.begin()

    def _refuse_command(self, name: str, content: bytes, reason: str) -> None:
        self.refused = RefusedCommand(name, content, reason)
        self.ending = Ending.REFUSED_COMMAND

    def _proceed(self) -> None:
        """Begin what can begin now: the next command, or an ack or a commit if the write lane is free."""
        if self.ending is not None or not self.connected:
            return
        if self.work is not None and self.work.is_over:
            self.channel.finish()
            self.work = None
        if self.departure is None:
            self.registration.proceed()
            name = self.channel.begin_next()
            if name is not None and name != self.reading:
                self._read_command(name)
        if self.lane.write is None and self.commits.progress_token is None:
            self._use_lane()

    def _use_lane(self) -> None:
        departure = self.departure
        if departure is not None and departure.stage is Leaving.WAITING:
            departure.begin()
        elif departure is not None and departure.stage is Leaving.READY:
            departure.commit()
        elif departure is None and self.work is not None and self.work.is_ready:
            self.work.begin_ack()
        elif self._may_commit() and self.commits.is_wanted:
            self.commits.begin()

    # ---- commits

    def handle_commit_requested(self, token: int) -> None:
        """The application requests a commit."""
        self.commits.handle_requested(token)
        self._proceed()

    def _may_commit(self) -> bool:
        return self.departure is None or self.departure.stage is Leaving.REVOKING

    def handle_kafka_committed(self, token: int, failed: Mapping[TopicPartition, str], *, is_hopeless: bool) -> None:
        """Kafka has stored offsets, or has not."""
        self._maybe_end_write(self.lane.handle_kafka_committed(token, failed, is_hopeless=is_hopeless))
        self._proceed()

    # ---- the application

    def handle_progress(self, token: int, positions: Mapping[TopicPartition, Position]) -> None:
        """The positions that a commit, a stop or leaving asked for."""
        self.commits.handle_progress(token, positions)
        if isinstance(self.work, Stop):
            self.work.handle_progress(token, positions)
        if self.departure is not None:
            self.departure.handle_progress(token, positions)
        self._proceed()

    def handle_revoked(self, token: int) -> None:
        """The application's `on_revoke` is over."""
        if isinstance(self.work, Stop):
            self.work.handle_revoked(token)
        if self.departure is not None:
            self.departure.handle_revoked(token)
        self._proceed()

    def handle_resolved(self, token: int, offsets: Mapping[TopicPartition, int | None], now_ms: int) -> None:
        """Kafka has answered where partitions begin."""
        if isinstance(self.work, Start):
            self.work.handle_resolved(token, offsets, now_ms)
        self._proceed()

    def handle_kafka_offsets(
        self, token: int, found: Mapping[TopicPartition, tuple[int, str]] | None, now_ms: int
    ) -> None:
        """Kafka has answered which offsets it stores."""
        if isinstance(self.work, Start):
            self.work.handle_kafka_offsets(token, found, now_ms)
        self._proceed()

    def handle_resubscribed(self, settings: MemberSettings, wanted: Registration) -> None:
        """Register the application's new subscription; the coordinator decides what follows."""
        self._settings, before = settings, self.registration.wanted
        self.registration.wanted = replace(
            wanted, timestamp=before.timestamp, session_timeout_ms=before.session_timeout_ms
        )
        self._proceed()

    def _registration_answered(self, purpose: Purpose, sent: object, reply: Reply) -> None:
        self.registration.handle_reply(purpose, sent, reply)
        refusal, self.registration.refused = self.registration.refused, None
        if refusal is not None:
            text = f"ZooKeeper refused to change the subscription of {self.name}: {refusal}"
            self._effects.add(Failed(RegistrationError(text)))

    def handle_close_requested(self) -> None:
        """Leave. A command that is not being acknowledged is dropped: it is deleted with the channel."""
        waits = isinstance(self.work, Stop) and self.work.waits_for_application
        self._depart("closed", ask=self._settings.ask_application or waits)

    def handle_application_seen(self, seen: ApplicationSeen, now_ms: int) -> None:
        """Give up all partitions, without `on_revoke`, if the application has been away for too long."""
        if self.departure is None:
            self.poll_watch.handle_seen(seen, now_ms)
            if self.poll_watch.is_over:
                self.handle_give_up()

    def handle_give_up(self) -> None:
        """Leave at once: without `on_revoke`, and without waiting for one that is under way."""
        self.has_given_up = True
        self._effects.add(EmitUntil(NEVER_MS))
        if self.departure is None:
            self._depart("lost", ask=False)
        else:
            self.departure.stop_asking()
            self._proceed()

    def _depart(self, reason: str, *, ask: bool) -> None:
        if self.work is not None and not self.work.is_acking:
            self.work = None
        self.departure = Leave(self._effects, self.lane, self.channel, self._settings.group, self.name, reason, ask)
        self._proceed()

    # ---- answers

    def handle_reply(self, purpose: Purpose, argument: object, reply: Reply) -> None:
        """Handle ZooKeeper's answer."""
        if purpose is Purpose.RENEW:
            self._renewed(argument, reply)
        elif purpose is Purpose.LIST_CHANNEL:
            self._channel_listed(reply)
        elif purpose is Purpose.READ_COMMAND:
            self._command_read(argument, reply)
        elif purpose is Purpose.READ_OFFSET and isinstance(self.work, Start) and isinstance(argument, tuple):
            self.work.handle_offset(argument, reply, self.connected)
        elif purpose is Purpose.READ_MARK and isinstance(self.work, Start):
            self.work.handle_mark(str(argument), reply, self.connected)
        elif purpose in {Purpose.WRITE_REGISTRATION, Purpose.READ_REGISTRATION}:
            self._registration_answered(purpose, argument, reply)
        elif purpose in {Purpose.WRITE, Purpose.SYNC_WRITE, Purpose.VERIFY_WRITE}:
            self._maybe_end_write(self.lane.handle_reply(purpose, reply))
        elif purpose in {Purpose.LEAVE, Purpose.LIST_BEFORE_LEAVING} and self.departure is not None:
            self.departure.handle_reply(purpose, reply, self.connected)
            if self.departure.stage is Leaving.GONE:
                self.ending = Ending.LEFT
        self._proceed()

    def _maybe_end_write(self, outcome: Outcome | None) -> None:
        if outcome is None:
            return
        if outcome in {Outcome.EVICTED, Outcome.UNCLEAR}:
            self.ending = Ending.EVICTED if outcome is Outcome.EVICTED else Ending.UNCLEAR
        elif self.commits.is_writing:
            self.commits.end(self.lane.failure)
        elif self.work is not None and self.work.is_acking:
            is_fenced = self.is_fenced and outcome is not Outcome.CANCELLED
            self.work.handle_outcome(outcome)
            if is_fenced:
                self.ending = Ending.FENCED
        elif self.departure is not None and self.departure.stage is Leaving.COMMITTING:
            self.departure.delete()
