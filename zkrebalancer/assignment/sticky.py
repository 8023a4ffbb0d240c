"""Sticky: as balanced as the subscriptions allow, then with as few moves as possible.

Partitions are balanced over members first, because moves between members cause pauses; then each member's partitions
over its threads. Source of the rules: Kafka's `StickyAssignor`. Kafka's is a heuristic, this one is exact, with one
exception: in large groups with partly overlapping subscriptions, the moves are few but not proven to be the fewest.
"""

from __future__ import annotations

import numpy as np

from zkrebalancer.assignment.alike import Counts, rank_in_run, spread_alike
from zkrebalancer.assignment.classes import balance_classes
from zkrebalancer.assignment.columns import NOBODY, Columns, Flags, Offsets, Rows, offsets, ranges
from zkrebalancer.assignment.exact import spread_exactly
from zkrebalancer.assignment.placement import to_threads
from zkrebalancer.assignment.subscribers import Classes, classes_of, kinds_of
from zkrebalancer.protocol.fields import TopicPartition

MAX_EXACT_CHOICES = 500  # pairs of member and topic up to which overlapping subscriptions are solved exactly
MANY = 8  # if fewer than 1/MANY of the rows are free, sorting them is faster than scanning all rows by topic


def place_sticky(columns: Columns) -> tuple[Rows, Rows]:
    """Balance members within one partition where the subscriptions allow it, with the fewest moves between members.

    Then spread each member's partitions over its threads in the same way. Returns the member and the consumer thread of
    each row.
    """
    target = sticky(columns)
    return target, to_threads(columns, target)


def sticky(columns: Columns) -> Rows:
    """Return the member of each row."""
    if not columns.consumers:
        return columns.owner
    classes = classes_of(columns)
    reader_counts = classes.reads.sum(axis=0)
    if reader_counts.max(initial=0) <= 1:
        return _spread_disjoint(columns, classes, columns.owner)
    tangled: Flags = np.any(classes.reads[:, reader_counts > 1], axis=1)
    widths = np.bincount(classes.of_member, minlength=len(tangled))
    if widths[tangled] @ classes.reads[tangled].sum(axis=1) > MAX_EXACT_CHOICES:
        return _spread_overlapping(columns, classes, widths)
    apart = Classes(classes.of_member, classes.reads & ~tangled[:, np.newaxis])
    is_tangled = tangled[classes.of_member]
    target = _spread_disjoint(columns, apart, np.where(is_tangled[columns.owner], np.int32(NOBODY), columns.owner))
    _spread_exactly(columns, np.flatnonzero(is_tangled).tolist(), target)
    return target


def _spread_disjoint(columns: Columns, classes: Classes, claimed: Rows) -> Rows:
    """Balance each class by itself; at most one class reads a topic."""
    partitions = np.diff(columns.first)
    is_read = classes.reads.any(axis=0)
    if len(classes.reads) == 1 and is_read.all():
        free = np.flatnonzero(claimed < 0)
    else:
        class_of_topic = np.argmax(classes.reads, axis=0)
        topics = np.flatnonzero(is_read)
        topics = topics[np.argsort(class_of_topic[topics], kind="stable")]
        free = _free_rows(columns, topics, claimed)
    row_counts = (classes.reads * partitions).sum(axis=1)
    return spread_alike(claimed, _threads(columns), free, row_counts, classes.of_member, columns.disputed)


def _spread_overlapping(columns: Columns, classes: Classes, widths: Counts) -> Rows:
    """Decide how many rows of each kind each class gets, then which ones, then spread them within each class."""
    reads, kind_of_topic = kinds_of(classes.reads)
    partitions = np.diff(columns.first)
    is_read = classes.reads.any(axis=0)
    claimed = columns.owner.copy()
    share, claimed_counts = _shares(columns, classes, kind_of_topic, reads.shape)
    row_counts = np.bincount(kind_of_topic, weights=partitions * is_read, minlength=reads.shape[1]).astype(np.int64)
    held = balance_classes(reads, widths, row_counts, claimed_counts)
    if (claimed_counts > held).any():
        _release(claimed, share, (claimed_counts - held).ravel(), columns.disputed)

    topics = np.flatnonzero(is_read)
    free = _free_rows(columns, topics[np.argsort(kind_of_topic[topics], kind="stable")], claimed)
    # The free rows are sorted by kind; each class gets a piece of each kind; `spread_alike` needs them sorted by class.
    missing = np.maximum(held - claimed_counts, 0)
    begins = offsets(missing.T.ravel())[:-1].reshape(missing.T.shape).T
    free = free[ranges(begins.ravel(), missing.ravel())]
    return spread_alike(claimed, _threads(columns), free, held.sum(axis=1), classes.of_member, columns.disputed)


