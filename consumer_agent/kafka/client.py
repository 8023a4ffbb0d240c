"""The settings that librdkafka's clients get, and where its own log goes."""

from __future__ import annotations

import logging

from confluent_kafka.admin import AdminClient

from consumer_agent.config import ConsumerConfig, KafkaSetting
from consumer_agent.runtime.threads import Thread

CONNECT_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)


def kafka_settings(config: ConsumerConfig) -> dict[str, KafkaSetting]:
    """Return librdkafka's settings: those that let a newly assigned partition deliver soon, then the user's own."""
    settings: dict[str, KafkaSetting] = {
        **_connection_settings(config),
        "group.id": config.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,  # tells a stall from the end of a partition
        "auto.offset.reset": "error",  # `Fetcher` resets by itself, so that the buffer knows
        "fetch.min.bytes": 1,
        # One fetch per broker is under way, and a new partition waits for the parked one. But every empty fetch costs
        # the broker: with 50 ms, fifty idle agents kept one of its cores busy.
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
    """Return librdkafka's settings for the store of a consumer."""
    return {**_connection_settings(config), **config.kafka_config}


def _connection_settings(config: ConsumerConfig) -> dict[str, KafkaSetting]:
    reconnect: dict[str, KafkaSetting] = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 1_000}
    return {"bootstrap.servers": config.bootstrap, "client.id": config.client_id, **reconnect}


def close_aside(clients: list[AdminClient]) -> None:
    """Close clients to which only this list refers, in a thread: it takes as long as a look-up of a broker's name."""
    try:
        Thread(clients.clear, "consumer-agent-closing").start()
    except RuntimeError:  # the operating system starts no more threads
        clients.clear()


class KafkaLog(logging.Logger):
    """Demotes librdkafka's own log, which repeats itself; the agent logs what matters."""

    def handle(self, record: logging.LogRecord) -> None:
        """Log it at debug level."""
        _log.debug("%s", record.getMessage())
