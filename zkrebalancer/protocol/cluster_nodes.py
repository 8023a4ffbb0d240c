"""Nodes outside groups: Kafka's topics and brokers, the coordinator's address, and plain counters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zkrebalancer.protocol import fields
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.numbers import decimal

VERSION = 1
MAX_NAMES = 4  # of an incarnation; two today
_CREATION = "czxid-"
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")
MAX_MISSING_PARTITIONS = 1_000  # Kafka numbers partitions without gaps, and strategies loop up to the highest one
MAX_COUNTER = 10**18 - 1  # so that a counter can still be incremented and stored


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of Kafka. `incarnation`: its names (topic id, creation of its node), see `is_same_topic`.

    Without an incarnation: its node exists but was never readable.
    """

    partitions: frozenset[int]
    incarnation: str
    count: int = field(init=False)  # highest partition + 1

    def __post_init__(self) -> None:
        """Count once, because every rebalance of every group that reads the topic needs the count."""
        object.__setattr__(self, "count", max(self.partitions, default=-1) + 1)


NOBODY = -1
UNKNOWN = -2
UNREAD = Topic(frozenset(), "")


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """The leading coordinator: broker id, host, election epoch, HTTP address (None: no HTTP), epoch milliseconds.

    The broker id is NOBODY in a node that only keeps coordinators from leading, while there are shards or a restore.
    """

    brokerid: int
    host: str
    epoch: int
    http: str | None
    timestamp: str

    @property
    def is_known(self) -> bool:
        """Whether its node could be read."""
        return self.brokerid != UNKNOWN

    @property
    def name(self) -> str:
        """Which coordinator it is, for people."""
        return f"broker {self.brokerid} on {self.host}" if self.is_known else self.host


def unfinished_restore(node: CoordinatorAddress) -> str:
    """Return what to tell people about a node that keeps coordinators from leading until a restore is complete."""
    return (
        f"{node.host} runs, or was interrupted: nobody leads until it is complete; repeat it with --overwrite, or use"
        " the tree as it is after `zkrebalancer restore --accept-partial`"
    )


def unknown_coordinator(error: NodeContentError) -> CoordinatorAddress:
    """Return what is known of a coordinator whose node cannot be read, such as one of a newer release."""
    return CoordinatorAddress(UNKNOWN, f"one whose node cannot be read ({error})", 0, None, "0")


def decode_topic(content: bytes, created_zxid: int) -> Topic:
    """Decode `/brokers/topics/<topic>`; its topic id, if any, and the creation of its node make the incarnation.

    Raises:
        NodeContentError: not Kafka's JSON, or a partition is not a number.

    """
    document = fields.read_document("topic", content)
    partitions = _partitions(document)
    topic_id = fields.optional_text("topic", document, "topic_id")
    names = [topic_id] if topic_id is not None and _NAME.fullmatch(topic_id) else []
    return Topic(frozenset(map(int, partitions)), " ".join([*names, f"{_CREATION}{created_zxid}"]))


def decode_mark(content: bytes) -> str:
    """Decode the mark in `offsets/<topic>`, the incarnation that the offsets belong to; "" if it is empty.

    Raises:
        NodeContentError: the content is no mark.

    """
    names = content.decode(errors="replace").split(" ") if content else []
    if len(names) > MAX_NAMES or not all(map(_NAME.fullmatch, names)):
        raise NodeContentError(f"offsets: {content[:80]!r} is no mark of a topic")
    return " ".join(names)


def names_creation(mark: str) -> bool:
    """Whether a mark names the creation of a topic's node, as every mark of a coordinator does."""
    return any(name.startswith(_CREATION) for name in mark.split())


def without_creation(mark: str) -> str:
    """Return the names of a mark that also hold in another ensemble: topic ids."""
    return " ".join(name for name in mark.split() if not name.startswith(_CREATION))


