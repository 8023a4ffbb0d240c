"""What consumers embed in JoinGroup and SyncGroup: their subscription and their assignment.

Source: Kafka's `ConsumerProtocolSubscription` and `ConsumerProtocolAssignment`. Later versions only append fields.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

PROTOCOL_TYPE = "consumer"
OWNED_FROM, RACK_FROM = 1, 3  # versions of a subscription
GENERATION_FROM = 2
NULL_LENGTH = -1


class SubscriptionError(Exception):
    """A member's subscription, or its assignment, cannot be read."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A consumer's subscription; `owned`: topic -> partitions that it has, always empty for eager clients."""

    version: int
    topics: tuple[str, ...]
    owned: Mapping[str, tuple[int, ...]]
    rack_id: str | None


class _Reader:
    """Reads one value after the other."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

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
        return count


def read_subscription(metadata: bytes) -> Subscription:
    """Read a member's metadata.

    Raises:
        SubscriptionError: the metadata are truncated, or no subscription.

    """
    reader = _Reader(metadata)
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


def read_assignment(content: bytes) -> dict[str, tuple[int, ...]]:
    """Return topic -> partitions of an assignment; no bytes are an empty assignment.

    Raises:
        SubscriptionError: the content is truncated, or no assignment.

    """
    if not content:
        return {}
    reader = _Reader(content)
    try:
        reader.number(">h")
        return reader.partitions()
    except (struct.error, ValueError) as error:
        raise SubscriptionError(f"an assignment of {len(content)} bytes cannot be read: {error}") from None


def write_assignment(version: int, partitions: Mapping[str, tuple[int, ...]]) -> bytes:
    """Return an assignment in the form that a member with a subscription of this version reads."""
    parts = [struct.pack(">hi", version, len(partitions))]
    for topic, numbers in partitions.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers))
    return b"".join([*parts, struct.pack(">i", NULL_LENGTH)])
