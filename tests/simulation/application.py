"""The application's thread: polls, processes records, runs callbacks, commits, closes.

It repeats what `consumer_agent.Consumer` does between the application and the shared state, because the real one blocks
its thread, and virtual time would not advance.
"""

from __future__ import annotations

from collections.abc import Callable

from consumer_agent.membership.events import Abandoned, CloseRequested, CommitRequested, Polled, Revoked
from consumer_agent.records import Batch, Record
from consumer_agent.runtime.notices import Notice, Tell
from tests.simulation.agent import MAX_POLL_RECORDS, AgentHost

WAKE_US = 400
BATCH_US = (500, 30_000)
CALLBACK_US = (100, 20_000)
CLOSE_TIMEOUT_US = 10_000_000

Told = Callable[[AgentHost, list[list[Record]]], None]


class Application:
    """The application of one agent. It does one thing at a time; `_busy` while it does."""

    def __init__(self, host: AgentHost, delivered: Told, processed: Told) -> None:
        self.host = host
        self.blocked = False  # its next action hangs
        self.wants_to_close = False
        self._closing = False
        self._tell_delivered = delivered
        self._tell_processed = processed
        self._registrations = 0
        self._token = 0
        self._awaited_commit: int | None = None
        self._busy = False
        self._woken = False
        self._stuck: Callable[[], None] | None = None  # continues when it is no longer blocked
        host.on_ring = self._wake
        self._wake()

    def _wake(self) -> None:
        if not self._woken and not self._busy:
            self._woken = True
            self.host.after(self.host.random.randrange(WAKE_US), self._go_on)

    def _go_on(self) -> None:
        self._woken = False
        if not self._busy:
            self._loop()

    def _take_time(self, duration_us: int, then: Callable[..., None], *arguments: object) -> None:
        self._busy = True
        self.host.shared.go()
        self.host.after(duration_us, self._done, lambda: then(*arguments))

    def _done(self, then: Callable[[], None]) -> None:
        if self.blocked:
            self._stuck = lambda: self._done(then)
            return
        self._busy = False
        then()
        if not self._busy:
            self._loop()

    def block(self, duration_us: int) -> None:
        """Hang."""
        self.blocked = True
        self.host.schedule.after(duration_us, self.unblock)

    def unblock(self) -> None:
        self.blocked = False
        stuck, self._stuck = self._stuck, None
        if stuck is not None:
            self.host.after(0, stuck)

    # What Consumer does ---------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        """Poll, commit or close, until an action takes time or has to wait."""
        shared, host = self.host.shared, self.host
        shared.come()
        if self._awaited_commit is not None:
            if not shared.has_commit(self._awaited_commit):
                return
            shared.take_commit(self._awaited_commit)
            self._awaited_commit = None
        if self.wants_to_close and not self._closing:
            self._begin_to_close()
        if host.settings.auto_commit_ms is not None:
            shared.finish()
        if shared.is_out and not self._closing:
            shared.is_out = False
            self._registrations += 1
            host.machine_thread.send(Polled(f"{host.name}-{self._registrations}", host.wall_ms()))
        notice = shared.next_notice()
        if notice is not None:
            self._take_time(host.random.randrange(*CALLBACK_US), self._called_back, notice)
        elif shared.take_failure() is None and not shared.is_closed and not self._closing:
            self._poll()

    def _called_back(self, notice: Notice) -> None:
        settings = self.host.settings
        if notice.tell is Tell.REVOKE and settings.has_on_revoke and settings.auto_commit_ms is None:
            self.host.shared.finish()
        self.host.shared.called_back(notice)
        if notice.tell is Tell.REVOKE:
            self.host.machine_thread.send(Revoked(notice.token))

    def _poll(self) -> None:
        taken = self.host.shared.take(MAX_POLL_RECORDS, lambda _runs, _mono_us: None)
        self.host.shared.taken = None  # the poll returns
        if self.host.shared.buffer.room if taken else not self.host.shared.buffer.record_count:
            self.host.shared.await_records()
        runs = [list(Batch([run])) for run in taken]
        if runs:
            self._tell_delivered(self.host, runs)
            duration_us = self.host.random.randrange(*BATCH_US) * self.host.settings.slowness
            self._take_time(duration_us, self._processed, runs)

    def _processed(self, runs: list[list[Record]]) -> None:
        self._tell_processed(self.host, runs)
        if self.host.settings.auto_commit_ms is None and self.host.random.random() < 0.5:
            self._token += 1
            self._awaited_commit = self._token
            self.host.shared.begin_commit(self._token, None, by_notice=False)
            self.host.machine_thread.send(CommitRequested(self._token))

    def close(self) -> None:
        """Leave the group once it is not busy, and end the process."""
        self.wants_to_close = True
        self._wake()

    def _begin_to_close(self) -> None:
        self._closing = True
        if self.host.settings.auto_commit_ms is not None:
            self.host.shared.finish()
        self.host.machine_thread.send(CloseRequested())
        self.host.after(CLOSE_TIMEOUT_US, self.host.machine_thread.send, Abandoned())
