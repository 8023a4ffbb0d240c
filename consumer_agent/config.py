"""A consumer's configuration and subscription, checked before anything starts."""

from __future__ import annotations

import inspect
import math
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict, get_type_hints

from consumer_agent.kafka_config import KafkaSetting, kafka_config_faults
from consumer_agent.membership.offset_books import Storage
from consumer_agent.runtime.record_buffer import Fairness, Prefetch
from zkrebalancer.protocol import addresses, paths, zookeeper_security
from zkrebalancer.protocol.errors import ConfigurationError, InvalidNameError
from zkrebalancer.protocol.fields import write_document
from zkrebalancer.protocol.registration import (
    BLACK_LIST,
    MAX_SESSION_TIMEOUT_MS,
    MAX_STOP_TIMEOUT_MS,
    MAX_THREADS,
    MAX_TOPICS,
    STATIC,
    WHITE_LIST,
)
from zkrebalancer.protocol.zookeeper_security import DIGEST, SASL, ZooKeeperSecurity

Deserializer = Callable[..., Any]
MAX_POLL_RECORDS = 100_000
NO_LIMIT = -1
UUID_LENGTH = 37  # "-" and the uuid that a registration appends to the client id
MAX_SUBSCRIPTION_BYTES = 900_000  # as registered; ZooKeeper closes the connection at a node of 1 MiB
REQUIRED = ("zookeeper", "bootstrap", "group")


class Fault(NamedTuple):
    """A setting and what is wrong with it."""

    key: str
    text: str

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.key}: {self.text}"


