"""Strict decoding of small JSON documents: a missing or mistyped key rejects the node with a named error."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.errors import NewerVersionError, NodeContentError, TooManyPartitionsError
from zkrebalancer.protocol.numbers import decimal

MAX_NODE_BYTES = 1_000_000  # just under ZooKeeper's limit (jute.maxbuffer)
MAX_PARTITION = 2**31 - 1  # int32 in Kafka
MAX_TEXT_BYTES = 0x7FFF  # of a text in any version of Kafka's protocol
MAX_THREAD = 999_999
MAX_EPOCH_MS = 10**14  # a time in the year 5138; later ones than in 9999 cannot be shown
MAX_PARTITIONS_PER_NODE = 1_000_000  # a short range must not expand until memory is exhausted
MAX_ABSENT_PARTITIONS = 10_000  # of deleted topics: a consumer owns them until it has acknowledged a stop

_raw_decode = json.JSONDecoder().raw_decode
_BLANK = " \t\n\r"  # what JSON allows around a value

TopicPartition = tuple[str, int]
RangeList = list[list[int]]
PartitionCount = Callable[[str], int]  # topic -> number of partitions, 0 if it does not exist


def read_document(what: str, content: bytes, max_bytes: int = MAX_NODE_BYTES) -> dict[str, Any]:
    """Decode a node that holds one JSON object of at most `max_bytes` bytes.

    Raises:
        NodeContentError: naming `what` and the reason.

    """
    if len(content) > max_bytes:
        raise NodeContentError(f"{what}: {len(content)} bytes, at most {max_bytes} are allowed")
    try:
        text = content.decode()
        document = _parse(text)
        if "\\u" in text:
            json.dumps(document, ensure_ascii=False).encode()  # reject lone surrogates: they cannot be encoded again
    except (ValueError, RecursionError) as error:
        raise NodeContentError(f"{what}: not JSON ({error})") from None
    if not isinstance(document, dict):
        raise NodeContentError(f"{what}: must be a JSON object, not {type(document).__name__}")
    return document


def _parse(text: str) -> Any:  # noqa: ANN401  # any JSON
    """Parse JSON as `json.loads` does, which takes twice as long for a short text."""
    text = text.strip(_BLANK)
    document, end = _raw_decode(text)
    if end != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return document


def write_document(document: Mapping[str, object]) -> bytes:
    """Encode as compact UTF-8 JSON; keys keep their order."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def require_version(what: str, document: Mapping[str, Any], known: int = 1) -> None:
    """Reject a document of a newer version, because its meaning is unknown."""
    found = document.get("version")
    if type(found) is int and 1 <= found <= known:
        return  # nearly always
    version = integer(what, document, "version", minimum=1)
    if version > known:
        raise NewerVersionError(f"{what}: version {version} is newer than {known}, the newest supported version")


def integer(what: str, document: Mapping[str, Any], key: str, *, minimum: int = 0, maximum: int = 2**63 - 1) -> int:
    """Return the integer under `key`."""
    value = document.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise NodeContentError(f"{what}: {key} must be an integer, not {value!r:.80}")
    if not minimum <= value <= maximum:
        raise NodeContentError(f"{what}: {key} is {value!r:.80}, must be {minimum} to {maximum}")
    return value


def optional_integer(what: str, document: Mapping[str, Any], key: str, *, minimum: int, maximum: int) -> int | None:
    """Return the integer under `key`, None if absent or null."""
    return None if document.get(key) is None else integer(what, document, key, minimum=minimum, maximum=maximum)


def text(what: str, document: Mapping[str, Any], key: str) -> str:
    """Return the string under `key`."""
    value = document.get(key)
    if not isinstance(value, str):
        raise NodeContentError(f"{what}: {key} must be a string, not {value!r:.80}")
    return value


def optional_text(what: str, document: Mapping[str, Any], key: str) -> str | None:
    """Return the string under `key`, None if absent or null."""
    return None if document.get(key) is None else text(what, document, key)


