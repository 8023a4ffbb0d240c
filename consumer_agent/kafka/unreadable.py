"""Partitions that no new client can read either, such as those with a damaged log in a broker. Pure.

librdkafka says nothing about some damages. Replacing its client again and again would cost the other partitions, and in
the end the membership.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zkrebalancer.protocol.fields import TopicPartition

FIRST_PAUSE_S = 600.0  # after a replacement, if the partition is still stuck at the same offset; doubles
MAX_PAUSE_S = 7_200.0  # so fewer than a dozen replacements a day


class _Try(NamedTuple):
    offset: int | None
    pause_s: float
    again_at_s: float


class Unreadable:
    """What was tried for each stuck partition."""

    def __init__(self) -> None:
        """Begin with nothing tried."""
        self._tried: dict[TopicPartition, _Try] = {}
        self._told: set[TopicPartition] = set()

    def due(self, stuck: Mapping[TopicPartition, int | None], now_s: float) -> list[TopicPartition]:
        """Return which of these partitions, stuck at these offsets, a new client may help."""
        self._tried = {tp: one for tp, one in self._tried.items() if tp in stuck and one.offset == stuck[tp]}
        self._told &= self._tried.keys()
        return [tp for tp in stuck if tp not in self._tried or now_s >= self._tried[tp].again_at_s]

    def tried(self, stuck: Mapping[TopicPartition, int | None], now_s: float) -> None:
        """Note that these have a new client."""
        for partition, offset in stuck.items():
            former = self._tried.get(partition)
            pause_s = FIRST_PAUSE_S if former is None else min(2 * former.pause_s, MAX_PAUSE_S)
            self._tried[partition] = _Try(offset, pause_s, now_s + pause_s)

    def new(self, stuck: Mapping[TopicPartition, int | None]) -> list[TopicPartition]:
        """Return those for which a new client was of no use, each once."""
        found = [tp for tp in stuck if tp in self._tried and tp not in self._told]
        self._told.update(found)
        return found
