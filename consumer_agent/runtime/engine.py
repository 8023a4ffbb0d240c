"""A consumer's machine thread, fetcher and event log, from its first poll to its end.

Nothing here or in those threads refers to the `Consumer` or its `Frontend`. Python's garbage collector therefore finds
a consumer that the application drops without `close`, and its engine ends.
"""

from __future__ import annotations

import copy
import os
import socket
import time
import warnings
from pathlib import Path

from confluent_kafka import KafkaException

from consumer_agent.config import ConsumerConfig, Subscription
from consumer_agent.errors import ConsumerError
from consumer_agent.kafka.client import refusal, store_settings
from consumer_agent.kafka.client_events import reporting
from consumer_agent.kafka.elsewhere import LookAtKafka
from consumer_agent.kafka.fetcher import Fetcher
from consumer_agent.kafka.offset_store import KafkaOffsetStore
from consumer_agent.kafka.watchdog import WatchedFetcher
from consumer_agent.kafka_config import EVENTS, TOKEN
from consumer_agent.membership.duties import Duties
from consumer_agent.membership.events import Abandoned, Resubscribed
from consumer_agent.membership.offset_books import Storage
from consumer_agent.membership.registered_member import MemberSettings
from consumer_agent.membership.state_machine import MachineSettings, StateMachine
from consumer_agent.runtime.machine_thread import MachineThread
from consumer_agent.runtime.shared_state import SharedState
from consumer_agent.runtime.telemetry import Telemetry
from consumer_agent.runtime.threads import while_in_use
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.runtime.zk import request_limit

THREAD_END_TIMEOUT_S = 2.0


class Engine:
    """The threads of one consumer."""

    def __init__(
        self,
        config: ConsumerConfig,
        wanted: Subscription,
        shared: SharedState,
        telemetry: Telemetry,
        *,
        asks_to_revoke: bool,
        duties: Duties,
    ) -> None:
        """Prepare; nothing runs before `start`.

        Raises:
            ConfigurationError: librdkafka refuses a setting, or the folder for events cannot be used.
            KafkaUnavailableError: there is no token for Kafka.

        """
        self._process = os.getpid()
        self._config = config = _detached(config)
        self._telemetry = telemetry
        shared.buffer.keeps_copies = duties.keeps_copies
        storage = Storage(config.offsets_storage)
        if config.events_directory is not None:
            telemetry.write_to(_open_event_log(Path(config.events_directory), config))
        try:
            self.fetcher = WatchedFetcher(
                lambda *, reports: Fetcher(reporting(config) if reports else config, wanted.topics, shared),
                shared,
                is_slow=TOKEN in config.kafka_config,
            )
            store = KafkaOffsetStore(config.group, store_settings(config)) if storage.in_kafka else None
            is_free = config.ignore_kafka_offsets or duties.in_region  # a region keeps its own offsets
            reads_offsets = not storage.in_kafka
            look = None if is_free else LookAtKafka(config.group, store_settings(config), reads_offsets=reads_offsets)
        except KafkaException as error:
            telemetry.close()
            raise refusal(error) from None
        member = MemberSettings(
            group=config.group,
            auto_commit_interval_ms=config.auto_commit_interval_ms if config.enable_auto_commit else None,
            ask_application=asks_to_revoke,
            pause_when_suspended=config.suspended_policy == "pause",
            storage=storage,
            begins_anywhere=config.auto_offset_reset != "none",
            max_poll_interval_ms=config.max_poll_interval_ms,
            request_limit=request_limit(config.zookeeper, config.zookeeper_security),
            duties=duties,
        )
        machine = StateMachine(MachineSettings(member, _registration(config, wanted), config.zookeeper))
        self.machine_thread = MachineThread(config, machine, shared, self.fetcher, telemetry, store, look)

    def start(self) -> None:
        """Start the threads, all or none.

        Raises:
            ConsumerError: a thread could not be started.

        """
        try:
            self.machine_thread.start()
            self.fetcher.current.start()
        except (ConsumerError, RuntimeError) as error:
            self.end(0.0)
            self.fetcher.current.discard()
            raise ConsumerError(f"the consumer's threads could not be started: {error}") from error

    def resubscribe(self, wanted: Subscription, *, asks_to_revoke: bool) -> None:
        """Change what the consumer is registered for."""
        self.machine_thread.send(Resubscribed(_registration(self._config, wanted), asks_to_revoke))

    def end(self, deadline_s: float) -> None:
        """End the threads, whether or not the group was left."""
        self.machine_thread.send(Abandoned())
        self.fetcher.stop()
        self.machine_thread.join(max(THREAD_END_TIMEOUT_S, deadline_s - time.monotonic()))
        self.fetcher.current.join(THREAD_END_TIMEOUT_S)
        self._telemetry.close()

    def drop(self, how: str = "was dropped without close()") -> None:
        """Warn that the callbacks of a consumer are not called; let the machine thread leave the group and end.

        `how`: what happened to the consumer. The garbage collector calls this in any thread and at any point, so it
        must not acquire a lock.
        """
        if os.getpid() == self._process and not self.machine_thread.dropped:  # it may be closed first, then dropped
            self.machine_thread.dropped = how
            text = f"a consumer {how}: it leaves its group now, and its callbacks are not called"
            warnings.warn(text, ResourceWarning, stacklevel=1)


def _detached(config: ConsumerConfig) -> ConsumerConfig:
    """Return what the threads need: the application's functions may be methods of an object that has the consumer."""
    own = copy.copy(config)
    given = config.kafka_config
    events = {name: while_in_use(given[name]) for name in EVENTS if name in given}  # type: ignore[arg-type]
    functions = dict.fromkeys(("key_deserializer", "value_deserializer", "on_deserialization_error"))
    for name, value in {**functions, "kafka_config": {**given, **events}}.items():
        object.__setattr__(own, name, value)
    return own


def _registration(config: ConsumerConfig, wanted: Subscription) -> Registration:
    """Return what a consumer registers; `timestamp` and the granted session timeout are filled in later."""
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
        stop_timeout_ms=config.registered_stop_timeout_ms,
    )


def _open_event_log(directory: Path, config: ConsumerConfig) -> EventLog:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return EventLog(directory, config.client_id)
    except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
        raise ConfigurationError(f"events_directory: {error}") from None
