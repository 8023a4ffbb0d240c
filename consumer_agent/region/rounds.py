"""A member of a region that recovers as a group: follows the leader's orders between two batches.

Records are returned only while the order names this member, no reset is wanted or under way, and the region's session
is fresh. A batch counts as processed when the next one is requested.
"""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from consumer_agent.errors import ConsumerStateError
from consumer_agent.region.figures import Figures
from consumer_agent.region.own_state import DEFAULT_CLOSE_S, Checkpoint, Handlers
from consumer_agent.region.session import RegionSession
from consumer_agent.runtime.clock import now_ms
from zkrebalancer.protocol import fields
from zkrebalancer.protocol.calls import CHANGED, Refusal, Refused, Reply
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.refusals import refused_text
from zkrebalancer.region.documents import Order, Settings
from zkrebalancer.region.limits import BRAKE_S
from zkrebalancer.region.member import Member
from zkrebalancer.region.roles import Phase, Source, Steps, T
from zkrebalancer.region.states import RegionState

VERSION = 1
MAX_PAUSE_S = 2.0  # after refusals; orders of the leader have time limits
ASK_AGAIN_S, MAX_ASK_AGAIN_S = 2.0, 30.0  # for a checkpoint
COMPLAIN_S = 15.0  # a former registration of the same name may last as long as its session
EXPECTED = CHANGED | {Refusal.NOT_EMPTY}
_WHAT = "checkpoint"


class BatchSource(Source, Protocol):
    """A consumer whose batches a region returns."""

    arrived: set[TopicPartition]  # assigned in a classic group, and not placed yet
    has_lost: bool  # partitions, or its membership, without a stop
    was_revoked: bool  # partitions were given up, in a classic group
    rebalances: int

    def poll(self, timeout_s: float) -> Any:  # noqa: ANN401  # each consumer has its own batches
        """Return records, or nothing after `timeout_s` seconds."""

    def poll_nothing(self, timeout_s: float) -> None:
        """Run callbacks and show that the application is alive, and return no records."""

    def catch_up(self) -> None:
        """Do what callbacks have left undone that a signal's exception has cut off."""

    def give_back(self) -> None:
        """Return the records of the last `poll` again."""

    def first_offsets(self, batch: Any) -> dict[TopicPartition, int]:  # noqa: ANN401
        """Return the offset of each partition's first record in a batch."""

    def place(self, positions: Mapping[TopicPartition, int]) -> None:
        """Begin with the arrived partitions: at these offsets, or where the group is."""

    def finish(self) -> None:
        """Note that all returned records are processed."""

    def drained(self) -> None:
        """Store the group's offsets, for tools that show lag, unless the consumer does that by itself."""

    def close(self, *, is_clean: bool) -> None:
        """Leave the group."""

    @property
    def drop(self) -> Callable[[], None] | None:
        """A function that ends the source's thread without taking a lock; None if its consumer ends by itself."""


