"""Offsets of many partitions as columns, and the lag and rate computed from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from zkrebalancer.assignment.columns import Offsets
from zkrebalancer.protocol.fields import TopicPartition

UNKNOWN = -1  # in place of an offset

Rates = npt.NDArray[np.float64]
Column = TypeVar("Column", bound=npt.NDArray[Any])


class Deferred(Mapping[str, Column]):
    """Topic -> a column that is computed on first access and cached.

    The coordinator's loop creates the mapping without blocking; the strategy, in another thread, computes the columns.
    """

    def __init__(self, topics: Sequence[str], compute: Callable[[str], Column]) -> None:
        """Store the topics; computes nothing yet."""
        self._compute = compute
        self._columns: dict[str, Column | None] = dict.fromkeys(topics)

    def __getitem__(self, topic: str) -> Column:
        """Return the column of a topic; raises KeyError."""
        column = self._columns[topic]
        if column is None:
            column = self._columns[topic] = self._compute(topic)
        return column

    def __iter__(self) -> Iterator[str]:
        """Yield the topics."""
        return iter(self._columns)

    def __len__(self) -> int:
        """Return the number of topics."""
        return len(self._columns)


def to_offsets(topics: Mapping[str, int], found: Mapping[TopicPartition, int]) -> dict[str, Offsets]:
    """Return topic -> offset of each partition, or UNKNOWN; `topics` maps names to numbers of partitions."""
    offsets = {topic: np.full(count, UNKNOWN, np.int64) for topic, count in topics.items()}
    for (topic, number), offset in found.items():
        if topic in offsets and number < len(offsets[topic]):
            offsets[topic][number] = offset
    return offsets


def pack(offsets: Mapping[str, Offsets]) -> dict[str, bytes]:
    """Serialise offsets for a pipe; see `unpack`."""
    return {topic: values.tobytes() for topic, values in offsets.items()}


def unpack(packed: Mapping[str, bytes]) -> dict[str, Offsets]:
    """Deserialise the output of `pack`."""
    return {topic: np.frombuffer(content, np.int64) for topic, content in packed.items()}


def lag_of(ends: Offsets, committed: Offsets) -> Offsets:
    """Return the number of unread records of each partition, 0 where unknown."""
    lag: Offsets = np.where((committed == UNKNOWN) | (ends == UNKNOWN), 0, np.maximum(ends - committed, 0))
    return lag


def expected_or(measured: Rates, expected: Sequence[float]) -> Rates:
    """Return the expected rates, extended by the measured rates of partitions without an expected one."""
    rates: Rates = np.array(expected, np.float64)
    return np.concatenate((rates, measured[len(rates) :]))


def rate_of(before: Offsets, ends: Offsets, elapsed_s: float) -> Rates:
    """Return the records per second written to each partition, 0 where unknown.

    `before` and `ends`: log ends at the beginning and the end of `elapsed_s`. Partitions in only one are left out.
    """
    both = min(len(before), len(ends))
    before, ends = before[:both], ends[:both]
    is_known = (before != UNKNOWN) & (ends != UNKNOWN)
    return np.where(is_known, np.maximum(ends - before, 0) / elapsed_s, 0.0)
