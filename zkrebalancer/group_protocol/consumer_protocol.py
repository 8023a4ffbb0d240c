"""What consumers embed in JoinGroup and SyncGroup: their subscription and their assignment.

Source: Kafka's `ConsumerProtocolSubscription` and `ConsumerProtocolAssignment`. Later versions only append fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PROTOCOL_TYPE = "consumer"
OWN_ASSIGNORS = frozenset({"stream"})  # whose assignments have more than partitions: the tasks of Kafka Streams
OWNED_FROM, RACK_FROM = 1, 3  # versions of a subscription
GENERATION_FROM = 2
LATEST_ASSIGNMENT = 3  # that is known here
NULL_LENGTH = -1
MAX_METADATA_BYTES = 1 << 20  # of one member, of all its protocols together
MAX_ENTRIES = 100_000  # of the lists of one member: reading this many takes a tenth of a second
MAX_ENTRIES_OF_GROUP = 1_000_000  # of all members of a group that are read at once


class SubscriptionError(Exception):
    """A member's subscription, or its assignment, cannot be read."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A consumer's subscription; `owned`: topic -> partitions that it has, always empty for eager clients."""

    version: int
    topics: tuple[str, ...]
    owned: Mapping[str, tuple[int, ...]]
    rack_id: str | None


def needs_own_assignor(names: Iterable[str]) -> bool:
    """Whether a member with these protocols can use only what another such member assigns."""
    offered = set(names)
    return bool(offered) and offered <= OWN_ASSIGNORS


class Entries:
    """How many entries of lists may still be read; they cost far more than their bytes."""

    def __init__(self, limit: int, what: str = "") -> None:
        self._limit, self._what = limit, what
        self._left = limit

    def spend(self, count: int) -> None:
        """Count entries; raises ValueError if that is more than may be read."""
        self._left -= count
        if self._left < 0:
            raise ValueError(f"more than {self._limit} entries{self._what}")


class _Reader:
    """Reads one value after the other."""

    def __init__(self, content: bytes, *limits: Entries) -> None:
        self._content = content
        self._at = 0
        self._limits = limits

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._content, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def bytes_of(self, length: int) -> bytes:
        found = self._content[self._at : self._at + length]
        if length < 0 or len(found) != length:
            raise ValueError(f"{length} bytes expected, {len(found)} found")
        self._at += length
        return found

    def text(self) -> str:
        return self.bytes_of(self.number(">h")).decode()

    def nullable_text(self) -> str | None:
        length = self.number(">h")
        return None if length == NULL_LENGTH else self.bytes_of(length).decode()

    def skip_user_data(self) -> None:
        length = self.number(">i")
        if length != NULL_LENGTH:
            self.bytes_of(length)

    def partitions(self) -> dict[str, tuple[int, ...]]:
        return {self.text(): tuple(self.number(">i") for _ in range(self.count())) for _ in range(self.count())}

    def count(self) -> int:
        count = self.number(">i")
        if not 0 <= count <= len(self._content):  # each entry has a byte at least
            raise ValueError(f"a list of {count} entries")
        for limit in self._limits:
            limit.spend(count)
        return count


def read_subscription(metadata: bytes, of_group: Entries | None = None) -> Subscription:
    """Read a member's metadata; `of_group`: how many entries all members may have whose metadata are read now.

    Raises:
        SubscriptionError: the metadata are truncated, too long, or no subscription.

    """
    reader = _Reader(metadata, Entries(MAX_ENTRIES), of_group or Entries(MAX_ENTRIES))
    owned: dict[str, tuple[int, ...]] = {}
    rack_id = None
    try:
        version = reader.number(">h")
        topics = tuple(reader.text() for _ in range(reader.count()))
        reader.skip_user_data()
        if version >= OWNED_FROM:
            owned = reader.partitions()
        if version >= GENERATION_FROM:
            reader.number(">i")
        if version >= RACK_FROM:
            rack_id = reader.nullable_text()
    except (struct.error, ValueError) as error:
        raise SubscriptionError(f"a subscription of {len(metadata)} bytes cannot be read: {error}") from None
    return Subscription(version, topics, owned, rack_id)


def read_version(metadata: bytes) -> int:
    """Return the version of a subscription that was read before, which may have many topics."""
    return _Reader(metadata).number(">h")


def read_assignment(content: bytes, of_group: Entries | None = None) -> dict[str, tuple[int, ...]]:
    """Return topic -> partitions of an assignment; no bytes are an empty assignment. `of_group`: as above.

    Raises:
        SubscriptionError: the content is truncated, too long, or no assignment.

    """
    if not content:
        return {}
    reader = _Reader(content, Entries(MAX_ENTRIES), of_group or Entries(MAX_ENTRIES))
    try:
        reader.number(">h")
        return reader.partitions()
    except (struct.error, ValueError) as error:
        raise SubscriptionError(f"an assignment of {len(content)} bytes cannot be read: {error}") from None


def write_assignment(version: int, partitions: Mapping[str, tuple[int, ...]]) -> bytes:
    """Return an assignment that a member with a subscription of this version reads, in a form that is known here."""
    parts = [struct.pack(">hi", min(version, LATEST_ASSIGNMENT), len(partitions))]
    for topic, numbers in partitions.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers))
    return b"".join([*parts, struct.pack(">i", NULL_LENGTH)])
