"""A consumer's registration in `ids/<consumer>`: Kafka's legacy format, extended."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import NamedTuple

from zkrebalancer.protocol import fields, paths
from zkrebalancer.protocol.errors import InvalidNameError, NodeContentError

VERSION = 1
LEFT = b"left"  # content of `channel/<consumer>`: it left in good order, where it may not delete its nodes
STATIC = "static"
WHITE_LIST = "white_list"
BLACK_LIST = "black_list"
MAX_THREADS = 1_000
THREAD_COUNTS = frozenset(range(1, MAX_THREADS + 1))
MAX_SESSION_TIMEOUT_MS = 24 * 3_600_000
MAX_LEASE_MS = 40_000  # of an agent, however long its session: who does not know a lease waits for as long
MAX_STOP_TIMEOUT_MS = 3_600_000  # the longest that one member can delay others
MAX_STATIC_GRACE_MS = 3_600_000  # how long a static member that ended can keep its partitions
MAX_TOPICS = 40_000  # that one names: the record of a member that owns a partition of each just fits into a node


class Registration(NamedTuple):
    """One consumer: its subscription (topic, or one regular expression -> consumer threads) and its properties."""

    pattern: str
    subscription: Mapping[str, int]
    timestamp: str
    client_id: str
    host: str
    session_timeout_ms: int  # granted by the ZooKeeper server
    instance_id: str | None = None
    rack: str | None = None
    capacity: float = 1.0
    stop_timeout_ms: int | None = None  # how long a stop may take, if longer than `rebalance_timeout_ms` of the group
    static_grace_ms: int | None = None  # how long the partitions of a static member wait for it; overrides the group's

    @property
    def lease_ms(self) -> int:
        """The time for which the consumer may deliver records after sending its last renewal."""
        return lease_ms(self.session_timeout_ms)


def lease_ms(session_timeout_ms: int) -> int:
    """Return two thirds of the granted session timeout, so that the lease ends before ZooKeeper expires the session."""
    return session_timeout_ms * 2 // 3


def stop_limit_ms(stop_timeout_ms: int | None, rebalance_timeout_ms: int) -> int:
    """Return the time limit for acknowledging a stop: the member's, but at least its group's."""
    return max(rebalance_timeout_ms, stop_timeout_ms or 0)


def encode(registration: Registration) -> bytes:
    """Encode a registration."""
    return fields.write_document(
        {
            "version": VERSION,
            "pattern": registration.pattern,
            "subscription": dict(registration.subscription),
            "timestamp": registration.timestamp,
            "client_id": registration.client_id,
            "instance_id": registration.instance_id,
            "rack": registration.rack,
            "capacity": registration.capacity,
            "host": registration.host,
            "session_timeout_ms": registration.session_timeout_ms,
            "stop_timeout_ms": registration.stop_timeout_ms,
            "static_grace_ms": registration.static_grace_ms,
        }
    )


def decode(content: bytes) -> Registration:
    """Decode a registration.

    Raises:
        NodeContentError: the message names the key and the fault.

    """
    what = "registration"
    document = fields.read_document(what, content)
    fields.require_version(what, document, VERSION)
    pattern = fields.text(what, document, "pattern")
    if pattern not in {STATIC, WHITE_LIST, BLACK_LIST}:
        raise NodeContentError(f"{what}: pattern {pattern!r:.80} is not {STATIC}, {WHITE_LIST} or {BLACK_LIST}")
    subscription = fields.mapping(what, document, "subscription")
    if len(subscription) > MAX_TOPICS:
        raise NodeContentError(f"{what}: names {len(subscription)} topics, at most {MAX_TOPICS} are allowed")
    if pattern == STATIC and not paths.are_legal_topics(subscription):
        for name in subscription:
            fields.topic_name(what, name)
    if not _are_thread_counts(subscription.values()):
        for name, threads in subscription.items():
            if type(threads) is not int or threads not in THREAD_COUNTS:
                context = f"{what}: {name!r:.80}"
                fields.integer(context, {"threads": threads}, "threads", minimum=1, maximum=MAX_THREADS)
    if pattern != STATIC and len(subscription) != 1:
        raise NodeContentError(f"{what}: {pattern} needs one regular expression, not {len(subscription)}")
    return Registration(
        pattern=pattern,
        subscription=subscription,
        timestamp=fields.text(what, document, "timestamp"),
        client_id=fields.text(what, document, "client_id"),
        host=fields.text(what, document, "host"),
        session_timeout_ms=fields.integer(
            what, document, "session_timeout_ms", minimum=1, maximum=MAX_SESSION_TIMEOUT_MS
        ),
        instance_id=_instance_id(what, fields.optional_text(what, document, "instance_id")),
        rack=fields.optional_text(what, document, "rack"),
        capacity=_capacity(what, document.get("capacity", 1.0)),
        stop_timeout_ms=fields.optional_integer(
            what, document, "stop_timeout_ms", minimum=1, maximum=MAX_STOP_TIMEOUT_MS
        ),
        static_grace_ms=fields.optional_integer(
            what, document, "static_grace_ms", minimum=1, maximum=MAX_STATIC_GRACE_MS
        ),
    )


def _are_thread_counts(values: Collection[object]) -> bool:
    """Whether all are numbers of threads, without a look at each in Python: there may be forty thousand."""
    return {*map(type, values)} <= {int} and {*values} <= THREAD_COUNTS


def _instance_id(what: str, name: str | None) -> str | None:
    """Validate the instance id, because it names the node `static/<instance>`."""
    try:
        return None if name is None else paths.validate_name("instance id", name)
    except InvalidNameError as error:
        raise NodeContentError(f"{what}: {error}") from None


def _capacity(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise NodeContentError(f"{what}: capacity must be a number of at least 0, not {value!r:.80}")
    return float(value)
