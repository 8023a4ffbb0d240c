"""Settings of librdkafka's clients, where librdkafka's log goes, and how clients are closed."""

from __future__ import annotations

import logging

from confluent_kafka.admin import AdminClient

from consumer_agent.config import ConsumerConfig, KafkaSetting
from consumer_agent.runtime.threads import Thread

CONNECT_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)


def kafka_settings(config: ConsumerConfig) -> dict[str, KafkaSetting]:
    """Return librdkafka's settings: ours let a newly assigned partition deliver soon; the user's override them."""
    settings: dict[str, KafkaSetting] = {
        **_connection_settings(config),
        "group.id": config.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,  # tells a stall from the end of a partition
        "auto.offset.reset": "error",  # `Fetcher` resets positions itself, so that the buffer knows of it
        "fetch.min.bytes": 1,
        # A new partition waits for the broker's present fetch to end. But a shorter wait means more empty fetches: at
        # 50 ms, fifty idle agents kept one of the broker's cores busy.
        "fetch.wait.max.ms": 250,
        "fetch.error.backoff.ms": 50,
        "fetch.queue.backoff.ms": 10,
        "queued.max.messages.kbytes": 16_384,
        "topic.metadata.refresh.fast.interval.ms": 50,
        "socket.nagle.disable": True,
    }
    if config.rack is not None:
        settings["client.rack"] = config.rack
    return {**settings, **config.kafka_config}


def store_settings(config: ConsumerConfig) -> dict[str, KafkaSetting]:
    """Return librdkafka's settings for storing and querying offsets."""
    return {**_connection_settings(config), **config.kafka_config}


def _connection_settings(config: ConsumerConfig) -> dict[str, KafkaSetting]:
    reconnect: dict[str, KafkaSetting] = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 1_000}
    return {"bootstrap.servers": config.bootstrap, "client.id": config.client_id, **reconnect}


def close_aside(clients: list[AdminClient]) -> None:
    """Close clients in a thread, as it may take as long as a DNS look-up. Nothing but this list may refer to them."""
    try:
        Thread(clients.clear, "consumer-agent-closing").start()
    except RuntimeError:  # the operating system starts no more threads
        clients.clear()


class KafkaLog(logging.Logger):
    """Demotes librdkafka's own log, which repeats itself; the agent logs what matters."""

    def handle(self, record: logging.LogRecord) -> None:
        """Log the record at debug level."""
        _log.debug("%s", record.getMessage())