def merged_names(now: str, before: str) -> str:
    """Return `before` if it has all names of `now`; else the names of `now`, then of `before`, at most MAX_NAMES."""
    if set(now.split()) <= set(before.split()):
        return before
    return " ".join(list(dict.fromkeys([*now.split(), *before.split()]))[:MAX_NAMES])


def is_same_topic(one: str, other: str) -> bool:
    """Whether two incarnations are the same topic, by a common name.

    A topic that gets an id keeps its node; a copied node keeps its id; a recreated topic keeps neither.
    """
    return not set(one.split()).isdisjoint(other.split())


def may_be_same_topic(one: str, other: str) -> bool:
    """Whether two incarnations may be the same topic: an empty one, which is not known, may be of any."""
    return not one or not other or is_same_topic(one, other)


def decode_replicas(content: bytes) -> dict[int, list[int]]:
    """Decode `/brokers/topics/<topic>` as partition -> broker ids of its replicas; raises NodeContentError."""
    partitions = _partitions(fields.read_document("topic", content))
    for name, brokers in partitions.items():
        if not (isinstance(brokers, list) and all(type(broker) is int for broker in brokers)):
            raise NodeContentError(f"topic: the brokers of partition {name} must be numbers, not {brokers!r:.80}")
    return {int(name): brokers for name, brokers in partitions.items()}


def _partitions(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `partitions` object of a topic's node, with valid partition numbers as keys."""
    partitions = fields.mapping("topic", document, "partitions")
    limit = fields.MAX_PARTITIONS_PER_NODE
    for name in partitions:
        if decimal(name, limit - 1) is None:
            raise NodeContentError(f"topic: partition {name!r:.80} is not a number below {limit}")
    if not partitions:
        raise NodeContentError("topic: has no partitions")  # every topic has some: another program wrote this node
    highest = max(map(int, partitions))
    if highest >= len(partitions) + MAX_MISSING_PARTITIONS:
        raise NodeContentError(f"topic: partition {highest} of only {len(partitions)}: too many are missing")
    return partitions


def decode_rack(content: bytes) -> str | None:
    """Return the rack in `/brokers/ids/<id>`, None if the broker has none; raises NodeContentError."""
    return fields.optional_text("broker", fields.read_document("broker", content), "rack")


def encode_coordinator(address: CoordinatorAddress) -> bytes:
    """Encode the content of `/consumers/coordinator`."""
    return fields.write_document(
        {
            "version": VERSION,
            "brokerid": address.brokerid,
            "host": address.host,
            "epoch": address.epoch,
            "http": address.http,
            "timestamp": address.timestamp,
        }
    )


def decode_coordinator(content: bytes) -> CoordinatorAddress:
    """Decode `/consumers/coordinator`; raises NodeContentError."""
    what = "coordinator"
    document = fields.read_document(what, content)
    fields.require_version(what, document, VERSION)
    return CoordinatorAddress(
        brokerid=fields.integer(what, document, "brokerid", minimum=NOBODY),
        host=fields.text(what, document, "host"),
        epoch=fields.integer(what, document, "epoch"),
        http=fields.optional_text(what, document, "http"),
        timestamp=fields.text(what, document, "timestamp"),
    )


def encode_counter(value: int) -> bytes:
    """Encode an epoch, a generation or an offset as decimal text."""
    return str(value).encode()


def decode_counter(what: str, content: bytes) -> int:
    """Decode an epoch, a generation or an offset; raises NodeContentError."""
    number = decimal(content.strip(), MAX_COUNTER)
    if number is None:
        raise NodeContentError(f"{what}: must be a decimal integer, not {content[:80]!r}")
    return number


def first_generation(served: bytes, served_zxid: int, created_zxid: int) -> int:
    """Return from where a group counts that may have had a former life: above all generations and lives of that.

    `created_zxid`: of the transaction that created its node. In a restored tree, `served`, the content of
    `/consumers/served`, is a number above all generations before; `served_zxid`: of what created that node.
    """
    number = decimal(served.strip(), MAX_COUNTER)
    return created_zxid if number is None else max(created_zxid, number + max(0, created_zxid - served_zxid))
