"""Ownership nodes: `owners/<consumer>`, `given/<consumer>`, `evicted/<consumer>`, and `static/<instance>`."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from zkrebalancer.protocol import fields, paths
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import Bound, TopicPartition
from zkrebalancer.protocol.registration import MAX_SESSION_TIMEOUT_MS, MAX_STATIC_GRACE_MS

VERSION = 1
SPARE_BYTES = 32_768  # in a record of what a consumer owns, for all but partitions: 2 ms of decoding
_BEGIN_OF_GIVEN = b'{"version":1,"partitions":'
PARTITION_BYTES = paths.MAX_TOPIC_LENGTH + 64  # at most: a topic and thread of its own, two numbers, punctuation


class OwnersRecord(NamedTuple):
    """The partitions (-> consumer thread) that a consumer owns after `command_id`, the last command that it applied."""

    generation: int
    command_id: str | None
    partitions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class EvictionRecord:
    """The partitions that an evicted consumer owned or had pending; they stay blocked until its lease runs out.

    `topics` are blocked as a whole, because the consumer's ownership record could not be read.
    """

    generation: int
    partitions: Mapping[TopicPartition, int]
    evicted_at_ms: int
    lease_ms: int
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StaticMember:
    """The last partitions of a static member, reserved for it until `deadline_ms` (epoch; None while it is alive).

    `grace_ms`: the time that the member registered, if any. Its partitions go to no other member before that time is
    over, because somebody may still read them (a client of a gateway that ended).

    `former`: those of the partitions that it does not have, but that a former consumer of the instance may still read.
    None: unknown, because an earlier version wrote the record, so it may be all of them.
    """

    consumer: str
    partitions: frozenset[TopicPartition]
    deadline_ms: int | None
    grace_ms: int | None = None
    former: frozenset[TopicPartition] | None = frozenset()


def encode_owners(record: OwnersRecord) -> bytes:
    """Encode an ownership record."""
    return fields.write_document(
        {
            "version": VERSION,
            "generation": record.generation,
            "command_id": record.command_id,
            "threads": fields.threads_to_ranges(record.partitions),
        }
    )


def decode_owners(
    content: bytes,
    bound: Bound | None = None,
    given: Mapping[TopicPartition, int] | None = None,
    end_if_as_given: bytes | None = None,
) -> OwnersRecord:
    """Decode an ownership record, with at most the partitions that `bound` allows; raises NodeContentError.

    `given`: what its consumer was given, if that is known; it limits how long the record can be. `end_if_as_given`: see
    there; such a record names the same partitions as `given`, which are not decoded again.
    """
    max_bytes = fields.MAX_NODE_BYTES if given is None else max_owners_bytes(len(given))
    document = fields.read_document("owners", content, max_bytes)
    fields.require_version("owners", document, VERSION)
    # Without a backslash, the quote at the begin of that end opens a string: the last key of the whole document.
    is_as_given = end_if_as_given is not None and content.endswith(end_if_as_given) and b"\\" not in content
    if is_as_given and given is not None:
        partitions = given
    else:
        partitions = fields.threads_from_ranges("owners", document.get("threads"), bound)
    return OwnersRecord(
        fields.integer("owners", document, "generation"),
        fields.optional_text("owners", document, "command_id"),
        partitions,
    )


def end_if_as_given(given: bytes) -> bytes | None:
    """Return how the record of a consumer ends that owns, in thread 0, exactly what this record says it was given.

    None: unknown, because the record is not written as `encode_given` writes it.
    """
    if not given.startswith(_BEGIN_OF_GIVEN):
        return None
    return b'"threads":{"0":' + given[len(_BEGIN_OF_GIVEN) :] + b"}"


def max_owners_bytes(given: int) -> int:
    """Return how long the ownership record of a consumer can be that was given so many partitions."""
    return min(fields.MAX_NODE_BYTES, SPARE_BYTES + given * PARTITION_BYTES)


def encode_given(partitions: AbstractSet[TopicPartition], *, is_coarse: bool = False) -> bytes:
    """Encode the record of what the coordinator gave a consumer.

    `is_coarse`: as one range per topic, from the first to the last partition, which may include more than was given.
    """
    topics = fields.topics_to_ranges(frozenset(partitions))
    if is_coarse:
        topics = {topic: [[ranges[0][0], ranges[-1][1]]] for topic, ranges in topics.items()}
    return fields.write_document({"version": VERSION, "partitions": topics})


def decode_given(content: bytes) -> frozenset[TopicPartition]:
    """Decode the record of what the coordinator gave a consumer; raises NodeContentError."""
    return frozenset(given_in_threads(content))


def given_in_threads(content: bytes, bound: Bound | None = None) -> dict[TopicPartition, int]:
    """Return the same as partition -> consumer thread: always 0, as the record names none."""
    document = fields.read_document("given", content)
    fields.require_version("given", document, VERSION)
    return dict.fromkeys(fields.topics_from_ranges("given", document.get("partitions"), bound), 0)


def encode_eviction(record: EvictionRecord) -> bytes:
    """Encode an eviction record."""
    return fields.write_document(
        {
            "version": VERSION,
            "generation": record.generation,
            "command_id": None,
            "threads": fields.threads_to_ranges(record.partitions),
            "evicted_at_ms": record.evicted_at_ms,
            "lease_ms": record.lease_ms,
            "topics": list(record.topics),
        }
    )


def decode_eviction(content: bytes, bound: Bound | None = None) -> EvictionRecord:
    """Decode an eviction record, with at most the partitions that `bound` allows; raises NodeContentError."""
    document = fields.read_document("evicted", content)
    fields.require_version("evicted", document, VERSION)
    topics = document.get("topics", [])
    if not isinstance(topics, list):
        raise NodeContentError(f"evicted: topics must be a list, not {topics!r:.80}")
    return EvictionRecord(
        generation=fields.integer("evicted", document, "generation"),
        partitions=fields.threads_from_ranges("evicted", document.get("threads"), bound),
        evicted_at_ms=fields.integer("evicted", document, "evicted_at_ms", maximum=fields.MAX_EPOCH_MS),
        lease_ms=fields.integer("evicted", document, "lease_ms", maximum=MAX_SESSION_TIMEOUT_MS),
        topics=tuple(fields.topic_name("evicted", name) for name in topics),
    )


def encode_static(member: StaticMember) -> bytes:
    """Encode a static member."""
    return fields.write_document(
        {
            "version": VERSION,
            "consumer": member.consumer,
            "partitions": fields.topics_to_ranges(member.partitions),
            "deadline_ms": member.deadline_ms,
            "grace_ms": member.grace_ms,
            "former": None if member.former is None else fields.topics_to_ranges(member.former),
        }
    )


def decode_static(content: bytes, bound: Bound | None = None) -> StaticMember:
    """Decode a static member, with at most the partitions that `bound` allows; raises NodeContentError."""
    document = fields.read_document("static", content)
    fields.require_version("static", document, VERSION)
    deadline = None if document.get("deadline_ms") is None else fields.integer("static", document, "deadline_ms")
    former = document.get("former")
    return StaticMember(
        consumer=fields.text("static", document, "consumer"),
        partitions=frozenset(fields.topics_from_ranges("static", document.get("partitions"), bound)),
        deadline_ms=deadline,
        grace_ms=fields.optional_integer("static", document, "grace_ms", minimum=1, maximum=MAX_STATIC_GRACE_MS),
        former=None if former is None else frozenset(fields.topics_from_ranges("static", former, bound)),
    )


def decode_static_consumer(content: bytes) -> str:
    """Return the last consumer of a static member, without decoding its partitions; raises NodeContentError."""
    document = fields.read_document("static", content)
    fields.require_version("static", document, VERSION)
    return fields.text("static", document, "consumer")