class ConsumerSettings(TypedDict, total=False):
    """The keyword arguments of a consumer, for editors and type checkers: fields of `ConsumerConfig`, with checks."""

    zookeeper: Annotated[str, _address(addresses.zookeeper_fault)]
    zookeeper_tls: Annotated[bool, _boolean]
    zookeeper_tls_ca: Annotated[str | None, _optional(text_fault)]
    zookeeper_tls_certificate: Annotated[str | None, _optional(text_fault)]
    zookeeper_tls_key: Annotated[str | None, _optional(text_fault)]
    zookeeper_tls_key_password_file: Annotated[str | None, _optional(text_fault)]
    zookeeper_auth: Annotated[str, choice(SASL, DIGEST)]
    zookeeper_user: Annotated[str | None, _optional(text_fault)]
    zookeeper_password_file: Annotated[str | None, _optional(text_fault)]
    zookeeper_password: Annotated[str | None, _optional(_secret)]
    bootstrap: Annotated[str, _address(addresses.servers_fault)]
    group: Annotated[str, _name]
    client_id: Annotated[str, _client_id]
    group_instance_id: Annotated[str | None, _optional(_name)]
    rack: Annotated[str | None, _optional(_name)]
    capacity: Annotated[float, _capacity]
    session_timeout_ms: Annotated[int, integer(100, MAX_SESSION_TIMEOUT_MS)]
    max_poll_records: Annotated[int, max_records_fault]
    poll_fairness: Annotated[str, choice(*(fairness.value for fairness in Fairness))]
    max_poll_interval_ms: Annotated[int, integer(100, 86_400_000)]
    stop_timeout_ms: Annotated[int | None, _optional(integer(1, MAX_STOP_TIMEOUT_MS))]
    prefetch: Annotated[str, choice(*(prefetch.value for prefetch in Prefetch))]
    enable_auto_commit: Annotated[bool, _boolean]
    enable_auto_finish: Annotated[bool, _boolean]
    auto_commit_interval_ms: Annotated[int, integer(10, 86_400_000)]
    auto_offset_reset: Annotated[str, _offset_reset]
    offsets_storage: Annotated[str, choice(*(storage.value for storage in Storage))]
    ignore_kafka_offsets: Annotated[bool, _boolean]
    suspended_policy: Annotated[str, choice("pause", "continue")]
    events_directory: Annotated[str | Path | None, _optional(_path)]
    key_deserializer: Annotated[Deserializer | None, _optional(_deserializer)]
    value_deserializer: Annotated[Deserializer | None, _optional(_deserializer)]
    on_deserialization_error: Annotated[Callable[[Any], object] | None, _optional(_function)]
    kafka_config: Annotated[Mapping[str, KafkaSetting], _kafka_config]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """The settings of a consumer. Times are in milliseconds.

    Raises:
        ConfigurationError: values have a wrong type or are out of range; the text names every such key.

    """

    zookeeper: str
    """The ZooKeeper servers, with the chroot that Kafka uses: `HOST:PORT[,…][/CHROOT]`."""
    bootstrap: str
    """The Kafka brokers: `HOST:PORT[,…]`."""
    group: str
    """The consumer group."""
    client_id: str = field(default_factory=socket.gethostname)
    """First part of the member's name. Default: the host name."""
    group_instance_id: str | None = None
    """Makes this a static member: its partitions wait for it while it restarts."""
    rack: str | None = None
    """Where this consumer runs; the strategy `balanced` avoids reads across racks."""
    capacity: float = 1.0
    """Share of the load relative to other members, for `balanced`. 0 drains the member."""
    session_timeout_ms: int = 10_000
    """ZooKeeper session timeout to request. The lease lasts two thirds of what ZooKeeper grants, at most 40 s."""
    max_poll_records: int = 500
    """Most records that a poll returns; -1 for no limit."""
    poll_fairness: str = Fairness.GREEDY.value
    """`greedy` fills a batch partition by partition; `proportional` gives each partition the same share."""
    max_poll_interval_ms: int = 300_000
    """Longest time between polls; after that the consumer leaves the group by itself."""
    stop_timeout_ms: int | None = None
    """Time for a stop, if the group's `rebalance_timeout_ms` is shorter. Default: `max_poll_interval_ms`."""
    prefetch: str = Prefetch.TOTAL.value
    """`total` fetches until a batch is buffered; `per_partition` buffers for every partition, so none starves."""
    enable_auto_commit: bool = True
    """Store finished offsets automatically: every `auto_commit_interval_ms`, at a revoke and at close."""
    enable_auto_finish: bool = True
    """Treat the records of a poll as finished at the next poll. If false, only `Consumer.finish` finishes records."""
    auto_commit_interval_ms: int = 5_000
    """Time between automatic commits."""
    auto_offset_reset: str = "earliest"
    """Start without a usable offset: `earliest`, `latest`, `none` (an error), or a time with its zone."""
    offsets_storage: str = "zookeeper"
    """Where offsets are stored: `zookeeper`, `kafka`, or `dual` for both."""
    ignore_kafka_offsets: bool = False
    """Do not compare with Kafka: start even if the group has offsets, newer offsets or members there."""
    suspended_policy: str = "pause"
    """Without ZooKeeper, `pause` reads until the lease ends, `continue` until told that the session has expired."""
    events_directory: str | Path | None = None
    """Folder to write telemetry events to."""
    key_deserializer: Deserializer | None = None
    """Turns the bytes of keys into keys: a function, or a deserializer of confluent-kafka. Default: keys are bytes."""
    value_deserializer: Deserializer | None = None
    """The same for values."""
    on_deserialization_error: Callable[[Any], object] | None = None
    """Called with a `DeserializationError`; then the record is skipped. Default: `poll` raises it; nothing is lost."""
    kafka_config: Mapping[str, KafkaSetting] = field(default_factory=dict, repr=False)  # contains passwords
    """Further librdkafka settings, such as `security.protocol`, and its callbacks, such as `oauth_cb`."""
    zookeeper_tls: bool = False
    """Use TLS to ZooKeeper. Implied by the other settings of TLS."""
    zookeeper_tls_ca: str | None = None
    """File with the certificates of the authorities that sign the servers' certificates. Default: the system's."""
    zookeeper_tls_certificate: str | None = None
    """File with the client's certificate."""
    zookeeper_tls_key: str | None = None
    """File with the key of the client's certificate. Default: the certificate's file."""
    zookeeper_tls_key_password_file: str | None = None
    """File with the password of the key."""
    zookeeper_auth: str = SASL
    """How `zookeeper_user` logs in: `sasl` (DIGEST-MD5) or `digest`."""
    zookeeper_user: str | None = None
    """The user to log in to ZooKeeper as."""
    zookeeper_password_file: str | None = None
    """File with the password of `zookeeper_user`."""
    zookeeper_password: str | None = field(default=None, repr=False)
    """The password itself; `zookeeper_password_file` keeps it out of programs and environments."""

    @property
    def registered_stop_timeout_ms(self) -> int:
        """How long a stop may take, as registered: by default the longest time between polls, at most an hour."""
        return self.stop_timeout_ms or min(self.max_poll_interval_ms, MAX_STOP_TIMEOUT_MS)

    @property
    def zookeeper_security(self) -> ZooKeeperSecurity | None:
        """How to connect to ZooKeeper, None if nothing is set here: then the environment decides."""
        security = _security({entry.name: getattr(self, entry.name) for entry in fields(self)})
        return None if security == zookeeper_security.PLAIN else security

    def __post_init__(self) -> None:
        """Check every value."""
        _refuse(_value_faults({entry.name: getattr(self, entry.name) for entry in fields(self)}))

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> ConsumerConfig:
        """Build a configuration from names and values.

        Raises:
            ConfigurationError: names are unknown, required ones are missing, or values are not allowed.

        """
        _refuse(find_faults(settings))
        return cls(**settings)


