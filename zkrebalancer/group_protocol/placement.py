"""Which gateway serves a group, computed from names alone, so that every gateway gets the same answer."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from functools import lru_cache

BUCKETS = 50  # Kafka's default number of partitions of __consumer_offsets


@lru_cache(maxsize=10_000)  # every request asks
def bucket_of(group_id: str) -> int:
    """Return Kafka's own number for a group: the partition of `__consumer_offsets` that would store it."""
    return _java_abs(java_hash(group_id)) % BUCKETS


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`, a signed number of 32 bits over UTF-16 units."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _java_abs(value: int) -> int:
    """Return Kafka's `Utils.abs`, in which the smallest integer becomes 0."""
    return 0 if value == -(1 << 31) else abs(value)


def gateway_of(bucket: int, gateways: Collection[str]) -> str:
    """Return which of the live gateways should serve a bucket: the one with the highest hash of both names.

    When a gateway starts or ends, only the buckets that it gets or had move.

    Raises:
        ValueError: there is no gateway.

    """
    return max(gateways, key=lambda gateway: (hashlib.sha256(f"{bucket}/{gateway}".encode()).digest(), gateway))
