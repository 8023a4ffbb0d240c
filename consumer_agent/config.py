"""A consumer's configuration and subscription, checked before anything is started."""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.registration import BLACK_LIST, MAX_SESSION_TIMEOUT_MS, MAX_THREADS, STATIC, WHITE_LIST

KafkaSetting = str | int | float | bool
UUID_LENGTH = 37  # "-" and the uuid that a registration appends to the client id
_RANGES = {
    "session_timeout_ms": (100, MAX_SESSION_TIMEOUT_MS),
    "max_poll_records": (1, 100_000),
    "auto_commit_interval_ms": (10, 86_400_000),
}
_SERVER = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/,\[\]]+)(:[0-9]{1,5})?")
_CHROOT = re.compile(r"(/[^/\s]+)*/?")
_CHOICES = {"auto_offset_reset": ("earliest", "latest"), "suspended_policy": ("pause", "continue")}
_NOT_IN_KAFKA_CONFIG = ("enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "bootstrap.servers")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Everything that can be set; times in milliseconds.

    Raises:
        ConfigurationError: a value is of the wrong type or out of its range; the text names the key.
        InvalidNameError: a group, client id, instance id or rack with characters that are not allowed.

    """

    zookeeper: str
    bootstrap: str
    group: str
    client_id: str = field(default_factory=socket.gethostname)
    group_instance_id: str | None = None
    rack: str | None = None
    capacity: float = 1.0
    session_timeout_ms: int = 10_000  # asked of ZooKeeper; what it grants counts
    max_poll_records: int = 500
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    auto_offset_reset: str = "earliest"
    suspended_policy: str = "pause"
    events_directory: str | Path | None = None
    kafka_config: Mapping[str, KafkaSetting] = field(default_factory=dict)  # librdkafka's own settings

    def __post_init__(self) -> None:
        """Check every value."""
        for key in ("zookeeper", "bootstrap", "group", "client_id"):
            _require(isinstance(getattr(self, key), str) and getattr(self, key) != "", key, "must be a text", self)
        _check_zookeeper(self.zookeeper)
        _check_bootstrap(self.bootstrap)
        paths.validate_name("group", self.group)
        if len(paths.validate_name("client id", self.client_id)) > paths.MAX_NAME_LENGTH - UUID_LENGTH:
            raise ConfigurationError(f"client_id: at most {paths.MAX_NAME_LENGTH - UUID_LENGTH} characters are allowed")
        for key in ("group_instance_id", "rack"):
            value = getattr(self, key)
            _require(value is None or isinstance(value, str), key, "must be a text", self)
            if value is not None:
                paths.validate_name(key, value)
        for key, (minimum, maximum) in _RANGES.items():
            value = getattr(self, key)
            _require(type(value) is int and minimum <= value <= maximum, key, f"must be {minimum} to {maximum}", self)
        for key, choices in _CHOICES.items():
            _require(getattr(self, key) in choices, key, f"must be {' or '.join(choices)}", self)
        number = isinstance(self.capacity, int | float) and not isinstance(self.capacity, bool)
        _require(number and 0 <= self.capacity < math.inf, "capacity", "must be a number of at least 0", self)
        _require(isinstance(self.enable_auto_commit, bool), "enable_auto_commit", "must be true or false", self)
        directory = self.events_directory
        _require(directory is None or isinstance(directory, str | Path), "events_directory", "must be a path", self)
        _check_kafka_config(self.kafka_config)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> ConsumerConfig:
        """Build a configuration from names and values.

        Raises:
            ConfigurationError: a name is unknown, a required one is missing, or a value is not allowed.

        """
        known = [entry.name for entry in fields(cls)]
        for key in settings:
            if key not in known:
                raise ConfigurationError(f"{key}: there is no such setting; known are {', '.join(known)}")
        for key in ("zookeeper", "bootstrap", "group"):
            if key not in settings:
                raise ConfigurationError(f"{key}: is required")
        return cls(**settings)


def _require(holds: bool, key: str, what: str, config: ConsumerConfig) -> None:
    if not holds:
        raise ConfigurationError(f"{key}: {what}, not {getattr(config, key)!r:.80}")


def _check_zookeeper(hosts: str) -> None:
    servers, slash, chroot = hosts.partition("/")
    if not all(_SERVER.fullmatch(server) for server in servers.split(",")) or not _CHROOT.fullmatch(slash + chroot):
        raise ConfigurationError(f"zookeeper: HOST:PORT[,…][/CHROOT] is expected, not {hosts!r:.80}")


def _check_bootstrap(brokers: str) -> None:
    for broker in brokers.split(","):
        host, _, port = broker.rpartition(":")
        if not host.strip("[]: ") or not (port.isascii() and port.isdigit()):
            raise ConfigurationError(f"bootstrap: HOST:PORT[,…] is expected, not {brokers!r:.80}")


def _check_kafka_config(kafka_config: object) -> None:
    if not isinstance(kafka_config, Mapping):
        raise ConfigurationError(f"kafka_config: must be a mapping, not {kafka_config!r:.80}")
    for key, value in kafka_config.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float | bool):
            raise ConfigurationError(f"kafka_config: {key!r:.80} must be a text with a plain value, not {value!r:.80}")
        if key in _NOT_IN_KAFKA_CONFIG:
            raise ConfigurationError(f"kafka_config: {key} is decided by the consumer and may not be set")


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a consumer wants: topics with their numbers of threads, or one pattern."""

    kind: str
    threads: Mapping[str, int]

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics by name; none for a pattern."""
        return tuple(sorted(self.threads)) if self.kind == STATIC else ()


def subscription(
    topics: Iterable[str] | Mapping[str, int] | None, pattern: str | None, pattern_type: str, threads: int = 1
) -> Subscription:
    """Check what `Consumer.subscribe` was given.

    Raises:
        ConfigurationError: neither or both of topics and pattern, or a number of threads out of range.
        InvalidNameError: a topic name with characters that are not allowed.
        PatternError: the pattern does not compile.

    """
    if (topics is None) == (pattern is None):
        raise ConfigurationError("subscribe: topics or a pattern is needed, not both")
    if pattern is not None:
        if not isinstance(pattern, str) or pattern_type not in {WHITE_LIST, BLACK_LIST}:
            raise ConfigurationError(f"subscribe: pattern_type must be {WHITE_LIST} or {BLACK_LIST}, pattern a text")
        from zkrebalancer.protocol.patterns import TopicFilter  # noqa: PLC0415  # re2 is loaded only for patterns

        TopicFilter(pattern_type, pattern)
        return Subscription(pattern_type, {pattern: _threads(pattern, threads)})
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise ConfigurationError(f"subscribe: topics must be a list or a mapping of names, not {topics!r:.80}")
    counts = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, threads)
    if not counts:
        raise ConfigurationError("subscribe: at least one topic is needed")
    for topic, count in counts.items():
        if not isinstance(topic, str):
            raise ConfigurationError(f"subscribe: a topic must be a text, not {topic!r:.80}")
        paths.validate_name("topic", topic, paths.MAX_TOPIC_LENGTH)
        _threads(topic, count)
    return Subscription(STATIC, counts)


def _threads(name: str, count: object) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_THREADS:
        raise ConfigurationError(f"subscribe: threads of {name} must be 1 to {MAX_THREADS}, not {count!r:.80}")
    return count