def mapping(what: str, document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object under `key`."""
    value = document.get(key)
    if not isinstance(value, dict) or not {*map(type, value)} <= {str}:
        raise NodeContentError(f"{what}: {key} must be an object, not {value!r:.80}")
    return value


def topic_name(what: str, name: object) -> str:
    """Return `name` if Kafka allows it for a topic; names become part of paths and commands."""
    if not isinstance(name, str) or not paths.is_legal_topic(name):
        raise NodeContentError(f"{what}: {name!r:.80} is not a topic name")
    return name


def to_ranges(partitions: list[int] | tuple[int, ...] | set[int] | frozenset[int]) -> RangeList:
    """Return partitions as sorted inclusive ranges: {0, 1, 2, 5} becomes [[0, 2], [5, 5]]."""
    ranges: RangeList = []
    for partition in sorted(partitions):
        if ranges and partition == ranges[-1][1] + 1:
            ranges[-1][1] = partition
        else:
            ranges.append([partition, partition])
    return ranges


def topics_to_ranges(partitions: Mapping[TopicPartition, object] | frozenset[TopicPartition]) -> dict[str, RangeList]:
    """Return partitions as ranges by topic: {"orders": [[0, 2]]}."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    single = {topic: [[found[0], found[0]]] for topic, found in by_topic.items() if len(found) == 1}  # often most
    return {topic: single.get(topic) or to_ranges(by_topic[topic]) for topic in sorted(by_topic)}


@dataclass(slots=True)
class Bound:
    """The partitions that one node may name: all that exist, and at most `absent` others.

    Checked before ranges are expanded: 80 bytes can name a million partitions, which need 340 MB.
    """

    partition_count: PartitionCount
    absent: int = MAX_ABSENT_PARTITIONS  # how many more partitions that do not exist may be named

    def count_absent(self, what: str, topic: str, first: int, last: int, existing: int) -> None:
        """Count the part of a range beyond the topic's `existing` partitions; raises TooManyPartitionsError."""
        self.absent -= last + 1 - max(first, existing)
        if self.absent < 0:
            raise TooManyPartitionsError(
                f"{what}: {topic}: names partition {last} of {existing}; "
                f"at most {MAX_ABSENT_PARTITIONS} partitions that do not exist are allowed"
            )


def topics_from_ranges(what: str, topics: object, bound: Bound | None = None) -> list[TopicPartition]:
    """Expand {"orders": [[0, 2]]}, rejecting ranges that are unsorted or overlap, and too many partitions.

    A hot path: the coordinator's loop decodes every acknowledgement here. Hence one function, with a shortcut for
    single partitions, the most frequent case.
    """
    if not isinstance(topics, dict):
        raise NodeContentError(f"{what}: topics must be an object, not {topics!r:.80}")
    found: list[TopicPartition] = []
    for name, ranges in topics.items():
        topic = topic_name(what, name)
        if type(ranges) is not list:
            raise NodeContentError(f"{what}: {topic}: partitions must be a list of ranges, not {ranges!r:.80}")
        existing = MAX_PARTITION if bound is None else bound.partition_count(topic)
        end = -1
        for pair in ranges:
            if not (type(pair) is list and len(pair) == 2 and type(pair[0]) is type(pair[1]) is int):
                raise NodeContentError(f"{what}: {topic}: a range must be [first, last], not {pair!r:.80}")
            first, last = pair
            if not end < first <= last <= MAX_PARTITION:
                raise NodeContentError(f"{what}: {topic}: range {pair!r:.80} is out of order or out of bounds")
            if len(found) + last - first >= MAX_PARTITIONS_PER_NODE:
                raise NodeContentError(f"{what}: {topic}: more than {MAX_PARTITIONS_PER_NODE} partitions")
            if bound is not None and last >= existing:
                bound.count_absent(what, topic, first, last, existing)
            if first == last:
                found.append((topic, first))
            else:
                found += [(topic, partition) for partition in range(first, last + 1)]
            end = last
    return found


def threads_to_ranges(partitions: Mapping[TopicPartition, int]) -> dict[str, dict[str, RangeList]]:
    """Return partition -> consumer thread as ranges by thread: {"0": {"orders": [[0, 2]]}}."""
    by_thread: dict[int, set[TopicPartition]] = {}
    for topic_partition, thread in partitions.items():
        by_thread.setdefault(thread, set()).add(topic_partition)
    return {str(thread): topics_to_ranges(frozenset(by_thread[thread])) for thread in sorted(by_thread)}


def threads_from_ranges(what: str, threads: object, bound: Bound | None = None) -> dict[TopicPartition, int]:
    """Expand {"0": {"orders": [[0, 2]]}} to partition -> consumer thread; a partition may occur only once."""
    if not isinstance(threads, dict):
        raise NodeContentError(f"{what}: threads must be an object, not {threads!r:.80}")
    found: dict[TopicPartition, int] = {}
    for name, topics in threads.items():
        thread = decimal(name, MAX_THREAD) if isinstance(name, str) else None
        if thread is None:
            raise NodeContentError(f"{what}: consumer thread must be a small number, not {name!r:.80}")
        partitions = dict.fromkeys(topics_from_ranges(what, topics, bound), thread)
        if not found.keys().isdisjoint(partitions):
            twice = min(found.keys() & partitions.keys())
            raise NodeContentError(f"{what}: {twice} is listed under two consumer threads")
        found = found | partitions if found else partitions
        if len(found) > MAX_PARTITIONS_PER_NODE:
            raise NodeContentError(f"{what}: more than {MAX_PARTITIONS_PER_NODE} partitions")
    return found