class Rounds:
    """One member's part in the rounds of its region."""

    def __init__(
        self,
        group: str,
        name: str,
        settings: Settings,
        source: BatchSource,
        handlers: Handlers,
        session: RegionSession,
        piece_bytes: int,
    ) -> None:
        """Prepare; the session starts with the first batch."""
        self._source, self._session, self._handlers = source, session, handlers
        self._dropped = weakref.finalize(self, _drop, f"member {name} of region {settings.name}", session, source.drop)
        self._dropped.atexit = False
        self._wanted = settings
        self.member = Member(group, name, settings, source, _Calls(self), piece_bytes)
        self.figures = Figures()
        self._phase = Phase.OUT
        self._registered_in = -1  # which session has the registration
        self._unregistered_since_s: float | None = None
        self._not_before_s, self._pause_s = 0.0, BRAKE_S  # of the next steps, after a refusal
        self._seen: Order | None = None  # the order that was followed last
        self._begins_anew = False  # in `reset`, to the beginning
        self._has_flowed = False  # the consumer may have joined its group
        self._is_started = self._is_closed = self._is_stopped = False
        self._is_torn = False  # a batch is in hand, or is being read: it may be processed in part, or not at all
        self._is_given = True  # the application got the last batch
        self._may_have_missed = True  # a callback may have been cut off since the last `catch_up`

    # ---- the application's calls

    def batches(self) -> Iterator[Any]:
        """Return batches, until closed or stopped."""
        self._may_have_missed = True
        while not self._is_closed and not self._is_stopped:
            self._is_torn = True
            if self._may_have_missed:
                self._source.catch_up()
                self._may_have_missed = False
            batch = self._next()
            if batch is not None:  # no call in between: a signal's handler may raise
                self._is_given = True
                yield batch
            self._is_torn = False

    def stop(self) -> None:
        """Return no further batch."""
        self._is_stopped = True

    def _next(self) -> Any:  # noqa: ANN401
        """Return a batch if records may flow, else nothing."""
        if not self._may_flow() or (self._source.arrived and not self._place()):
            self._idle()
            return None
        self._is_given = False
        batch = self._source.poll(BRAKE_S)
        return batch if self._begin_records(batch) else None

    def _finish(self) -> None:
        """Note that the last batch is processed; if the application did not get it, return it again."""
        if not self._is_given:
            self._source.give_back()
            self._is_given = True
        self._source.finish()

    def _begin_records(self, batch: Any) -> bool:  # noqa: ANN401
        """Note where a batch begins; return whether it may be returned. Otherwise it is fetched again."""
        self._note_source()
        if not batch:
            return False
        first = self._source.first_offsets(batch)
        if self._run(self.member.begin_records(first)) and self._session.is_fresh and not self._source.has_given_up:
            return True
        self._source.seek(first)
        self._session.wait(BRAKE_S)  # without a connection, each try fails at once
        return False

    def _may_flow(self) -> bool:
        self._finish()
        self._note_source()
        self._follow()
        return self._phase is Phase.FLOW and self._session.is_fresh

    def _place(self) -> bool:
        """Begin with partitions that Kafka has assigned; return whether that could be done."""
        self._source.held()  # what is placed is this assignment; after another one, nothing is
        targets = self._run(self.member.place(set(self._source.arrived)))
        if targets is not None:
            self._source.place(targets)
        return targets is not None

    def _idle(self) -> None:
        """Wait, and keep the consumer alive; before the region has admitted this member, it joins no group."""
        if self._has_flowed:
            self._source.poll_nothing(BRAKE_S)
            self._note_source()
        else:
            self._session.wait(BRAKE_S)

    def _note_source(self) -> None:
        """Tell the member what the consumer's callbacks have reported."""
        source, lost, revoked = self._source, self._source.has_lost, self._source.was_revoked
        try:
            if lost:
                source.has_lost, self._seen = False, None
                self.member.lost("partitions were lost")
            if revoked:
                source.was_revoked = False
                if self.member.revoked():
                    self._seen = None
        except BaseException:  # a signal's: it is told again
            if lost:
                source.has_lost = True
            if revoked:
                source.was_revoked = True
            raise
        self.figures.rebalances = source.rebalances

    def checkpoint(self, timeout_s: float) -> bytes:
        """Request a checkpoint of the region, wait until it is complete, and return bytes that describe it.

        Raises:
            ConsumerStateError: closed, or no checkpoint was complete in time.

        """
        self._require_open()
        self._may_have_missed = True  # also for an iteration that goes on after an exception of this
        self._source.catch_up()
        asked: Order | None = None  # what was followed when a checkpoint was requested
        deadline_s, ask_at_s, pause_s = time.monotonic() + timeout_s, 0.0, ASK_AGAIN_S
        while time.monotonic() < deadline_s:
            self._finish()
            self._follow()
            order = self._session.order
            if asked is not None and self.member.completed > asked.id:
                self._is_torn = False
                return self._described(self.member.completed)
            is_due = order is not None and self._wants_checkpoint(order, asked) and time.monotonic() >= ask_at_s
            if is_due and self._run(self.member.request("checkpoint")):
                asked, ask_at_s = order, time.monotonic() + pause_s
                pause_s = min(2 * pause_s, MAX_ASK_AGAIN_S)  # each void checkpoint stores the states of all members
            self._idle()
        raise ConsumerStateError(f"no checkpoint of the region was complete within {timeout_s:g} s")

    def _wants_checkpoint(self, order: Order, asked: Order | None) -> bool:
        """Whether to request a checkpoint: none was, or its round is over and was void."""
        is_over = asked is None or (order.id > asked.id and order.open is None)
        return is_over and self._phase is Phase.FLOW

    def reset(self, data: bytes | None, timeout_s: float) -> None:
        """Reset the region to its last complete checkpoint, None: to its initial state; wait until records flow again.

        Raises:
            NodeContentError: these bytes describe no checkpoint.
            ConsumerStateError: it is not the last one, or of another region or member; closed; not done in time.

        """
        self._require_open()
        self._may_have_missed = True  # as in `checkpoint`
        if data is not None:
            self._check(data)
        self._source.catch_up()
        asked, deadline_s = False, time.monotonic() + timeout_s
        done = self.member.done
        try:
            self._begins_anew = data is None
            while time.monotonic() < deadline_s:
                self._finish()
                self._follow()
                if not asked and (self._phase is Phase.FLOW or self._skips(self._session.order)):
                    done = self.member.done
                    kind = "reset" if data is not None else "reset-initial"
                    asked = self._run(self.member.request(kind, "of the application"))
                elif self._phase is Phase.FLOW and self.member.done > done:
                    self._is_torn = False
                    return
                self._idle()
        finally:
            self._begins_anew = False
        raise ConsumerStateError(f"the region was not reset within {timeout_s:g} s")

    def _skips(self, order: Order | None) -> bool:
        """Whether an order is not followed, so that no copy is restored: all may be gone when a region begins anew."""
        return self._begins_anew and self.member.zxid is not None and order is not None and order.complete is not None

    def _described(self, number: int) -> bytes:
        member = self.member
        document = {"version": VERSION, "region": member.settings.name, "checkpoint": number, "member": member.name}
        return fields.write_document(document)

    def _check(self, data: bytes) -> None:
        document = fields.read_document(_WHAT, data, 10_000)
        fields.require_version(_WHAT, document, VERSION)
        known = fields.text(_WHAT, document, "region"), fields.text(_WHAT, document, "member")
        number = fields.integer(_WHAT, document, "checkpoint", minimum=1)
        if known != (self.member.settings.name, self.member.name):
            raise ConsumerStateError(f"the checkpoint is of {known[1]} in the region {known[0]}")
        deadline_s = time.monotonic() + DEFAULT_CLOSE_S
        while self._phase is not Phase.FLOW and time.monotonic() < deadline_s:
            self._follow()
            self._idle()
        order = self._session.order
        if order is None or order.complete != number:
            last = None if order is None else order.complete
            raise ConsumerStateError(f"checkpoint {number} is retired; the last complete one is {last}")

    def metrics(self) -> dict[str, float]:
        """Return figures by name."""
        held = self._source.held()
        return self.figures.by_name(len(held), len({topic for topic, _number in held}))

    def close(self, *, is_clean: bool) -> None:
        """Leave: if clean, with a last checkpoint, so that the others need not reset.

        After the iteration was left within a batch, there is no last checkpoint: the state may reflect half of it.
        After an interrupt, closing again does the rest, without a last checkpoint.
        """
        self._dropped.detach()
        self._is_closed, is_clean = True, is_clean and not self._is_torn and not self._is_closed
        try:
            if self._is_started and is_clean and self._has_flowed:
                self._leave()
        except BaseException:  # of a callback or the session, or Ctrl-C: there is no last checkpoint
            is_clean = False
            raise
        finally:
            try:
                self._source.close(is_clean=is_clean)
            finally:
                self._session.close()

    def _leave(self) -> None:
        """Make the last checkpoint; the region knows then that this member goes."""
        self._source.catch_up()
        self.member.leave()
        self._seen = None
        deadline_s = time.monotonic() + DEFAULT_CLOSE_S
        while not self._has_left() and time.monotonic() < deadline_s:
            self._idle()

    def _has_left(self) -> bool:
        self._finish()
        self._follow()
        return self._phase is Phase.LEFT

    def _require_open(self) -> None:
        if self._is_closed:
            raise ConsumerStateError("the region is closed")

    # ---- orders

    def _follow(self) -> None:
        """Do what the present order says, if that is not done yet."""
        if not self._is_started:
            self._session.start()
            self._is_started = True
        if self._session.failure is not None:
            raise self._session.failure
        if time.monotonic() < self._not_before_s:
            if self._phase is Phase.FLOW:
                self._phase, self._seen = Phase.WAIT, None
            return
        if self._registered_in != self._session.ends:
            self.member.session_lost()
            self._phase, self._seen = Phase.OUT, None
        if self._phase is Phase.OUT or self.member.zxid is None:
            self._register()
            return
        order = self._session.order
        if order is not None and order is self._seen and self._phase is Phase.FLOW:
            return
        if self._skips(order):
            self._phase, self._seen = Phase.WAIT, None
            return
        self._phase = self._run(self.member.advance(order))
        self._has_flowed = self._has_flowed or self._phase is Phase.FLOW
        self._seen = order if self._phase is Phase.FLOW else None

    def _register(self) -> None:
        session = self._session.ends
        if not self._session.is_fresh:
            return
        steps = self.member.register(lambda: self._session.session_id)
        if self._run(steps, EXPECTED | {Refusal.NO_AUTH}):  # which `register` reports itself, if it is one too many
            self._registered_in, self._phase, self._unregistered_since_s = session, Phase.WAIT, None
            self._compare_times()
            return
        now_s = time.monotonic()
        if now_s < self._not_before_s:
            return  # after a refusal, which is told
        self._pause()
        name, region = self.member.name, self.member.settings.name
        if self.member.is_restoring:
            self._session.complain(f"{name}: waits with joining {region}, because a restore runs, or was interrupted")
            return
        self._unregistered_since_s = now_s if self._unregistered_since_s is None else self._unregistered_since_s
        if now_s - self._unregistered_since_s >= COMPLAIN_S:
            self._session.complain(
                f"{name} still waits to become a member of region {region}: another one has its name"
            )

    def _compare_times(self) -> None:
        """Say so if the region has other times than this member, whose own are ignored."""
        found, own = self.member.settings, self._wanted
        if found != own:
            self._session.complain(
                f"region {found.name}: every_s is {found.every_ms / 1_000:g} and reset_s {found.reset_ms / 1_000:g}, "
                f"as its first member has set them, not {own.every_ms / 1_000:g} and {own.reset_ms / 1_000:g}"
            )

    def _run(self, steps: Steps[T], expected: frozenset[Refusal] = EXPECTED) -> T:
        """Perform the calls of these steps; if a refusal makes them fail, tell it, and pause before the next ones."""
        replies: list[Reply] | None = None
        refused: str | None = None
        while True:
            try:
                calls = next(steps) if replies is None else steps.send(replies)
            except StopIteration as end:
                result: T = end.value
                break
            replies = self._session.perform(calls)
            for call, reply in zip(calls, replies, strict=True):
                if isinstance(reply, Refused) and not reply.outcome_unknown and reply.refusal not in expected:
                    refused = refused_text(call, reply)
        if refused is not None and (not result or result is Phase.WAIT):
            self._session.complain(f"{refused}; region {self.member.settings.name} waits, and tries again")
            self._pause()
        elif result:
            self._pause_s = BRAKE_S
        return result

    def _pause(self) -> None:
        """Let the next steps wait, each time longer."""
        self._not_before_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)


