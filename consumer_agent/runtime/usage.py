"""What the application may do with a consumer at the moment, and what it does."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from consumer_agent.errors import ConsumerStateError
from consumer_agent.membership.events import Position
from consumer_agent.runtime.notices import Tell
from consumer_agent.runtime.shared_state import SharedState
from consumer_agent.runtime.threads import in_own_thread, within_signal_handler
from zkrebalancer.protocol.fields import TopicPartition

if TYPE_CHECKING:
    from consumer_agent.kafka.watchdog import WatchedFetcher
    from consumer_agent.runtime.engine import Engine
    from consumer_agent.runtime.machine_thread import MachineThread

# The consumers whose callbacks or deserializers run here, and in tasks that these start: one may use another consumer.
_calling: ContextVar[frozenset[object]] = ContextVar("calling", default=frozenset())


class Usage:
    """The state of a consumer's use: in a poll, in a callback, in `run`, closed."""

    def __init__(self, shared: SharedState, who: Callable[[], object]) -> None:
        """Begin unused, in this process. `who` returns the greenlet or task that calls it."""
        self.shared = shared
        self._who = who
        self._poller: Callable[[], object] = lambda: None  # a reference to who polled last
        self._raised: tuple[object, ...] = ()  # the exceptions of then: kept, as a later one may get the same address
        self.loops: list[None] = []  # over the records of that poll that have not come to their end
        # An iterator returned the last records, and was not asked for more. Set without a call: an interrupt in it
        # would lose them.
        self.is_iterated = False
        self._is_handled = False  # the last records were for handlers
        self._engine: Engine | None = None
        self.is_closed = False
        self.is_close_due = False  # a signal's handler has asked for it in the middle of a call
        self.in_callback = False
        self.may_work = False  # the application may work on what was returned while callbacks run now
        self._mark = object()  # of this consumer in `_calling`, which must not refer to it
        self._decoding: object | None = None  # the mark there of the poll that deserializes now
        self.runner: int | None = None  # the thread that is in `Consumer.run`
        self.run_threads = 1  # that read what is subscribed without a number: those of `Consumer.run`
        self._in_poll = False
        self.outer: Generator[Any, None, Any] | None = None  # the outermost call of `steps` that has not ended
        self.is_broken = False  # an exception has ended that call, and `Frontend.undo` is due
        self._process = os.getpid()

    def _note_poller(self) -> None:
        """Remember who polls."""
        who = self._who()
        if self._poller() is not who:
            self._poller = weakref.ref(who)
        self.is_iterated, self.loops = False, []
        self._raised = sys.exc_info()[1], getattr(sys, "last_value", None)  # an idle poll makes few calls

    @property
    def is_done(self) -> bool:
        """Whether the caller must have worked on the last records.

        It polled them itself, has left no loop over them, and no handler has them. No exception has come since, which
        may have ended that work, and it is no signal's handler, which may have interrupted it.
        """
        is_undisturbed = self._poller() is self._who() and not (self._has_raised or self.loops)
        return is_undisturbed and not (self.is_iterated or self._is_handled or within_signal_handler())

    @property
    def _has_raised(self) -> bool:
        """Whether an exception was raised after that poll, and this thread handles it, or it was uncaught.

        Functions of `atexit` and the next input of a notebook run after an uncaught exception.
        """
        now = sys.exc_info()[1], getattr(sys, "last_value", None)
        return any(one is not None and all(one is not known for known in self._raised) for one in now)

    def is_within_batch(self, *, waits: bool) -> bool:
        """Whether handlers, which finish their batches, got the last records, or the application may work on them.

        The caller, a callback or a signal's handler, may have interrupted that work. Only a commit that `waits` has the
        time to look for a signal's handler.
        """
        is_interrupted = (self.may_work and self.is_in_own_callback) or (waits and within_signal_handler())
        return self._is_handled or is_interrupted

    @property
    def is_in_own_callback(self) -> bool:
        """Whether the caller is the callback that runs now, or was started by it."""
        return self.in_callback and self.is_calling

    @property
    def is_deserializing(self) -> bool:
        """Whether the caller is a deserializer, or gets its error: the poll has records that it has not returned.

        A task that a callback or an earlier poll has started is none, however long it lives.
        """
        return self._decoding in _calling.get() and not within_signal_handler()

    @property
    def is_calling(self) -> bool:
        """Whether the caller is a callback, or was started by one."""
        return self._mark in _calling.get()

    def begin_calling(self) -> None:
        """Note that a callback is called from here on."""
        _calling.set(_calling.get() | {self._mark})

    def begin_decoding(self) -> None:
        """Note that deserializers are called from here on."""
        self._decoding = object()
        _calling.set(_calling.get() | {self._decoding})

    def end_decoding(self) -> None:
        """Note that they are over; nothing if none was called."""
        _calling.set(_calling.get() - {self._decoding})
        self._decoding = None  # at last: an interrupt before it lets `Frontend.undo` do both

    def end_calling(self) -> None:
        """Note that it is over; nothing if none was called."""
        _calling.set(_calling.get() - {self._mark})

    @property
    def machine_thread(self) -> MachineThread | None:
        """The machine thread, from the first poll on."""
        return None if self._engine is None else self._engine.machine_thread

    @property
    def _fetcher(self) -> WatchedFetcher | None:
        return None if self._engine is None else self._engine.fetcher

    def _require_commits(self, method: str) -> MachineThread:
        machine_thread = self.machine_thread  # a signal's handler may unsubscribe at any point
        if machine_thread is None or (self.is_closed and not self.is_in_own_callback):
            raise ConsumerStateError(f"{method} is possible between the first poll and close")
        if self.runner not in {None, threading.get_ident()}:
            text = "its batch is finished once it has returned, and stored by automatic commits, or with its partition"
            raise ConsumerStateError(f"{method} may not be called from within a handler; {text}")
        self.require_process(method)
        self._require_no_poll(method)
        return machine_thread

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that made the consumer. A forked process does not have its threads."""
        return os.getpid() == self._process

    def require_usable(self, method: str) -> None:
        """Raise if a method may not be called now.

        Raises:
            ConsumerStateError: the consumer is closed, in a callback or another poll, or the process was forked.

        """
        self.require_process(method)
        if self.is_closed:
            raise ConsumerStateError(f"{method}: the consumer is closed")
        if self.in_callback:
            raise ConsumerStateError(f"{method} may not be called from within a callback")
        self._require_no_poll(method)

    def _require_other_thread(self, method: str) -> None:
        """Raise in a thread of a consumer, which must not wait: a log's handler or a finalizer runs there."""
        if self._engine is not None and in_own_thread():
            raise ConsumerStateError(f"{method} may not be called in a consumer's own threads, by a log's handler")

    def _require_no_change(self, method: str) -> None:
        """Raise in a signal's handler that has interrupted a change."""
        if self.shared.changed.is_held:
            raise ConsumerStateError(f"{method}: a signal's handler has interrupted another call")

    def _require_no_poll(self, method: str) -> None:
        """Raise beside a call of another thread, task or signal's handler: they would undo each other's.

        A call that runs is the caller's own; another one waits.
        """
        self._require_other_thread(method)
        self._require_no_change(method)
        waits = self.outer is not None and self.outer.gi_suspended  # type: ignore[attr-defined]
        if (self._in_poll or waits) and not self.is_in_own_callback:
            name = "poll" if self._in_poll else "call"
            raise ConsumerStateError(
                f"{method}: another {name} is under way; only one thread at a time may use a consumer"
            )

    def _require_no_running_call(self, method: str) -> None:
        """Raise in a signal's handler that has interrupted another call, which relies on what this would change."""
        is_running = self.outer is not None and self.outer.gi_running  # type: ignore[attr-defined]
        if is_running and not self.in_callback:
            raise ConsumerStateError(f"{method}: a signal's handler has interrupted another call")

    def require_process(self, method: str) -> None:
        """Raise in a process that was forked from the consumer's own."""
        if os.getpid() != self._process:
            raise ConsumerStateError(f"{method}: the consumer belongs to the process before the fork; make a new one")

    def require_open(self, method: str) -> None:
        """Raise if the consumer is closed and this is none of its last callbacks, or in a forked process."""
        self.require_process(method)
        if self.is_closed and not self.in_callback:
            raise ConsumerStateError(f"{method}: the consumer is closed")

    def require_machine_thread(self, method: str) -> MachineThread:
        """Return the machine thread; raise before the first poll."""
        machine_thread = self.machine_thread
        if machine_thread is None:
            raise ConsumerStateError(f"{method} is possible from the first poll on")
        self.require_process(method)
        return machine_thread

    def _require_known(self, method: str, partitions: Iterable[TopicPartition]) -> None:
        """Raise if the application has no reason to believe that it owns these; the lock must be held.

        `assigned` gives it a reason also before their `on_assign`.
        """
        shared = self.shared
        for tp in sorted(partitions):
            if shared.buffer.generation(tp) is None and not (shared.is_known(tp) or shared.was_known(tp)):
                raise ConsumerStateError(f"{method}: {tp[0]}/{tp[1]} is not assigned to this consumer")

    def own_state(self, method: str) -> SharedState:
        """Return the shared state; raise in a forked process, where its lock may never be released."""
        self.require_process(method)
        return self.shared

    def assigned(self) -> list[TopicPartition]:
        """Return the assigned partitions, sorted."""
        with self.own_state("assignment").lock:
            return self.shared.buffer.emitting()

    def marks(self, method: str) -> dict[TopicPartition, Position]:
        """Return the marks of all partitions but those that the application has given up: their `on_revoke` is over."""
        shared = self.own_state(method)
        with shared.lock:
            notice = shared.in_hand
            shown = set(shared.buffer.emitting())
            if notice is not None and notice.tell is Tell.REVOKE:
                shown |= notice.partitions
            marks = shared.buffer.positions()
            return {tp: mark for tp, mark in marks.items() if tp in shown or shared.is_known(tp)}

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each assigned partition that has one."""
        with self.own_state("position").lock:
            return self.shared.buffer.emitting_positions()
