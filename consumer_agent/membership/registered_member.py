"""A member: it renews its lease, handles commands one at a time, commits, and leaves. Pure.

When `ending` is set, the registration is over and the state machine drops the member.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from consumer_agent.membership.command_channel import Channel
from consumer_agent.membership.commit import Commits
from consumer_agent.membership.duties import NO_DUTIES, Duties
from consumer_agent.membership.effects import CommitFinished, EffectQueue
from consumer_agent.membership.emission import Emission
from consumer_agent.membership.events import (
    ApplicationSeen,
    CommitRequested,
    Event,
    KafkaCommitted,
    KafkaOffsetsRead,
    OffsetsResolved,
    Progress,
    Revoked,
    StoredRequested,
)
from consumer_agent.membership.fenced_writes import Outcome, WriteLane
from consumer_agent.membership.late_beginnings import LateBeginnings
from consumer_agent.membership.leave import Leave
from consumer_agent.membership.offset_books import Storage
from consumer_agent.membership.poll_watch import PollWatch
from consumer_agent.membership.refused_reads import RefusedReads
from consumer_agent.membership.registration_node import OwnRegistration
from consumer_agent.membership.release import Release
from consumer_agent.membership.stages import Stage
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
    WatchBelow,
    Watched,
)
from zkrebalancer.protocol.command import StartFetcher
from zkrebalancer.protocol.errors import CommandError
from zkrebalancer.protocol.refusals import refused_text
from zkrebalancer.protocol.registration import MAX_LEASE_MS, Registration, lease_ms
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit

RENEWALS_PER_LEASE = 3  # each is two calls: about one call a second with the default session


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The part of the configuration that a member needs."""

    group: str
    auto_commit_interval_ms: int | None = 5_000  # None: the application commits
    ask_application: bool = False  # on_revoke is set
    pause_when_suspended: bool = True
    storage: Storage = Storage.ZOOKEEPER
    begins_anywhere: bool = True  # False: a partition without a stored offset waits for a seek of the application
    max_poll_interval_ms: int = 300_000
    request_limit: RequestLimit = DEFAULT_LIMIT
    duties: Duties = NO_DUTIES
    has_own_session: bool = True  # a lasting watch would stay in a session that others share


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
    """One registration, with everything that belongs to it."""

    def __init__(
        self, effects: EffectQueue, settings: MemberSettings, name: str, registered: Registration, now_ms: int
    ) -> None:
        """Start right after the registration has succeeded, on a connected session."""
        self._effects = effects
        self._settings = settings
        self.name = name
        self._longest_lease_ms = self.lease_ms = min(registered.lease_ms, MAX_LEASE_MS)
        self.registration = OwnRegistration(effects, name, paths.ids(settings.group, name), registered, registered)
        self.lane = WriteLane(
            effects, settings.group, name, self.lease_ms, self._write_ended, settings.storage, settings.request_limit
        )
        self.late_beginnings = LateBeginnings(effects, self.lane, settings.begins_anywhere)
        self.channel = Channel()
        self._channel_path = paths.channel(settings.group, name)
        self._renewal = Multi((Check(paths.owners(settings.group, name)),))
        self._list, self._list_and_watch = (ListChildren(self._channel_path, watch=watch) for watch in (False, True))
        self.work: Start | Stop | None = None  # None while the current command is being read
        self.reading: str | None = None  # the command whose content was requested last
        self.refused: RefusedCommand | None = None
        self.departure: Leave | None = None
        limit_ms = settings.max_poll_interval_ms
        self.poll_watch = PollWatch(effects, name, limit_ms, now_ms + limit_ms * 2 // 3)
        self.ending: Ending | None = None
        self.unclear = "its owners record was changed"  # why, if it ends as UNCLEAR
        self.connected = True
        self.next_renewal_ms = now_ms
        self.renewal_sent_ms: int | None = None  # set while a renewal is in flight
        self.emission = Emission(effects, ends_with_lease=settings.pause_when_suspended)
        self.listing = False
        self.list_again = False
        self.may_watch_below = settings.has_own_session  # False: the server refused it
        self.is_watching_below = False  # its channel: then events name the commands
        self.refused_lists = RefusedReads(effects, name)  # of its channel
        self.commits = Commits(effects, self.lane, settings.auto_commit_interval_ms, now_ms)

    @property
    def has_given_up(self) -> bool:
        """Whether it leaves without asking the application."""
        return self.emission.is_over

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
            self.emission.renew(lease_from_ms, self.lease_ms)
            self.next_renewal_ms = lease_from_ms + self.lease_ms // RENEWALS_PER_LEASE
        self._watch_channel()

    def handle_suspended(self, now_ms: int) -> None:
        """Wait for a new connection."""
        self.connected = self.lane.connected = False
        self.emission.handle_suspended(now_ms)

    def handle_connected(self, now_ms: int, session_timeout_ms: int) -> None:
        """Continue with the same session: renew, watch the channel again, resolve unknown outcomes.

        This server may grant the session less time than the former one.
        """
        self.connected = True
        former_ms, self.lease_ms = self.lease_ms, min(self._longest_lease_ms, lease_ms(session_timeout_ms))
        self.lane.lease_ms = self.lease_ms
        self.emission.handle_connected(now_ms, is_shorter=self.lease_ms < former_ms)
        self._renew(now_ms)
        self._watch_channel()
        self.lane.handle_connected()
        if isinstance(self.work, Start):
            self.work.handle_connected()
        elif self.work is None and self.channel.current is not None and self.departure is None:
            self._read_command(self.channel.current)
        if self.departure is not None:
            self.departure.handle_connected()
        self.proceed()

    def handle(self, event: Event, now_ms: int) -> None:
        """Handle an event that is not about the session, then start what can start."""
        match event:
            case Watched(path, _) if path == self._channel_path:
                self._channel_changed()
            case Watched(path, _) if self.is_watching_below and path.startswith(f"{self._channel_path}/"):
                self._command_changed(path.rpartition("/")[2])
            case OffsetsResolved(token, offsets):
                self.late_beginnings.handle_resolved(token, offsets)
                if isinstance(self.work, Start):
                    self.work.handle_resolved(token, offsets, now_ms)
            case KafkaOffsetsRead(token, found):
                self.late_beginnings.handle_read(token, found)
                if isinstance(self.work, Start):
                    self.work.handle_kafka_offsets(token, found, now_ms)
            case KafkaCommitted(token, failed, is_hopeless):
                self.lane.handle_kafka_committed(token, failed, is_hopeless=is_hopeless)
            case ApplicationSeen():
                self.handle_application_seen(event, now_ms)
            case _:
                self._handle_application(event)
        self.proceed()

    def _handle_application(self, event: Event) -> None:
        giving_up = [one for one in (self.work, self.departure) if isinstance(one, Release)]
        match event:
            case Progress(token, positions):
                for one in (self.commits, *giving_up):
                    one.handle_progress(token, positions)
            case Revoked(token):
                for one in giving_up:
                    one.handle_revoked(token)
            case CommitRequested(token) if self.departure is not None and self.departure.is_measured:
                self._effects.add(CommitFinished((token,), "the consumer has given up its partitions"))
            case CommitRequested(token):
                self.commits.handle_requested(token)
            case StoredRequested(token, partitions):
                late = self.late_beginnings
                self.commits.tell_stored(token, partitions, late.stored.partitions, late.hidden)

    def _channel_changed(self) -> None:
        """Read the next command along with the list, which saves a round trip."""
        is_busy = self.listing or self.is_watching_below or self.departure is not None
        foreseen = None if is_busy else self.channel.foreseen()
        self._list_channel()
        if foreseen is not None:
            self._read_command(foreseen)

    def _command_changed(self, name: str) -> None:
        """Note a new command, which needs no list. Its own ack is the only other change that is expected."""
        is_acking = name == self.channel.current and self.work is not None and self.work.stage is Stage.WRITING
        if self.listing or (self.channel.announced(name) and not is_acking):
            self._list_channel()

    def handle_tick(self, now_ms: int) -> None:
        """Do what is due."""
        self.emission.handle_tick(now_ms)
        if self.connected and self.renewal_sent_ms is None and now_ms >= self.next_renewal_ms:
            self._renew(now_ms)
            self._list_channel()
        self.commits.handle_tick(now_ms)
        self.lane.handle_tick(now_ms)
        if isinstance(self.work, Start):
            self.work.handle_tick(now_ms)
        if self.departure is None:
            self.late_beginnings.handle_tick(now_ms)
            self.poll_watch.handle_tick(now_ms)
        if self.refused_lists.take_due(now_ms) and self.connected:
            self._list_channel()
        self.proceed()

    def wake_at_ms(self) -> int | None:
        """When `handle_tick` has something to do."""
        times = [
            self.commits.wake_at_ms(),
            self.lane.wake_at_ms(),
            self.refused_lists.retry_at_ms,
            self.emission.again_ms,
        ]
        if self.connected and self.renewal_sent_ms is None:
            times.append(self.next_renewal_ms)
        if isinstance(self.work, Start):
            times.append(self.work.wake_at_ms)
        if self.departure is None:
            late = self.late_beginnings
            times += [late.beginnings.retry_at_ms, late.stored.retry_at_ms, late.refused.retry_at_ms]
            times.append(self.poll_watch.wake_at_ms)
        return min([time for time in times if time is not None], default=None)

    def _renew(self, now_ms: int) -> None:
        self.renewal_sent_ms = now_ms
        self.next_renewal_ms = now_ms + self.lease_ms // RENEWALS_PER_LEASE
        self._effects.request(self._renewal, self._renewed, now_ms)

    def _renewed(self, reply: Reply, sent_ms: int) -> None:
        if self.renewal_sent_ms == sent_ms:
            self.renewal_sent_ms = None
        if isinstance(reply, Done) and self.connected:
            self.emission.renew(sent_ms, self.lease_ms)
        elif isinstance(reply, Refused) and not reply.outcome_unknown:
            self.ending = Ending.EVICTED if reply.refusal is Refusal.NO_NODE else Ending.UNCLEAR
            self.unclear = refused_text(self._renewal, reply)

    # ---- commands

    def _watch_channel(self) -> None:
        """Watch the channel on a new connection, then list it: an event names each later command."""
        self.is_watching_below = self.may_watch_below
        if self.is_watching_below:
            self._effects.request(WatchBelow(self._channel_path), self._watching)
        self._list_channel()

    def _watching(self, reply: Reply) -> None:
        if isinstance(reply, Refused) and self.is_watching_below:
            self.is_watching_below = False
            self.may_watch_below = reply.outcome_unknown  # on the next connection
            if self.connected:
                self._list_channel()

    def _list_channel(self) -> None:
        if self.listing:
            self.list_again = True
            return
        self.listing, self.list_again = True, False
        listing = self._list if self.is_watching_below else self._list_and_watch
        self._effects.request(listing, self._channel_listed)

    def _channel_listed(self, reply: Reply) -> None:
        self.listing = False
        if isinstance(reply, Children):
            self.refused_lists.succeeded()
            still_there = self.channel.listed(reply.names)
            if not still_there and self.work is not None and self.work.stage is not Stage.WRITING:
                self.work.handle_cancelled()
        elif reply == Refused(Refusal.NO_NODE):
            self.ending = Ending.EVICTED
            return
        elif isinstance(reply, Refused) and not reply.outcome_unknown:
            self.refused_lists.note(self._list, reply)
            return
        if self.list_again and self.connected:
            self._list_channel()

    def _read_command(self, name: str) -> None:
        self.reading = name
        path = f"{self._channel_path}/{name}"
        self._effects.request(Get(path), self._command_read, name)

    def _command_read(self, reply: Reply, name: str) -> None:
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
            settings = self._settings
            options = settings.begins_anywhere, settings.duties
            self.work = Start(self._effects, self.lane, settings.group, self.name, name, decoded, *options)
        else:
            self.work = Stop(self._effects, self.lane, self.name, self._settings.ask_application, name, decoded)
        self.work.begin()

    def _refuse_command(self, name: str, content: bytes, reason: str) -> None:
        self.refused = RefusedCommand(name, content, reason)
        self.ending = Ending.REFUSED_COMMAND

    def proceed(self) -> None:
        """Start what can start now: the next command, or an ack or a commit if the write lane is free."""
        if self.departure is not None and self.departure.stage is Stage.OVER:
            self.ending = Ending.LEFT
        if self.ending is not None or not self.connected:
            return
        if self.work is not None and self.work.stage is Stage.OVER:
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
        if departure is not None and departure.stage is Stage.WAITING:
            departure.begin()
        elif departure is not None and departure.stage is Stage.READY:
            departure.commit()
        elif departure is None and self.work is not None and self.work.stage is Stage.READY:
            self.work.begin_ack()
        elif self.commits.is_wanted and self._may_commit():
            self.commits.begin()

    def _may_commit(self) -> bool:
        return self.departure is None or self.departure.stage is Stage.REVOKING

    # ---- the application

    def handle_resubscribed(self, settings: MemberSettings, wanted: Registration) -> None:
        """Register the application's new subscription; the coordinator decides what follows."""
        self._settings, before = settings, self.registration.wanted
        self.registration.wanted = wanted._replace(
            timestamp=before.timestamp, session_timeout_ms=before.session_timeout_ms
        )
        self.proceed()

    def handle_close_requested(self) -> None:
        """Leave. A command that is not being acknowledged is dropped, and deleted with the channel."""
        waits = self.work is not None and self.work.stage is Stage.REVOKING
        self._depart("closed", ask=self._settings.ask_application or waits)

    def handle_application_seen(self, seen: ApplicationSeen, now_ms: int) -> None:
        """Give up all partitions, without `on_revoke`, if the application has been away for too long."""
        if self.departure is None:
            self.poll_watch.handle_seen(seen, now_ms)
            if self.poll_watch.is_over:
                self.handle_give_up()

    def handle_give_up(self) -> None:
        """Leave at once, without `on_revoke`, and without waiting for one in progress."""
        self.emission.end()
        if self.departure is None:
            self._depart("lost", ask=False)
        else:
            self.departure.stop_asking()
            self.proceed()

    def _depart(self, reason: str, *, ask: bool) -> None:
        if self.work is not None and self.work.stage is not Stage.WRITING:
            self.work.stage, self.work = Stage.OVER, None
        group = self._settings.group
        self.departure = Leave(self._effects, self.lane, self.name, ask, self.channel, group, reason)
        self.proceed()

    def _write_ended(self, outcome: Outcome) -> None:
        if outcome in {Outcome.EVICTED, Outcome.UNCLEAR}:
            self.ending = Ending.EVICTED if outcome is Outcome.EVICTED else Ending.UNCLEAR
            self.unclear = self.lane.refusal or self.unclear
        elif self.lane.writer is not None:
            self.lane.writer.handle_outcome(outcome)
            self.late_beginnings.keep(self.lane.record.partitions)
            if isinstance(self.lane.writer, Stop) and outcome is not Outcome.CANCELLED:
                self.commits.handle_given_up(self.lane.failure)
            if isinstance(self.lane.writer, Start) and outcome is not Outcome.CANCELLED:
                self.late_beginnings.add(self.lane.writer.unanswered, self.lane.writer.late, self.lane.writer.hidden)
            if self.lane.writer is self.work and self.is_fenced and outcome is not Outcome.CANCELLED:
                self.ending = Ending.FENCED
