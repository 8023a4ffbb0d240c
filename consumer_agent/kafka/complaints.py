"""Logs faults of brokers and of partitions, each once until it has passed; librdkafka retries."""

from __future__ import annotations

from collections.abc import Callable, Container

from confluent_kafka import KafkaError, Message

from consumer_agent.kafka.rights import explained
from consumer_agent.runtime.shared_state import SharedState
from zkrebalancer.protocol import fields
from zkrebalancer.runtime import logs

_log = logs.named(__name__)


class Complaints:
    """The complaints of one client. `shared` counts the partitions with faults, for all clients of a consumer."""

    def __init__(self, bootstrap: str, shared: SharedState, is_over: Callable[[], bool]) -> None:
        """Begin without complaints; `bootstrap` is for the log. `is_over`: the client ends, or another replaced it."""
        self._bootstrap = bootstrap
        self._shared = shared
        self._is_over = is_over
        self._is_cut_off = True  # at first, because a failure of the first connection is reported separately
        self._noted: set[tuple[str | None, int | None, int | None]] = set()
        self.trouble = ""  # librdkafka's last error about a broker, in parentheses

    def connected(self) -> None:
        """Note that a broker has answered."""
        self._is_cut_off = False

    def note_broker(self, error: KafkaError) -> None:
        """Note an error of a broker; log when none can be reached."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  # its public name
            self.trouble = f" ({error.str()})"
        elif not self._is_cut_off and not self._is_over():
            self._is_cut_off = True
            _log.warning("no Kafka broker can be reached at %s%s; still trying", self._bootstrap, self.trouble)

    def note_partition(self, message: Message, error: KafkaError | None) -> None:
        """Log an error of a partition, once until records come."""
        key = (message.topic(), message.partition(), None if error is None else error.code())
        with self._shared.lock:
            if key in self._noted or self._is_over():
                return
            self._noted.add(key)
            if key[0] is not None:
                self._shared.note_fetches(failing=[(key[0], key[1] or 0)])
        if key[0] is not None:
            _log.warning("fetching %s/%s: %s", key[0], key[1], error and explained(error, "READ"))
        elif key[2] == KafkaError.GROUP_AUTHORIZATION_FAILED:  # only offsets need that right, and tell of it
            _log.info("Kafka's client: %s", error and error.str())
        else:
            _log.warning("Kafka's client: %s", error and error.str())

    def forget(self, partitions: Container[fields.TopicPartition]) -> None:
        """Note that these partitions have no fault, because their records come, or are no longer fetched."""
        if self._noted or self._shared.unreadable:
            with self._shared.lock:
                if not self._is_over():
                    self._noted = {key for key in self._noted if key[:2] not in partitions}
                    self._shared.note_fetches(working=partitions)