def _drop(who: str, session: RegionSession, drop_source: Callable[[], None] | None) -> None:
    """Let others go on without a member that is garbage; see `Engine.drop`."""
    if drop_source is not None:
        drop_source()
    if session.drop():
        text = f"{who} was dropped without close(): the region is reset to its last checkpoint"
        warnings.warn(text, ResourceWarning, stacklevel=1)


class _Calls:
    """Calls the application's functions, and measures them."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def checkpoint(self, number: int) -> None:
        """Let the application store its state."""
        rounds, begun_ms = self._rounds, now_ms()
        rounds.figures.drains.note(max(0, begun_ms - rounds._session.order_ms))  # noqa: SLF001
        rounds._source.drained()  # noqa: SLF001
        rounds._handlers.checkpoint(Checkpoint(number))  # noqa: SLF001
        rounds.figures.checkpoints.note(now_ms() - begun_ms)

    def reset(self, number: int | None) -> None:
        """Let the application restore a copy."""
        rounds = self._rounds
        rounds._handlers.reset(None if number is None else Checkpoint(number))  # noqa: SLF001
        if rounds.member.state is RegionState.RESET_PENDING:
            rounds.figures.resets.note(max(0, now_ms() - rounds._session.order_ms))  # noqa: SLF001

    def retire(self, number: int) -> None:
        """Let the application delete older copies."""
        self._rounds._handlers.retire(Checkpoint(number))  # noqa: SLF001
