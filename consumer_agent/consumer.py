"""The public API: a consumer whose callbacks run in the application's own thread.

Three threads work for it: the application's (this file), the engine (`engine.py`: ZooKeeper and all decisions) and the
fetcher (`fetcher.py`: Kafka). They meet in `handover.py`.
"""

from __future__ import annotations

import itertools
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaException

from consumer_agent import config as configuration
from consumer_agent.buffer import Record, RecordBuffer
from consumer_agent.config import ConsumerConfig, Subscription
from consumer_agent.engine import Engine, now_ms
from consumer_agent.errors import CommitFailedError, CommitTimeoutError, ConsumerStateError
from consumer_agent.fetcher import Fetcher
from consumer_agent.handover import Handover, Notice, Tell
from consumer_agent.keeper import FetcherKeeper
from consumer_agent.machine import Machine, MachineSettings
from consumer_agent.member import MemberSettings
from consumer_agent.signals import Abandoned, CloseRequested, CommitRequested, Polled, Revoked
from consumer_agent.telemetry import Telemetry
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.registration import WHITE_LIST, Registration

MIN_BUFFERED_RECORDS = 1_000
MAX_BUFFERED_BYTES = 32 * 1024 * 1024
ITERATION_TIMEOUT_S = 1.0
COMMIT_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 10.0
THREAD_END_TIMEOUT_S = 2.0

Callback = Callable[[list[TopicPartition]], object]