def find_faults(settings: Mapping[str, Any]) -> list[Fault]:
    """Return all faults of a consumer's settings."""
    known = [entry.name for entry in fields(ConsumerConfig)]
    unknown = [key for key in settings if key not in known]
    found = [Fault(key, f"there is no such setting; known are {', '.join(known)}") for key in unknown]
    found += [Fault(key, "is required") for key in REQUIRED if key not in settings]
    return found + _value_faults(settings)


def parse_offset_reset(value: object) -> str | int:
    """Return the setting `auto_offset_reset` unchanged, or as milliseconds since the epoch if it is a time.

    Raises:
        ValueError: it is none of the words, and no time since 1970 with its zone.

    """
    text = str(value)
    if text in {"earliest", "latest", "none"}:
        return text
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None or moment.timestamp() < 0:
        raise ValueError(value)
    return int(moment.timestamp() * 1_000)


def _refuse(faults: list[Fault]) -> None:
    if faults:
        raise ConfigurationError("; ".join(map(str, faults)))


def _value_faults(values: Mapping[str, Any]) -> list[Fault]:
    found = ((key, check(values[key])) for key, check in _CHECKS.items() if key in values)
    faults = [Fault(key, text) for key, text in found if text is not None]
    if not any(fault.key.startswith(zookeeper_security.PREFIX) for fault in faults):
        try:
            _security(values)
        except ConfigurationError as error:
            faults.append(Fault("zookeeper_user" if "password" in str(error) else "zookeeper_tls_key", str(error)))
    kafka = values.get("kafka_config")
    return faults + [
        Fault("kafka_config", text) for text in (kafka_config_faults(kafka) if isinstance(kafka, Mapping) else [])
    ]


def _security(values: Mapping[str, Any]) -> ZooKeeperSecurity:
    keys = {name: f"{zookeeper_security.PREFIX}{name}" for name in zookeeper_security.NAMES}
    return ZooKeeperSecurity(**{name: values[key] for name, key in keys.items() if key in values})


# ---- one check for each setting: returns what is wrong with its value, None if it is valid

Check = Callable[[Any], str | None]


def text_fault(value: object) -> str | None:
    """Return what is wrong with a text for the operating system, which allows no null bytes."""
    return None if isinstance(value, str) and value and "\0" not in value else f"must be a string, not {value!r:.80}"


def _name(value: object) -> str | None:
    """Check a name that becomes part of a path."""
    if not isinstance(value, str):
        return text_fault(value)
    try:
        paths.validate_name("the", value)
    except InvalidNameError as error:
        return str(error)
    return None


def _client_id(value: object) -> str | None:
    longest = paths.MAX_NAME_LENGTH - UUID_LENGTH
    return _name(value) or (None if len(str(value)) <= longest else f"at most {longest} characters are allowed")


def _address(fault: Callable[[str], str | None]) -> Check:
    return lambda value: text_fault(value) or fault(value)


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def integer(minimum: int, maximum: int) -> Check:
    """Make a check for integers."""

    def check(value: object) -> str | None:
        is_allowed = type(value) is int and minimum <= value <= maximum
        return None if is_allowed else f"must be {minimum} to {maximum}, not {value!r:.80}"

    return check


def max_records_fault(value: object) -> str | None:
    """Return what is wrong with a limit of records for a poll."""
    fault = integer(1, MAX_POLL_RECORDS)(value)
    return fault and integer(NO_LIMIT, NO_LIMIT)(value) and f"{fault}, or -1 for no limit"


