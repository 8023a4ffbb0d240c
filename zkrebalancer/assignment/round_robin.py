"""Round robin: deals all partitions in order, one at a time, to the consumer threads in a circle.

Source: Kafka's `RoundRobinAssignor`, with consumer threads instead of members. Threads that do not read the topic are
skipped; the next topic continues where the last one ended.
"""

from __future__ import annotations

import numpy as np

from zkrebalancer.assignment.columns import NOBODY, Columns, Offsets, Rows, offsets
from zkrebalancer.assignment.subscribers import ConsumerThreads, consumer_threads


def deal(columns: Columns) -> tuple[Rows, Rows]:
    """Deal all partitions, sorted by topic and number, to the consumer threads, sorted by consumer and number.

    Returns the member and the consumer thread of each row.
    """
    readers = consumer_threads(columns)
    partitions = np.diff(columns.first)
    # The n-th partition of a topic goes to the n-th reader after the place where the last topic ended.
    start = _starts(columns, readers, partitions)
    turn = np.arange(len(columns.topic)) + np.repeat(start - columns.first[:-1], partitions)
    turn %= np.repeat(np.maximum(readers.count, 1), partitions)
    place = turn + np.repeat(np.where(readers.count, readers.begin, len(readers.member)), partitions)
    return (
        np.append(readers.member, np.int32(NOBODY))[place],
        np.append(readers.thread, np.int32(NOBODY))[place],
    )


def _starts(columns: Columns, readers: ConsumerThreads, partitions: Offsets) -> Offsets:
    """Return for each topic the index of the reader that gets its first partition."""
    circle = offsets(
        columns.threads.max(axis=1, initial=0)[columns.subscription]
    )  # place of each member's thread 0 in it
    place_in_circle = circle[readers.member] + readers.thread
    starts = []
    start, last_begin, next_place = 0, -1, 0
    for begin, count, partition_count in zip(
        readers.begin.tolist(), readers.count.tolist(), partitions.tolist(), strict=True
    ):
        if count and partition_count:
            if begin != last_begin:
                start = int(np.searchsorted(place_in_circle[begin : begin + count], next_place))
            last_begin = begin
            starts.append(start)
            start = (start + partition_count) % count
            next_place = int(place_in_circle[begin + (start - 1) % count]) + 1
        else:
            starts.append(0)
    return np.array(starts, np.int64)
