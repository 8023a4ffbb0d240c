"""The settings for librdkafka in `kafka_config`: which are allowed, which are secret, which are functions."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException

TOKEN = "oauth_cb"  # noqa: S105  # the name of a setting
LOGGER = "logger"
EVENTS = ("error_cb", "stats_cb", "throttle_cb")  # called in the application's thread
CALLBACKS = frozenset({TOKEN, *EVENTS})
KafkaValue = str | int | float | bool
KafkaSetting = KafkaValue | Callable[..., Any] | logging.Logger
_SECRET = re.compile(r"password|passphrase|secret|token|jaas|oauthbearer\.config|key\.pem", re.IGNORECASE)
_DECIDED_BY_THE_CONSUMER = frozenset(
    (
        "auto.offset.reset",
        "bootstrap.servers",
        "client.id",
        "client.rack",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "group.id",
        "group.instance.id",
        "metadata.broker.list",
    )
)
# librdkafka checks each setting by itself before it finds that these contradict each other, and starts nothing.
_UNSTARTABLE: dict[str, KafkaValue] = {"group.id": "-", "session.timeout.ms": 2, "max.poll.interval.ms": 1}


def kafka_key(variable: str) -> str:
    """Return the librdkafka setting for the rest of a variable's name, such as `SASL_PASSWORD`."""
    return variable.lower().replace("_", ".")


def is_secret(kafka_key: str) -> bool:
    """Whether the value of a librdkafka setting must be masked."""
    return _SECRET.search(kafka_key) is not None


def plain_settings(settings: Mapping[str, KafkaSetting]) -> dict[str, KafkaValue]:
    """Return the settings that are neither functions nor a log."""
    return {key: value for key, value in settings.items() if isinstance(value, str | int | float | bool)}


def kafka_config_faults(settings: Mapping[Any, Any]) -> list[str]:
    """Return all faults of librdkafka settings; each text begins with the setting's name."""
    found: list[str] = []
    plain: dict[str, Any] = {}
    for key, setting in settings.items():
        fault = _fault(key, setting)
        if fault is not None:
            found.append(f"{key!s:.80} {fault}")
        elif key not in {LOGGER, *EVENTS}:
            plain[key] = setting
    usual = _refusal({}) if plain else ""  # most consumers have no such settings and need not wait for librdkafka
    while plain and (text := _refusal(plain)) not in {usual, ""}:
        key = next((key for key in plain if key in text.replace('"', " ").split()), None)
        found.append(f"librdkafka refuses it: {text}" if key is None else f"{key} is refused by librdkafka: {text}")
        if key is None:
            break
        del plain[key]
    return found


def _fault(key: object, setting: object) -> str | None:
    """Return what is wrong with one setting, as far as librdkafka does not know better."""
    if isinstance(key, str) and key in CALLBACKS:
        if not callable(setting):
            return f"must be a function, which only a Python program can set, not {setting!r:.80}"
        is_waiting = key == TOKEN and inspect.iscoroutinefunction(setting)
        return "may not be a coroutine function: a thread of librdkafka calls it" if is_waiting else None
    if key == LOGGER:
        return None if isinstance(setting, logging.Logger) else f"must be a logging.Logger, not {setting!r:.80}"
    if not isinstance(key, str) or not isinstance(setting, str | int | float | bool):
        hint = f' (quotation marks for names with dots: "{key}.…")' if isinstance(setting, Mapping) else ""
        return f"must be a plain value, not {type(setting).__name__}{hint}"
    return "is decided by the consumer and may not be set" if key in _DECIDED_BY_THE_CONSUMER else None


def _refusal(settings: Mapping[str, Any]) -> str:
    """Return librdkafka's complaint about these settings, without starting a client."""
    try:
        KafkaConsumer({**settings, **_UNSTARTABLE}).close()
    except KafkaException as error:
        return str(error.args[0].str()).strip()  # some of its texts end with a line break
    except (TypeError, AttributeError, ValueError) as error:  # the name of a callback, with a text as its value
        return str(error)
    return ""
