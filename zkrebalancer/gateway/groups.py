"""Runs the machine of `group_protocol`: requests in, answers out, its timers and its writes.

Any greenlet, and any callback, may call `step`: an event that arrives during a step is handled after it. Effects are
performed in order, without a switch to another greenlet, so what `when_answered` starts keeps the order of the
decisions.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping

import gevent
from gevent.event import Event
from gevent.lock import Semaphore

from zkrebalancer.gateway.agents import Agents
from zkrebalancer.gateway.buckets import CLAIM_AGAIN, Buckets, Claim
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.nodes import node_name, node_path
from zkrebalancer.gateway.pauses import FIRST_S, Pauses
from zkrebalancer.gateway.session import CallRefusedError, Session
from zkrebalancer.gateway.turns import let_others_run
from zkrebalancer.group_protocol import effects
from zkrebalancer.group_protocol.answers import Answer
from zkrebalancer.group_protocol.effects import (
    BucketLoaded,
    BucketLoading,
    BucketLost,
    BucketRefused,
    Failed,
    GroupLoaded,
    Received,
    Reply,
    Report,
    Reported,
    Store,
    Stored,
    Tick,
)
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.figures import GroupFigures
from zkrebalancer.group_protocol.machine import Machine
from zkrebalancer.group_protocol.placement import BUCKETS, bucket_of, gateway_of
from zkrebalancer.group_protocol.requests import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    Request,
    SyncGroupRequest,
)
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.group_protocol.stored import StoredContent, StoredGroup
from zkrebalancer.group_protocol.topics import Topic, of_groups
from zkrebalancer.protocol.calls import Check
from zkrebalancer.protocol.complaints import Complaints, LineRate
from zkrebalancer.protocol.errors import PatternError, ZooKeeperUnavailableError
from zkrebalancer.runtime import clock

MAX_MATCHING = 1_000  # expressions that wait to be matched
HOLD_S = 1.0  # longest time for which a request waits until its group is served; clients ask again ten times a second
CLAIM_RETRY_S = 0.2  # while another gateway has yet to give up the bucket
LONGEST_REFUSED_S = 5.0  # until a group hears that ZooKeeper refused its write; sessions of members may last 6 s
REFUSED_SHOWN_S = 60.0  # after a group's last try
MAX_WAIT_MS = 60_000
# Members repeat these requests until they are served. A commit must not wait: a later one may have gone elsewhere.
MAY_WAIT = (JoinGroupRequest, SyncGroupRequest, HeartbeatRequest, ConsumerGroupHeartbeatRequest)
JOINS = (JoinGroupRequest, ConsumerGroupHeartbeatRequest)  # requests for which the coordinator may make a member's id
_log = logging.getLogger(__name__)


class Groups:
    """The groups that this gateway serves."""

    def __init__(
        self,
        session: Session,
        settings: GroupProtocolSettings,
        metrics: Metrics,
        when_lost: Callable[[], None],
        want_topics: Callable[[], None],
        agents: Agents | None = None,
        remember_topics: Callable[[Mapping[str, Topic]], None] = lambda _topics: None,
    ) -> None:
        """Serve no bucket yet.

        `when_lost` has to arrange for another call of `serve`. `want_topics` is called when the first KIP-848 group is
        used; `TopicsRead` has to follow. `agents`: of the members of central groups. `remember_topics` gets the topics
        that groups had when they were stored: `TopicsRead` has to have them until they are known not to exist.
        """
        self._session = session
        self._machine = Machine(settings)
        self._metrics = metrics
        self._buckets = Buckets(session)
        self._when_lost = when_lost
        self._want_topics = want_topics
        self._agents = agents
        self._remember_topics = remember_topics
        self._claims: dict[int, Claim] = {}
        self._claiming: set[int] = set()
        self._refused: dict[int, str] = {}  # of these, those that ZooKeeper refuses, and how
        self._claim_pauses = Pauses()
        self._complaints = Complaints()
        self._lines = LineRate()  # a client may form any number of groups
        self._wanted: set[int] = set()
        self._is_placed = False  # whether `_wanted` is up to date
        self._events: deque[effects.Event] = deque()
        self._is_stepping = False
        self._tickets = itertools.count(1)
        self._matching: dict[str, gevent.Greenlet[..., None]] = {}  # expression -> finds out what it matches
        self._one_matches = Semaphore()
        self._waiting: dict[int, Callable[[Answer], None]] = {}
        self._held: dict[int, list[Received]] = {}  # bucket -> requests that wait until it is served
        self._failures = Pauses()
        self._write_pauses = Pauses()
        self._unstored: dict[str, tuple[str, float]] = {}  # group -> what ZooKeeper refuses to write, and when it did
        self._awaited_ms = 0  # when the timers' greenlet wakes up
        self._sooner = Event()  # set when a deadline is earlier than that

    # ---- requests

    def receive(
        self, request: Request, api_version: int, client: tuple[str, str], when_answered: Callable[[Answer], None]
    ) -> None:
        """Handle a request of a client (id, host); `when_answered` gets the answer at any time and must not block."""
        if self._claims and not self._session.has_lease:
            self.lose_all()
        if self._agents is not None or isinstance(request, ConsumerGroupHeartbeatRequest):
            self._want_topics()
        ticket = next(self._tickets)
        self._waiting[ticket] = when_answered
        received = Received(ticket, request, api_version, *client, _fresh_id(request))
        if isinstance(request, MAY_WAIT) and self._is_served_soon(bucket_of(request.group_id)):
            self._hold(received, bucket_of(request.group_id))
        else:
            self.step(received)

    def match(self, expression: str) -> bool:
        """Find out which topics an expression matches; others have their turns meanwhile.

        Return whether a request may go on: it waits for `HOLD_S` at most, as its client may have gone by then.
        """
        if not self._machine.needs_match(expression):
            return True
        if expression not in self._matching:
            if len(self._matching) >= MAX_MATCHING:
                return False
            self._matching[expression] = gevent.spawn(self._match, expression)
        matching = self._matching[expression]
        matching.join(HOLD_S)
        return bool(matching.ready())

    def _match(self, expression: str) -> None:
        try:
            with self._one_matches, contextlib.suppress(PatternError):
                for _some in self._machine.match_in_turns(expression):
                    let_others_run()
        finally:
            del self._matching[expression]

    def _is_served_soon(self, bucket: int) -> bool:
        """Whether this gateway is about to serve the bucket, as far as it knows."""
        return bucket in self._claiming or (bucket not in self._claims and not self._is_placed)

    def _hold(self, received: Received, bucket: int) -> None:
        """Handle a request once its bucket is served, and after HOLD_S in any case.

        Clients repeat a refused request without a pause. Thousands of them would keep this process so busy that it
        could not renew its lease, and would have to refuse them for ever.
        """
        held = self._held.setdefault(bucket, [])
        held.append(received)
        if len(held) == 1:
            gevent.spawn_later(HOLD_S, self._release, bucket, held)

    def holds(self, group_id: str) -> bool:
        """Whether requests of this group wait until it is served: no group counts their memory yet."""
        return bucket_of(group_id) in self._held

    def _release(self, bucket: int, held: list[Received]) -> None:
        if self._held.get(bucket) is held:
            for received in self._held.pop(bucket):
                self.step(received)

    def step(self, event: effects.Event) -> None:
        """Handle an event, or queue it if another one is being handled."""
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                for effect in self._machine.step(self._events.popleft(), now_ms()):
                    self._perform(effect)
        finally:
            self._is_stepping = False
        deadline_ms = self._machine.next_deadline_ms()
        if deadline_ms is not None and deadline_ms < self._awaited_ms:
            self._sooner.set()

    def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case Reply():
                self._waiting.pop(effect.ticket)(effect.answer)
            case Store():
                self._store(effect)
            case Reported() if self._agents is not None:
                self._agents.reported(effect)
            case Report():
                self._report(effect)
            case Failed():
                self._failed(effect)

    def _report(self, effect: Report) -> None:
        text, now_s = f"group {effect.group_id}: {effect.text}", now_ms() / 1_000
        host, lines = effect.client_host, self._lines  # a client may repeat what is refused without end
        shown = self._complaints.text(f"host {host}", text, now_s, lines) if host else lines.text(text, now_s)
        if shown is not None:
            _log.info("%s", shown)

    def _failed(self, effect: Failed) -> None:
        pause_s = self._failures.after_failure(effect.group_id, now_ms() / 1_000)
        self._metrics.errors["group"] += 1
        shown = effect.text if pause_s == FIRST_S else "again"  # the details are logged once
        _log.error("group %s failed (%s) and is not served for %g s: %s", effect.group_id, effect.error, pause_s, shown)
        if effect.is_stored:
            _log.error(
                "%s cannot be used, and its members have to wait: keep a copy for a report, then delete it",
                node_path(effect.group_id),
            )
        gevent.spawn_later(pause_s, self._load_again, effect.group_id)

    def _load_again(self, group_id: str) -> None:
        """Read a group that had failed."""
        claim = self._claims.get(bucket_of(group_id))
        if claim is None:
            return  # it will be read with its bucket
        try:
            content = self._buckets.read(claim, [node_name(group_id)]).get(group_id)
        except ZooKeeperUnavailableError as error:
            _log.warning("group %s is not served yet: %s", group_id, error)
            gevent.spawn_later(CLAIM_RETRY_S, self._load_again, group_id)
            return
        if self._claims.get(claim.bucket) is claim:
            self._remember_topics(of_groups([] if content is None else [content]))
            self.step(GroupLoaded(group_id, content))
            if content is None and self._agents is not None:
                self._agents.reported(Reported(group_id, ()))

    def _store(self, effect: Store) -> None:
        def stored(error: ErrorCode, refusal: str = "") -> None:
            if error:
                self._write_failed(effect.group_id, refusal or error.name)
            if refusal:
                self._unstored[effect.group_id] = refusal, now_ms() / 1_000
            else:
                self._unstored.pop(effect.group_id, None)
            if error is ErrorCode.NOT_COORDINATOR and self._claims.get(bucket) is claim:
                self._lose(bucket)
                self._when_lost()
            if refusal or error is ErrorCode.GROUP_MAX_SIZE_REACHED:  # a group that heard of it would try again at once
                pause_s = self._write_pauses.after_failure(effect.group_id, now_ms() / 1_000)
                pause_s = min(pause_s, LONGEST_REFUSED_S) if refusal else pause_s
                gevent.spawn_later(pause_s, self.step, Stored(effect.write_id, error))
            else:
                self.step(Stored(effect.write_id, error))

        bucket = bucket_of(effect.group_id)
        claim = self._claims.get(bucket)
        if claim is None:
            self.step(Stored(effect.write_id, ErrorCode.NOT_COORDINATOR))
        else:
            self._buckets.store(claim, effect.group_id, effect.content, stored)

    def _write_failed(self, group_id: str, reason: str) -> None:
        self._metrics.errors["zookeeper"] += 1
        text = self._complaints.text(f"group {group_id}", reason, now_ms() / 1_000)
        if text is not None:
            _log.warning("group %s could not be stored: %s", group_id, text)

    def wake_timers(self) -> None:
        """Wake due timers, for ever; runs in a separate greenlet."""
        while True:
            self._sooner.clear()
            latest_ms = now_ms() + MAX_WAIT_MS
            deadline_ms = self._machine.next_deadline_ms()
            self._awaited_ms = latest_ms if deadline_ms is None else min(deadline_ms, latest_ms)
            if not self._sooner.wait(max(0, self._awaited_ms - now_ms()) / 1_000):
                self.step(Tick())

    # ---- buckets

    def serve(self, number: int, alive: Collection[int]) -> None:
        """Claim and serve the buckets of the gateway `number`, given the live gateways, and give up all others.

        Raises:
            ZooKeeperUnavailableError: the connection broke; call again once it is back.

        """
        names = [str(one) for one in alive]
        self._is_placed = True
        self._wanted = {bucket for bucket in range(BUCKETS) if gateway_of(bucket, names) == str(number)}
        for bucket in set(self._claims) - self._wanted:
            self._lose(bucket)
        if self._agents is not None:
            self._agents.keep(self._wanted)
        self._buckets.give_up(set(range(BUCKETS)) - self._wanted)
        for bucket in sorted(self._wanted - set(self._claims) - self._claiming):
            self.step(BucketLoading(bucket))
            self._claiming.add(bucket)
            gevent.spawn(self._claim, bucket, number, self._session.session_id)

    def lose_all(self) -> None:
        """Stop serving, because the session or the lease is over. `when_lost` has to arrange for a call of `serve`."""
        if self._claims:
            _log.warning("no group is served until the ZooKeeper session is renewed")
        self._wanted, self._is_placed = set(), False
        for bucket in [*self._claims]:
            self._lose(bucket)
        self._when_lost()

    def _lose(self, bucket: int) -> None:
        self._claims.pop(bucket, None)
        self.step(BucketLost(bucket))

    def _claim(self, bucket: int, number: int, session_id: int) -> None:
        """Claim a bucket, read its groups and serve it; retry until that succeeds or is no longer wanted."""

        def is_wanted() -> bool:
            is_same_session = session_id == self._session.session_id and self._session.has_lease
            return bucket in self._wanted and is_same_session

        try:
            while is_wanted():
                pause_s = CLAIM_RETRY_S
                try:
                    claim = self._buckets.claim(bucket, number)
                    groups = {} if claim is None else self._buckets.read_all(claim)
                except ZooKeeperUnavailableError as error:
                    pause_s = self._claim_failed(bucket, error)
                else:
                    if claim is not None and is_wanted():
                        self._begin(claim, groups)
                        return
                    self._note_not_refused(bucket)
                until_us = clock.steady_us() + int(pause_s * 1e6)
                gevent.sleep(CLAIM_RETRY_S)
                while is_wanted() and clock.steady_us() < until_us:
                    gevent.sleep(CLAIM_RETRY_S)
            self.step(BucketLost(bucket))
            self._when_lost()  # `serve` then gives up what is no longer wanted, and claims what is wanted again
        finally:
            self._claiming.discard(bucket)
            self._refused.pop(bucket, None)

    def _claim_failed(self, bucket: int, error: ZooKeeperUnavailableError) -> float:
        """Note why a bucket is not served yet; return how long to wait. Others do not wait for one that is refused."""
        self._metrics.errors["zookeeper"] += 1
        now_s = now_ms() / 1_000
        text = self._complaints.text(str(bucket), str(error), now_s)
        if text is not None:
            _log.warning("bucket %d is not served yet: %s", bucket, text)
        if not isinstance(error, CallRefusedError) or error.refusal in CLAIM_AGAIN:
            self._note_not_refused(bucket)
            return CLAIM_RETRY_S
        self._refused[bucket] = str(error)
        self.step(BucketRefused(bucket))
        return self._claim_pauses.after_failure(str(bucket), now_s)

    def _note_not_refused(self, bucket: int) -> None:
        """Let lists wait for a bucket again that was refused, and is not any more: its groups may soon be served."""
        if self._refused.pop(bucket, None) is not None:
            self.step(BucketLoading(bucket))

    def _begin(self, claim: Claim, groups: Mapping[str, StoredContent]) -> None:
        """Serve a bucket whose groups were read."""
        claim.served_since_us = clock.steady_us()
        self._claims[claim.bucket] = claim
        if not all(isinstance(group, StoredGroup) for group in groups.values()):
            self._want_topics()
        self._remember_topics(of_groups(groups.values()))
        self.step(BucketLoaded(claim.bucket, groups))
        if self._agents is not None:
            self._agents.loaded(claim.bucket, groups)
        self._release(claim.bucket, self._held.get(claim.bucket, []))

    def has_taken_over_since(self, since_us: int, group_id: str) -> bool:
        """Whether this gateway serves a group, and another one may have served it at `since_us` or later."""
        claim = self._claims.get(bucket_of(group_id))
        return claim is not None and since_us < claim.served_since_us

    def fence(self, group_id: str) -> Check | None:
        """Return what fails in a transaction once another gateway serves the group; None if this one does not.

        If another gateway has served it in between, a later fence differs.
        """
        claim = self._claims.get(bucket_of(group_id))
        return None if claim is None or not self._session.has_lease else claim.check

    @property
    def served_buckets(self) -> int:
        """Return the number of buckets that this gateway serves."""
        return len(self._claims)

    @property
    def is_settled(self) -> bool:
        """Whether every bucket that this gateway should serve is served, as far as ZooKeeper lets it."""
        return self._is_placed and self._claiming <= self._refused.keys()

    def refusals(self) -> list[str]:
        """Return what ZooKeeper refuses: a bucket that is not served, a group that is not stored, and how many more."""
        since_s = now_ms() / 1_000 - REFUSED_SHOWN_S
        self._unstored = {group: one for group, one in self._unstored.items() if one[1] >= since_s}
        buckets = [f"bucket {bucket} is not served: {why}" for bucket, why in self._refused.items()]
        groups = [f"group {group:.200} is not stored: {why:.500}" for group, (why, _since_s) in self._unstored.items()]
        return [
            f"{some[0]}, and {len(some) - 1} more" if len(some) > 1 else some[0] for some in (buckets, groups) if some
        ]

    @property
    def names(self) -> Collection[str]:
        """Return the names of the groups that this gateway knows."""
        return self._machine.group_names()

    def is_read(self, group_id: str, topic: str, number: int) -> bool:
        """Whether members that are served here read a partition of a group, as far as that is known."""
        return self._machine.is_read(group_id, topic, number)

    @property
    def group_count(self) -> int:
        """Return the number of groups that this gateway knows."""
        return len(self.names)

    def figures(self) -> list[GroupFigures]:
        """Return what metrics show of every group that this gateway knows."""
        return self._machine.figures()


def _fresh_id(request: Request) -> str:
    """Return random text for a member that may be new; a heartbeat of the classic protocol needs none."""
    return uuid.uuid4().hex if isinstance(request, JOINS) else ""


def now_ms() -> int:
    """Return milliseconds of a clock that never jumps."""
    return clock.steady_us() // 1_000