def choice(*allowed: str) -> Check:
    """Make a check for one of several words."""
    return lambda value: None if value in allowed else f"must be {' or '.join(allowed)}, not {value!r:.80}"


def _capacity(value: object) -> str | None:
    is_allowed = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    return None if is_allowed else f"must be a number of at least 0, not {value!r:.80}"


def _boolean(value: object) -> str | None:
    return None if isinstance(value, bool) else f"must be true or false, not {value!r:.80}"


def _offset_reset(value: object) -> str | None:
    try:
        parse_offset_reset(value)
    except ValueError:
        what = "must be earliest, latest, none, or a time since 1970 with its zone (2026-01-31T12:00:00+00:00)"
        return f"{what}, not {value!r:.80}"
    return None


def _path(value: object) -> str | None:
    return None if isinstance(value, str | Path) and "\0" not in str(value) else f"must be a path, not {value!r:.80}"


def _secret(value: object) -> str | None:
    return None if text_fault(value) is None else "must be a string"  # not quoted


def _function(value: object) -> str | None:
    return None if callable(value) else f"must be a function, not {value!r:.80}"


def waits(function: object) -> bool:
    """Whether this is a coroutine function, or an object that is called like one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _deserializer(value: object) -> str | None:
    return "may not be a coroutine function" if waits(value) else _function(value)


def _kafka_config(value: object) -> str | None:
    return None if isinstance(value, Mapping) else f"must be a mapping, not {type(value).__name__}"


_CHECKS: dict[str, Check] = {
    key: hint.__metadata__[0] for key, hint in get_type_hints(ConsumerSettings, include_extras=True).items()
}


@dataclass(frozen=True, slots=True)
class Subscription:
    """A consumer's subscription: topics with their numbers of threads, or one pattern."""

    kind: str
    threads: Mapping[str, int]

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics by name; none for a pattern."""
        return tuple(sorted(self.threads)) if self.kind == STATIC else ()


def subscription(
    topics: Iterable[str] | Mapping[str, int] | None, pattern: str | None, pattern_type: str, threads: int = 1
) -> Subscription:
    """Check the arguments of `Consumer.subscribe`.

    Raises:
        ConfigurationError: neither or both of topics and pattern, too many names, or threads out of range.
        InvalidNameError: a topic name with characters that are not allowed.
        PatternError: the pattern does not compile.

    """
    if (topics is None) == (pattern is None):
        raise ConfigurationError("subscribe: give either topics or a pattern")
    if pattern is not None:
        if not isinstance(pattern, str) or pattern_type not in (WHITE_LIST, BLACK_LIST):
            raise ConfigurationError(f"subscribe: pattern_type must be {WHITE_LIST} or {BLACK_LIST}, pattern a string")
        from zkrebalancer.protocol.patterns import TopicFilter  # noqa: PLC0415  # re2 is loaded only for patterns

        TopicFilter(pattern_type, pattern)
        return Subscription(pattern_type, {pattern: _threads(pattern, threads)})
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise ConfigurationError(f"subscribe: topics must be a list or a mapping of names, not {topics!r:.80}")
    names = list(topics)
    if not names:
        raise ConfigurationError("subscribe: at least one topic is needed")
    for topic in names:
        if not isinstance(topic, str):
            raise ConfigurationError(f"subscribe: a topic must be a string, not {topic!r:.80}")
    counts = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(names, threads)
    for topic, count in counts.items():
        paths.validate_name("topic", topic, paths.MAX_TOPIC_LENGTH)
        _threads(topic, count)
    _require_registrable(counts)
    return Subscription(STATIC, counts)


def _require_registrable(counts: Mapping[str, int]) -> None:
    if len(counts) > MAX_TOPICS:
        text = f"{len(counts)} topics by name, at most {MAX_TOPICS} are allowed"
        raise ConfigurationError(f"subscribe: {text}; a pattern takes any number of topics")
    size_bytes = len(write_document(counts))
    if size_bytes > MAX_SUBSCRIPTION_BYTES:
        text = (
            f"the names of {len(counts)} topics take {size_bytes} bytes, at most {MAX_SUBSCRIPTION_BYTES} are allowed"
        )
        raise ConfigurationError(f"subscribe: {text}; a pattern takes any number of topics")


def _threads(name: str, count: object) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_THREADS:
        raise ConfigurationError(f"subscribe: threads of {name} must be 1 to {MAX_THREADS}, not {count!r:.80}")
    return count