class Consumer:
    """Reads the partitions that the coordinator gives to this consumer.

    Use it from one thread: `subscribe`, then `poll` (or iterate) and `commit`, then `close`; or as a context manager.
    The keyword arguments are those of `ConsumerConfig`.
    """

    def __init__(self, config: ConsumerConfig | None = None, /, **settings: Any) -> None:  # noqa: ANN401
        """Check the configuration; nothing is connected before the first poll.

        Raises:
            ConfigurationError: settings are unknown, missing or not allowed; all are named.

        """
        if config is not None and settings:
            raise ConfigurationError("give a ConsumerConfig or settings, not both")
        self._config = config or ConsumerConfig.from_settings(settings)
        self._subscription: Subscription | None = None
        self._callbacks: dict[Tell, Callback | None] = {}
        max_records = max(MIN_BUFFERED_RECORDS, 2 * self._config.max_poll_records)
        self._handover = Handover(RecordBuffer(max_records, MAX_BUFFERED_BYTES), now_ms)
        self._engine: Engine | None = None
        self._fetcher: FetcherKeeper | None = None
        self._telemetry = Telemetry(None, self._config.group)
        self._tokens = itertools.count(1)
        self._member = ""
        self._in_callback = False
        self._closed = False

    # ---- before the first poll

    def subscribe(
        self,
        topics: Iterable[str] | Mapping[str, int] | None = None,
        *,
        pattern: str | None = None,
        pattern_type: str = WHITE_LIST,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Say which topics to read: names, names with numbers of threads, or a pattern. Once, before the first poll.

        The callbacks get a sorted list of (topic, partition) and run in this thread, within poll, commit and close:
        `on_assign` before the first record of the partitions, `on_revoke` when they are to be given up (it may commit),
        `on_lost` when they are gone already.

        Raises:
            ConfigurationError, InvalidNameError, PatternError: what was asked for is not allowed.
            ConsumerStateError: subscribed already, or closed.

        """
        if self._subscription is not None or self._closed:
            raise ConsumerStateError("subscribe may be called once, before the first poll")
        self._subscription = configuration.subscription(topics, pattern, pattern_type)
        self._callbacks = {Tell.ASSIGNED: on_assign, Tell.REVOKE: on_revoke, Tell.LOST: on_lost}

    def _start(self) -> Engine:
        config, wanted = self._config, self._subscription
        if wanted is None:
            raise ConsumerStateError("subscribe before the first poll")
        try:
            self._fetcher = FetcherKeeper(lambda: Fetcher(config, wanted.topics, self._handover), self._handover)
        except KafkaException as error:
            raise ConfigurationError(f"kafka_config: {error.args[0].str()}") from None
        if config.events_directory is not None:
            self._telemetry = Telemetry(_open_event_log(Path(config.events_directory), config), config.group)
        member = MemberSettings(
            group=config.group,
            auto_commit_interval_ms=config.auto_commit_interval_ms if config.enable_auto_commit else None,
            ask_application=self._callbacks[Tell.REVOKE] is not None,
            pause_when_suspended=config.suspended_policy == "pause",
        )
        machine = Machine(MachineSettings(member, self._registration(wanted), config.zookeeper))
        self._engine = Engine(config, machine, self._handover, self._fetcher, self._telemetry)
        self._fetcher.start()
        self._engine.start()
        return self._engine

    def _registration(self, wanted: Subscription) -> Registration:
        config = self._config
        return Registration(
            pattern=wanted.kind,
            subscription=wanted.threads,
            timestamp="",
            client_id=config.client_id,
            host=socket.gethostname(),
            session_timeout_ms=config.session_timeout_ms,
            instance_id=config.group_instance_id,
            rack=config.rack,
            capacity=config.capacity,
        )

    # ---- reading

    def poll(self, timeout_s: float = ITERATION_TIMEOUT_S) -> list[Record]:
        """Return up to `max_poll_records` records as soon as there are any, or none after `timeout_s` seconds.

        With `enable_auto_commit` the records of earlier polls count as finished now.

        Raises:
            ConsumerStateError: not subscribed, closed, or called from within a callback.
            ZooKeeperUnavailableError, KafkaUnavailableError, RegistrationError, ChrootMissingError: as named.

        """
        self._require_usable("poll")
        engine = self._engine or self._start()
        if self._config.enable_auto_commit:
            self._handover.finish()
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._maybe_join(engine)
            with self._handover.changed:
                notice = self._handover.next_notice()
                if notice is None:
                    failure = self._handover.take_failure()
                    if failure is not None:
                        raise failure
                    batch = self._handover.take(self._config.max_poll_records, self._record_delivery)
                    remaining_s = deadline_s - time.monotonic()
                    if batch or remaining_s <= 0:
                        return batch
                    if not self._handover.is_out:
                        self._handover.changed.wait(remaining_s)
            if notice is not None:
                self._run(notice, engine)

    def __iter__(self) -> Iterator[list[Record]]:
        """Return batches of records, until the consumer is closed."""
        while not self._closed:
            batch = self.poll(ITERATION_TIMEOUT_S)
            if batch:
                yield batch

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions whose records are returned at present, sorted."""
        with self._handover.lock:
            return self._handover.buffer.emitting()

    def position(self) -> dict[TopicPartition, int]:
        """Return the next offset that each partition will return."""
        return {partition: position.returned for partition, position in self._handover.positions().items()}

    def commit(self, timeout_s: float = COMMIT_TIMEOUT_S) -> None:
        """Store that everything returned so far is finished; returns when ZooKeeper has it.

        Raises:
            CommitFailedError: the partitions were lost; their records will be read again by others.
            CommitTimeoutError: the outcome is not known after `timeout_s` seconds.
            ConsumerStateError: closed, or never polled.

        """
        if self._engine is None or (self._closed and not self._in_callback):
            raise ConsumerStateError("commit is possible between the first poll and close")
        self._handover.finish()
        token = next(self._tokens)
        self._engine.send(CommitRequested(token))
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._handover.changed:
                is_over, error = self._handover.take_commit(token)
                remaining_s = deadline_s - time.monotonic()
                if not is_over and remaining_s > 0:
                    self._handover.changed.wait(remaining_s)
                    continue
            break
        if not self._in_callback:
            self._run_notices(self._engine)
        if not is_over:
            raise CommitTimeoutError(f"the commit is not confirmed after {timeout_s:g} s")
        if error is not None:
            raise CommitFailedError(f"the offsets are not committed: {error}")

    # ---- leaving

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Leave the group: `on_revoke`, final commit, and the partitions are free at once. At most `timeout_s` seconds.

        With `enable_auto_commit` everything that was returned counts as finished.
        """
        if self._in_callback:
            raise ConsumerStateError("close may not be called from within a callback")
        if self._closed:
            return
        if self._config.enable_auto_commit:
            self._handover.finish()
        self._leave(timeout_s)

    def _leave(self, timeout_s: float) -> None:
        self._closed = True
        engine, fetcher = self._engine, self._fetcher
        if engine is None or fetcher is None:
            return
        engine.send(CloseRequested())
        deadline_s = time.monotonic() + timeout_s
        try:
            self._wait_for_end(engine, deadline_s)
        finally:
            engine.send(Abandoned())
            fetcher.stop()
            engine.join(max(THREAD_END_TIMEOUT_S, deadline_s - time.monotonic()))
            fetcher.join(THREAD_END_TIMEOUT_S)
            self._telemetry.close()

    def _wait_for_end(self, engine: Engine, deadline_s: float) -> None:
        while True:
            with self._handover.changed:
                notice = self._handover.next_notice()
                remaining_s = deadline_s - time.monotonic()
                if notice is None:
                    if self._handover.is_closed or remaining_s <= 0:
                        return
                    self._handover.changed.wait(remaining_s)
            if notice is not None:
                self._run(notice, engine)

    def __enter__(self) -> Self:
        """Return the consumer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an exception the last batch does not count as finished."""
        if error is None or self._closed:
            self.close()
        else:
            self._leave(CLOSE_TIMEOUT_S)

    # ---- the application's part in what the machine decides

    def _require_usable(self, method: str) -> None:
        if self._closed:
            raise ConsumerStateError(f"{method}: the consumer is closed")
        if self._in_callback:
            raise ConsumerStateError(f"{method} may not be called from within a callback")

    def _maybe_join(self, engine: Engine) -> None:
        if self._handover.is_out:
            self._handover.is_out = False
            self._member = f"{self._config.client_id}-{uuid.uuid4()}"
            engine.send(Polled(self._member, time.time_ns() // 1_000_000))

    def _run_notices(self, engine: Engine) -> None:
        while True:
            with self._handover.lock:
                notice = self._handover.next_notice()
            if notice is None:
                return
            self._run(notice, engine)

    def _run(self, notice: Notice, engine: Engine) -> None:
        callback = self._callbacks[notice.tell]
        self._in_callback = True
        try:
            if callback is not None and notice.partitions:
                callback(sorted(notice.partitions))
        finally:
            self._in_callback = False
            if notice.tell is Tell.REVOKE:
                engine.send(Revoked(notice.token))

    def _record_delivery(self, runs: list[list[Record]], mono_us: int) -> None:
        self._telemetry.delivered(self._member, runs, mono_us)


def _open_event_log(directory: Path, config: ConsumerConfig) -> EventLog:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return EventLog(directory, config.client_id)
    except OSError as error:
        raise ConfigurationError(f"events_directory: {error}") from None