def _shares(columns: Columns, classes: Classes, kind_of_topic: Rows, shape: tuple[int, int]) -> tuple[Rows, Counts]:
    """Number the pairs of class and kind; return the number of each row's pair, and the claims of each pair.

    The claims are [classes, kinds]. Rows without a claim get a number above all pairs.
    """
    class_count, kind_count = shape
    if columns.owner.max(initial=NOBODY) < 0:
        return np.empty(0, np.int32), np.zeros(shape, np.int64)
    kind = np.repeat(kind_of_topic, np.diff(columns.first))
    first_of_member = np.append(classes.of_member * kind_count, class_count * kind_count).astype(np.int32)
    share = first_of_member[columns.owner] + kind
    counts = np.bincount(share, minlength=class_count * kind_count)[: class_count * kind_count]
    return share, counts.reshape(shape)


def _free_rows(columns: Columns, topics: Offsets, claimed: Rows) -> Offsets:
    """Return the unclaimed rows of these topics, in the order of the topics."""
    is_free = claimed < 0
    free_count = np.count_nonzero(is_free)
    if free_count > len(claimed) // MANY:
        rows = ranges(columns.first[topics], np.diff(columns.first)[topics])
        return rows if free_count == len(claimed) else rows[is_free[rows]]
    free = np.flatnonzero(is_free)
    place_of_topic = np.full(len(columns.topics), NOBODY)
    place_of_topic[topics] = np.arange(len(topics))
    place = place_of_topic[columns.topic[free]]
    return free[np.argsort(place, kind="stable")[np.count_nonzero(place == NOBODY) :]]


def _release(claimed: Rows, share: Rows, lost_counts: Counts, disputed: Flags | None) -> None:
    """Free as many rows of each share as it loses: those of its largest members, disputed rows first."""
    is_losing = np.append(lost_counts > 0, np.False_)
    rows = np.flatnonzero(is_losing.take(share, mode="clip"))
    if disputed is not None:
        rows = rows[np.argsort(~disputed[rows], kind="stable")]
    sizes = np.bincount(claimed + 1)[1:]
    owner = claimed[rows]
    by_owner = np.argsort(owner, kind="stable")
    height = np.empty(len(rows), np.int64)  # the member's size when it gives up this row, after those before it
    height[by_owner] = sizes[owner[by_owner]] - rank_in_run(owner[by_owner])
    rows = rows[np.lexsort((-height, share[rows]))]
    claimed[rows[rank_in_run(share[rows]) < lost_counts[share[rows]]]] = NOBODY


def _threads(columns: Columns) -> Rows | None:
    """Return the owners' threads, None if all are thread 0."""
    return columns.owner_thread if columns.owner_thread.max(initial=0) > 0 else None


def _spread_exactly(columns: Columns, members: list[int], target: Rows) -> None:
    """Spread the topics that only these members read, optimally, over them."""
    reads = columns.threads > 0
    topics_of = {member: np.flatnonzero(reads[columns.subscription[member]]).tolist() for member in members}
    index_of = {columns.topics[topic]: topic for topics in topics_of.values() for topic in topics}
    claims: dict[int, list[TopicPartition]] = {}
    for member in members:
        rows = np.flatnonzero(columns.owner == member)
        if columns.disputed is not None:  # sort disputed rows last, because the last ones are given up first
            rows = rows[np.argsort(columns.disputed[rows], kind="stable")]
        claims[member] = [
            (columns.topics[columns.topic[row]], row - int(columns.first[columns.topic[row]]))
            for row in _threads_in_turn(rows, columns.owner_thread[rows])
        ]
    shares = spread_exactly(
        {member: [columns.topics[topic] for topic in topics] for member, topics in topics_of.items()},
        {name: range(int(columns.first[topic + 1] - columns.first[topic])) for name, topic in index_of.items()},
        claims,
    )
    for member, share in shares.items():
        for name, partition in share:
            target[columns.first[index_of[name]] + partition] = member


def _threads_in_turn(rows: Offsets, thread: Rows) -> list[int]:
    """Order a member's rows: one of each thread, then a second one of each, …, so that the fullest threads give up."""
    by_thread = np.argsort(thread, kind="stable")
    turn = np.empty(len(rows), np.int64)
    turn[by_thread] = rank_in_run(thread[by_thread])
    ordered: list[int] = rows[np.lexsort((thread, turn))].tolist()
    return ordered
