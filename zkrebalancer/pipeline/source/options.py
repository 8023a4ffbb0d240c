"""The options of `format("consumer_group")`, all checked before anything is connected."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from consumer_agent.spark import find_faults, subscription
from zkrebalancer.protocol.errors import ConfigurationError, RebalancerError

KAFKA_PREFIX = "kafka."
MAX_OFFSETS = 2**63 - 1  # no limit
MAX_TASKS = 100_000
ROWS = ("records", "ranges")
DRIVER_CORES = os.cpu_count() or 1


def _number(maximum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= maximum:
            raise ValueError(f"must be 1 to {maximum}, not {text!r:.80}")
        return int(text)

    return parse


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(f"must be true or false, not {text!r:.80}")
    return text.lower() == "true"


def _are_ranges(text: str) -> bool:
    if text not in ROWS:
        raise ValueError(f"must be {' or '.join(ROWS)}, not {text!r:.80}")
    return text == "ranges"


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    try:
        subscription(topics, None, "")
    except RebalancerError as error:
        raise ValueError(str(error)) from None
    return topics


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _integer_or_text(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def _boolean_or_text(text: str) -> bool | str:
    return {"true": True, "false": False}.get(text.lower(), text)


_OWN: dict[str, tuple[str, Callable[[str], Any]]] = {  # option -> field of `Options`, parser
    "topics": ("topics", _topics),
    "maxOffsetsPerTrigger": ("max_offsets_per_trigger", _number(MAX_OFFSETS)),
    "minPartitions": ("task_count", _number(MAX_TASKS)),
    "failOnDataLoss": ("fail_on_data_loss", _boolean),
    "includeHeaders": ("include_headers", _boolean),
    "rows": ("gives_ranges", _are_ranges),
}
_OF_THE_AGENT: dict[str, tuple[str, Callable[[str], Any]]] = {  # option -> agent setting, parser; checked by the agent
    "zookeeper": ("zookeeper", str),
    "bootstrap": ("bootstrap", str),
    "group": ("group", str),
    "startingOffsets": ("auto_offset_reset", str),
    "clientId": ("client_id", str),
    "instanceId": ("group_instance_id", str),
    "rack": ("rack", str),
    "capacity": ("capacity", _number_or_text),
    "offsetsStorage": ("offsets_storage", str),
    "ignoreKafkaOffsets": ("ignore_kafka_offsets", _boolean_or_text),
    "sessionTimeoutMs": ("session_timeout_ms", _integer_or_text),
    "stopTimeoutMs": ("stop_timeout_ms", _integer_or_text),
    "events": ("events_directory", str),
}
_REQUIRED = ("topics",)


@dataclass(frozen=True, slots=True)
class Options:
    """All options of the source; `agent` has the settings of `consumer_agent.Consumer`."""

    topics: tuple[str, ...]
    agent: Mapping[str, Any]
    max_offsets_per_trigger: int = MAX_OFFSETS
    task_count: int = DRIVER_CORES  # one task per range reads half as fast: too many starts
    fail_on_data_loss: bool = True
    include_headers: bool = False
    gives_ranges: bool = False
    kafka: Mapping[str, str] = field(default_factory=dict)  # librdkafka's own settings

    @property
    def group(self) -> str:
        """The name of the group."""
        return str(self.agent["group"])

    @property
    def bootstrap(self) -> str:
        """Kafka's bootstrap servers."""
        return str(self.agent["bootstrap"])


def parse(given: Mapping[str, str], cores: int = DRIVER_CORES) -> Options:
    """Parse the options as Spark passes them: text values, names in any case.

    `cores`: of the executors, as far as known; by default, a batch has as many tasks, and the member that capacity.

    Raises:
        ConfigurationError: names every option that is unknown, missing, or has an invalid value.

    """
    known = {name.lower(): name for name in (*_OWN, *_OF_THE_AGENT)}
    kafka = kafka_settings(given)
    texts = {known.get(key.lower(), key): text for key, text in given.items() if not _is_kafka(key)}
    unknown = [name for name in texts if name not in known.values()]
    faults = [f"{name}: there is no such option; known are {', '.join(sorted(known.values()))}" for name in unknown]
    faults += [f"{name}: is required" for name in _REQUIRED if name not in texts]
    own: dict[str, Any] = {}
    for name, (attribute, read) in _OWN.items():
        if name in texts:
            try:
                own[attribute] = read(texts[name])
            except ValueError as error:
                faults.append(f"{name}: {error}")
    agent = {setting: read(texts[name]) for name, (setting, read) in _OF_THE_AGENT.items() if name in texts}
    own.setdefault("task_count", cores)
    usual = {"client_id": f"spark-{socket.gethostname()}", "capacity": float(cores)}
    agent = {**usual, **agent, "kafka_config": kafka}
    names = {setting: name for name, (setting, _) in _OF_THE_AGENT.items()} | {"kafka_config": f"{KAFKA_PREFIX}*"}
    faults += [f"{names[fault.key]}: {fault.text}" for fault in find_faults(agent)]
    if own.get("gives_ranges") and own.get("include_headers"):
        faults.append("includeHeaders: ranges have no headers; pass it to kafka_records")
    if faults:
        raise ConfigurationError(f"consumer_group: {'; '.join(faults)}")
    return Options(agent=agent, kafka=kafka, **own)


def kafka_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options prefixed with `kafka.`, without the prefix: librdkafka's own settings."""
    return {key.lower().removeprefix(KAFKA_PREFIX): text for key, text in given.items() if _is_kafka(key)}


def _is_kafka(key: str) -> bool:
    return key.lower().startswith(KAFKA_PREFIX)
