"""Chooses the consumer thread of each row, given its member, and collects both into an `Assignment`."""

from __future__ import annotations

import numpy as np

from zkrebalancer.assignment.alike import narrow, spread_alike
from zkrebalancer.assignment.columns import NOBODY, Columns, Offsets, Rows, offsets
from zkrebalancer.assignment.exact import spread_exactly
from zkrebalancer.assignment.model import Assignment
from zkrebalancer.protocol.fields import TopicPartition


def to_threads(columns: Columns, target: Rows) -> Rows:
    """Spread each member's rows evenly over its threads that read their topics; rows stay on their thread if possible.

    `target`: the member of each row. Returns the consumer thread of each row, NOBODY where the target is NOBODY.
    """
    if columns.threads.max(initial=0) <= 1:
        return target >> 31  # 0, or NOBODY (-1) where the target is NOBODY
    most = columns.threads.max(axis=1)
    is_even = ((columns.threads == 0) | (columns.threads == most[:, np.newaxis])).all(axis=1)
    thread_count = most.astype(np.int64)[columns.subscription]
    first_thread = offsets(thread_count)
    keeps = (columns.holder == target) & (target >= 0) & (columns.owner_thread < thread_count[target])
    claimed = np.where(keeps, first_thread[target] + columns.owner_thread, NOBODY).astype(np.int32)
    free = np.flatnonzero((target >= 0) & ~keeps)
    threads = spread_alike(
        claimed,
        None,
        free[np.argsort(narrow(target[free]), kind="stable")],
        np.bincount(target + 1, minlength=len(thread_count) + 1)[1:],
        np.repeat(np.arange(len(thread_count), dtype=np.int32), thread_count),
    )
    result = np.where(target >= 0, threads - first_thread[target], NOBODY).astype(np.int32)
    for member in np.flatnonzero(~is_even[columns.subscription]).tolist():
        _over_uneven_threads(columns, member, np.flatnonzero(target == member), result)
    return result


def _over_uneven_threads(columns: Columns, member: int, rows: Offsets, result: Rows) -> None:
    """Spread the rows of one member that reads some topics with more threads than others."""
    threads = columns.threads[columns.subscription[member]]
    partitions: dict[str, list[int]] = {}
    claims: dict[int, list[TopicPartition]] = {}
    for row in rows.tolist():
        topic = int(columns.topic[row])
        topic_partition = columns.topics[topic], row - int(columns.first[topic])
        partitions.setdefault(topic_partition[0], []).append(topic_partition[1])
        thread = int(columns.owner_thread[row])
        if columns.holder[row] == member and thread < threads[topic]:
            claims.setdefault(thread, []).append(topic_partition)
    index_of = {columns.topics[topic]: topic for topic in np.unique(columns.topic[rows]).tolist()}
    most = max((int(threads[topic]) for topic in index_of.values()), default=0)
    topics_of = {
        thread: [name for name, topic in index_of.items() if thread < threads[topic]] for thread in range(most)
    }
    for thread, share in spread_exactly(topics_of, partitions, claims).items():
        for name, partition in share:
            result[columns.first[index_of[name]] + partition] = thread


def to_assignment(columns: Columns, target: Rows, thread: Rows) -> Assignment:
    """Collect the member and the thread of each row into an `Assignment`."""
    assignment: Assignment = {consumer: {} for consumer in sorted(columns.consumers)}
    rows = np.flatnonzero(target >= 0)
    rows = rows[np.lexsort((thread[rows], target[rows]))]
    keys = np.stack((target[rows], thread[rows], columns.topic[rows]))
    begins = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))[: len(rows)]
    partitions = (rows - columns.first[columns.topic[rows]]).tolist()
    ends = [*begins[1:].tolist(), len(rows)]
    for row, number, topic, begin, end in zip(*keys[:, begins].tolist(), begins.tolist(), ends, strict=False):
        by_topic = assignment[columns.consumers[row]].setdefault(number, {})
        by_topic[columns.topics[topic]] = tuple(partitions[begin:end])
    return assignment
