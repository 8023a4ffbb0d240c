"""Range, as in Kafka's old consumer: cuts each topic into contiguous pieces, one for each consumer thread.

Source: `RangeAssignor` of Kafka's ZooKeeper consumer. Two differences: static members come first, and threads are
sorted by number (Kafka sorted them as text: `c-10` before `c-2`).
"""

from __future__ import annotations

import numpy as np

from zkrebalancer.assignment.columns import NOBODY, Columns, Rows, offsets
from zkrebalancer.assignment.subscribers import consumer_threads


def cut_ranges(columns: Columns) -> tuple[Rows, Rows]:
    """Give each consumer thread a contiguous range of each topic; the first `partitions mod threads` get one more.

    Returns the member and the consumer thread of each row.
    """
    readers = consumer_threads(columns)
    partitions = np.diff(columns.first)
    size, longer_count = np.divmod(partitions, np.maximum(readers.count, 1))
    # With more threads than partitions, the last threads get nothing. An unread topic is one piece for NOBODY, which
    # is appended to the readers.
    piece_counts = np.maximum(np.minimum(readers.count, partitions), 1)
    begins = offsets(piece_counts)
    position = np.arange(begins[-1]) - np.repeat(begins[:-1], piece_counts)
    length = np.repeat(size, piece_counts) + (position < np.repeat(longer_count, piece_counts))
    unread = readers.count == 0
    length[begins[:-1][unread]] = partitions[unread]
    place = position + np.repeat(np.where(unread, len(readers.member), readers.begin), piece_counts)
    member = np.append(readers.member, np.int32(NOBODY))[place]
    thread = np.append(readers.thread, np.int32(NOBODY))[place]
    return np.repeat(member, length), np.repeat(thread, length)
