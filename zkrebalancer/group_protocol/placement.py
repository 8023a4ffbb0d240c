"""Which gateway serves a group, computed from names alone, so that every gateway gets the same answer."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from zkrebalancer.protocol.places import place_of, rank

BUCKETS = 50  # Kafka's default number of partitions of __consumer_offsets
MAX_USUAL_NAME = 255  # characters; few longer ones are remembered, so that they cannot fill the memory


def bucket_of(group_id: str) -> int:
    """Return Kafka's own number for a group: the partition of `__consumer_offsets` that would store it."""
    return _bucket_of_usual(group_id) if len(group_id) <= MAX_USUAL_NAME else _bucket_of_long(group_id)


@lru_cache(maxsize=10_000)  # every request needs it
def _bucket_of_usual(group_id: str) -> int:
    return place_of(group_id, BUCKETS)


@lru_cache(maxsize=8)  # each step of a request needs it, and of 32,000 characters it takes 4 ms
def _bucket_of_long(group_id: str) -> int:
    return place_of(group_id, BUCKETS)


def gateway_of(bucket: int, gateways: Collection[str]) -> str:
    """Return which of the live gateways should serve a bucket: the one with the highest hash of both names.

    When a gateway starts or ends, only the buckets that it gets or had move.

    Raises:
        ValueError: there is no gateway.

    """
    return max(gateways, key=lambda gateway: rank(bucket, gateway))
