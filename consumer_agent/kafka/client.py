"""Settings of librdkafka's clients, where librdkafka's log goes, and how clients are made and closed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from consumer_agent.config import ConsumerConfig
from consumer_agent.errors import KafkaUnavailableError
from consumer_agent.kafka.tokens import Tokens
from consumer_agent.kafka_config import LOGGER, TOKEN, KafkaValue, plain_settings
from consumer_agent.runtime.threads import Thread
from zkrebalancer.protocol.errors import ConfigurationError, RebalancerError
from zkrebalancer.runtime import logs

CONNECT_TIMEOUT_S = 10.0
STATISTICS = "statistics.interval.ms"
NO_TOKEN = KafkaError.SASL_AUTHENTICATION_FAILED  # for which making a client has waited ten seconds
T = TypeVar("T")

RECONNECT: Mapping[str, KafkaValue] = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 1_000}
DATA_PATH: Mapping[str, KafkaValue] = {  # experiments also give these to the clients that they compare us with
    "fetch.min.bytes": 1,
    # A new partition waits for the broker's present fetch to end. But a shorter wait means more empty fetches: at
    # 50 ms, fifty idle agents kept one of the broker's cores busy.
    "fetch.wait.max.ms": 250,
    "fetch.error.backoff.ms": 50,
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 16_384,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "socket.nagle.disable": True,
    "check.crcs": True,  # costs about 1 % of the processor time of fetching; without it, changed bits are returned
}

_log = logs.named(__name__)


@contextmanager
def signals_unwrapped() -> Iterator[None]:
    """Raise the error of a signal handler that ran inside confluent-kafka's C code, which makes it a SystemError."""
    try:
        yield
    except SystemError as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None


def kafka_settings(config: ConsumerConfig) -> dict[str, Any]:
    """Return librdkafka's settings: ours let a newly assigned partition deliver soon; the user's override them."""
    settings: dict[str, Any] = {
        **_connection_settings(config),
        "group.id": config.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,  # tells a stall from the end of a partition
        "auto.offset.reset": "error",  # `Fetcher` resets positions itself, so that the buffer knows of it
        **DATA_PATH,
    }
    if config.rack is not None:
        settings["client.rack"] = config.rack
    return {**settings, **_users_settings(config)}


def store_settings(config: ConsumerConfig) -> dict[str, Any]:
    """Return librdkafka's settings for storing and querying offsets; such a client has no statistics."""
    settings = {**_connection_settings(config), **_users_settings(config)}
    settings.pop(STATISTICS, None)
    return settings


def _connection_settings(config: ConsumerConfig) -> dict[str, Any]:
    return {"bootstrap.servers": config.bootstrap, "client.id": config.client_id, **RECONNECT}


def _users_settings(config: ConsumerConfig) -> dict[str, Any]:
    given = config.kafka_config
    users: Any = given.get(LOGGER)
    log = KafkaLog("librdkafka") if users is None else logs.SafeLog(users)
    tokens = {TOKEN: Tokens(given[TOKEN])} if TOKEN in given else {}  # type: ignore[arg-type]  # it is checked
    return {**plain_settings(given), LOGGER: log, **tokens}


def made(new_client: Callable[[dict[str, Any]], T], settings: Mapping[str, Any]) -> T:
    """Make a client.

    Raises:
        KafkaException: librdkafka refuses a setting, or there is no token, with what `oauth_cb` has raised.

    """
    try:
        return new_client(dict(settings))
    except KafkaException as error:
        trouble = getattr(settings.get(TOKEN), "trouble", "")
        if not trouble or error.args[0].code() != NO_TOKEN:
            raise
        raise KafkaException(KafkaError(NO_TOKEN, trouble)) from None


def refusal(error: KafkaException) -> RebalancerError:
    """Return why a client could not be made, as an error for the application."""
    reason = error.args[0]
    if reason.code() == NO_TOKEN:
        return KafkaUnavailableError(f"there is no token for Kafka: {reason.str()}")
    return ConfigurationError(f"kafka_config: {reason.str()}")


class AdminMaker:
    """Makes admin clients, each in the place of the former one, without making the caller wait.

    With `oauth_cb`, making a client takes one to ten seconds: confluent-kafka waits for the first token.
    """

    def __init__(self, new_client: Callable[[], AdminClient], settings: Mapping[str, Any]) -> None:
        """Prepare; `new_client` makes one with these settings."""
        self._new_client = new_client
        self.is_slow = TOKEN in settings
        self._is_making = False

    def make(self, put: Callable[[AdminClient], None]) -> None:
        """Call `put` with a new client: now, or later in another thread if that takes long and none is being made.

        Raises:
            KafkaException: it cannot be made now.

        """
        if not self.is_slow:
            put(self._new_client())
        elif not self._is_making:
            self._is_making = True
            aside(lambda: self._make(put), "consumer-agent-connecting")

    def _make(self, put: Callable[[AdminClient], None]) -> None:
        try:
            put(self._new_client())
        except KafkaException as error:
            _log.warning("a client for offsets in Kafka could not be made: %s", error.args[0].str())
        finally:
            self._is_making = False


def aside(call: Callable[[], None], name: str) -> None:
    """Call it in a thread of its own, or here if the operating system starts no more threads."""
    try:
        Thread(call, name).start()
    except RuntimeError:
        call()


_unclosed: list[AdminClient] = []  # no thread could be started for them


def close_aside(clients: list[AdminClient]) -> None:
    """Close clients in a thread, as it may take as long as a DNS look-up. Nothing but this list may refer to them.

    If the operating system starts no more threads, the next call closes them: the caller may be a client's own thread,
    and librdkafka aborts the process if a client is closed there.
    """
    mine, clients[:] = list(clients), []
    with suppress(IndexError):
        while True:
            mine.append(_unclosed.pop())
    if not mine:
        return
    try:
        Thread(mine.clear, "consumer-agent-closing").start()
    except RuntimeError:
        _unclosed.extend(mine)
        mine.clear()


class KafkaLog(logging.Logger):
    """Demotes librdkafka's own log, which repeats itself; the agent logs what matters."""

    def handle(self, record: logging.LogRecord) -> None:
        """Log the record at debug level."""
        _log.debug("%s", record.getMessage())
