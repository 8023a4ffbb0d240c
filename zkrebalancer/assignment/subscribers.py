"""Groups members and topics: members with equal subscriptions form a class, topics with equal readers a kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zkrebalancer.assignment.columns import Columns, Flags, Offsets, Rows, offsets, ranges


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Classes of members that read the same topics, regardless of their numbers of consumer threads."""

    of_member: Rows  # [M]
    reads: Flags  # [classes, T]


def classes_of(columns: Columns) -> Classes:
    """Return the classes of a group, in an order that does not depend on that of the members."""
    reads = columns.threads > 0
    if len(reads) == 1:
        return Classes(columns.subscription, reads)
    chosen, class_of_subscription = _distinct_rows(reads)
    return Classes(class_of_subscription[columns.subscription], reads[chosen])


def kinds_of(reads: Flags) -> tuple[Flags, Rows]:
    """Group topics by readers: from [classes, T], return [classes, kinds] and the kind of each topic, [T]."""
    chosen, kind_of_topic = _distinct_rows(reads.T)
    return reads[:, chosen], kind_of_topic


@dataclass(frozen=True, slots=True, eq=False)
class ConsumerThreads:
    """The consumer threads that read each topic, in order; topics with equal readers share their entries.

    Topic t has the entries begin[t] … begin[t] + count[t] - 1 of `member` and `thread`.
    """

    begin: Offsets  # [T]
    count: Offsets  # [T]
    member: Rows
    thread: Rows


def consumer_threads(columns: Columns) -> ConsumerThreads:
    """Return the consumer threads of every topic, sorted by member and number."""
    chosen, list_of_topic = _distinct_rows(columns.threads.T)
    members, threads, counts = [], [], []
    for topic in chosen.tolist():
        thread_counts = columns.threads[columns.subscription, topic]
        members.append(np.repeat(np.arange(len(thread_counts), dtype=np.int32), thread_counts))
        threads.append(ranges(np.zeros(len(thread_counts), np.int64), thread_counts).astype(np.int32))
        counts.append(len(members[-1]))
    begins = offsets(np.array(counts, np.int64))
    return ConsumerThreads(
        begin=begins[:-1][list_of_topic],
        count=np.array(counts, np.int64)[list_of_topic],
        member=np.concatenate([*members, np.empty(0, np.int32)]),
        thread=np.concatenate([*threads, np.empty(0, np.int32)]),
    )


def _distinct_rows(matrix: npt.NDArray[np.bool_] | npt.NDArray[np.int16]) -> tuple[Offsets, Rows]:
    """Return the first index of each distinct row, sorted by content, and the number of each row's distinct row."""
    if matrix.size == 0 or (matrix == matrix[:1]).all():
        return np.arange(min(len(matrix), 1)), np.zeros(len(matrix), np.int32)
    packed = np.ascontiguousarray(np.packbits(matrix, axis=1) if matrix.dtype == np.bool_ else matrix)
    as_bytes = packed.view(f"V{packed.itemsize * packed.shape[1]}").ravel()  # rows are compared as a whole
    _, chosen, inverse = np.unique(as_bytes, return_index=True, return_inverse=True)
    return chosen, inverse.astype(np.int32)
