"""Updates the columns of an earlier rebalance, reading only the members that have changed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from zkrebalancer.assignment.columns import (
    NOBODY,
    Columns,
    Rows,
    rack_names_of,
    rack_of,
    read_claims,
    read_loads,
    read_rack_sets,
    read_topics,
    reads_row,
    to_columns,
)
from zkrebalancer.assignment.model import Problem

MANY_CHANGED = 1_000  # with more changed members it is faster to read everything
PIECE = 32_768  # rows that fit into the processor's cache


def updated(columns: Columns, problem: Problem, changed: Collection[str]) -> Columns:
    """Return the columns of `problem`, reading the claims of changed members only.

    `columns`: of the same group before. `changed`: consumers that joined, left or changed. The time is proportional to
    the changes, plus a few passes of numpy over the rows. Different topics, new racks, contradicting claims and too
    many changes cause a full read.
    """
    racks = set(rack_names_of(problem, [problem.members[name] for name in changed if name in problem.members]))
    is_new = columns.is_contradicted or len(changed) > MANY_CHANGED or not racks <= set(columns.rack_names)
    if is_new or not _has_topics_of(columns, problem):
        return to_columns(problem)
    matching = _match_members(columns, problem, changed)
    holder, owner, owner_thread = _unchanged_claims(columns, matching)
    index_of = {topic: index for index, topic in enumerate(columns.topics)}
    rows, claimants, claiming_threads = read_claims(problem, matching.row_of, index_of, columns.first)
    is_contradicted = (holder[rows] >= 0).any()
    holder[rows], owner_thread[rows] = claimants, claiming_threads
    if is_contradicted or (holder[rows] != claimants).any():
        return to_columns(problem)
    capacity, rack, subscription, threads = _described(columns, problem, matching, index_of)
    reads = reads_row(columns.topic[rows], claimants, subscription, threads)
    if owner is not holder or not reads.all():
        owner = holder.copy() if owner is holder else owner
        owner[rows] = np.where(reads, claimants, NOBODY)
    lag, rate = read_loads(problem, index_of, columns.first)
    rack_sets, rack_set = read_rack_sets(problem, columns.rack_names, index_of, columns.first)
    return replace(
        columns,
        lag=lag,
        rate=rate,
        rack_sets=rack_sets,
        rack_set=rack_set,
        consumers=matching.consumers,
        static_count=matching.static_count,
        holder=holder,
        owner=owner,
        owner_thread=owner_thread,
        capacity=capacity,
        rack=rack,
        subscription=subscription,
        threads=threads,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Matching:
    """The consumers now, and the mapping from former member indexes.

    `row_now`: former index -> index, NOBODY for members that have left; the last entry is for NOBODY.
    `changed_before`: former indexes of the changed members. `row_of`: indexes of the changed members that are present.
    """

    consumers: tuple[str, ...]
    static_count: int
    row_now: Rows  # [M before + 1]
    changed_before: list[int]
    row_of: dict[str, int]


def _match_members(columns: Columns, problem: Problem, changed: Collection[str]) -> _Matching:
    """Match former and present members; a changed static member may change its place: it leaves and joins."""
    before = _rows_before(columns, changed)
    stays = [
        name
        for name, row in before.items()
        if row >= columns.static_count and name in problem.members and not problem.members[name].instance_id
    ]
    row_now = np.arange(len(columns.consumers) + 1, dtype=np.int32)
    row_now[-1] = NOBODY
    row_of = {name: before[name] for name in stays}
    coming = sorted((name for name in changed if name in problem.members and name not in row_of), key=problem.rank)
    going = before.keys() - row_of.keys()
    if not coming and not going:
        return _Matching(columns.consumers, columns.static_count, row_now, list(before.values()), row_of)

    consumers = list(columns.consumers)
    for row in sorted((before[name] for name in going), reverse=True):
        del consumers[row]
    for name in coming:  # sorted, so that no later insertion shifts an earlier one
        row_of[name] = bisect_left(consumers, problem.rank(name), key=problem.rank)
        consumers.insert(row_of[name], name)
    is_old = np.ones(len(consumers), np.bool_)
    is_old[[row_of[name] for name in coming]] = False
    row_now[[before[name] for name in going]] = NOBODY
    row_now[row_now >= 0] = np.flatnonzero(is_old)
    row_of.update((name, int(row_now[before[name]])) for name in stays)
    static_count = columns.static_count - sum(before[name] < columns.static_count for name in going)
    static_count += sum(1 for name in coming if problem.members[name].instance_id)
    return _Matching(tuple(consumers), static_count, row_now, list(before.values()), row_of)


def _rows_before(columns: Columns, names: Collection[str]) -> dict[str, int]:
    """Return the former indexes of these consumers; non-static ones are found by binary search."""
    consumers, static_count = columns.consumers, columns.static_count
    rows = {name: row for row, name in enumerate(consumers[:static_count]) if name in names}
    for name in names:
        row = bisect_left(consumers, name, lo=static_count)
        if row < len(consumers) and consumers[row] == name:
            rows[name] = row
    return rows


def _unchanged_claims(columns: Columns, matching: _Matching) -> tuple[Rows, Rows, Rows]:
    """Return `holder`, `owner` and `owner_thread` with the claims of unchanged members only.

    Works in pieces that fit into the processor's cache, because allocating temporary arrays as long as a column costs
    more than the arithmetic.
    """
    row_now = matching.row_now.copy()
    row_now[matching.changed_before] = NOBODY
    holder, owner_thread = np.empty_like(columns.holder), np.empty_like(columns.owner_thread)
    owner = holder if columns.owner is columns.holder else np.empty_like(columns.owner)
    for begin in range(0, len(holder), PIECE):
        piece = slice(begin, begin + PIECE)
        row_now.take(columns.holder[piece], mode="wrap", out=holder[piece])  # NOBODY, -1, is the last entry
        if owner is not holder:
            row_now.take(columns.owner[piece], mode="wrap", out=owner[piece])
        # Where the holder is NOBODY (-1), the shift sets all bits: the thread becomes NOBODY, too.
        np.bitwise_or(columns.owner_thread[piece], holder[piece] >> 31, out=owner_thread[piece])
    return holder, owner, owner_thread


def _has_topics_of(columns: Columns, problem: Problem) -> bool:
    topics, counts = read_topics(problem)
    return topics == columns.topics and np.array_equal(counts, np.diff(columns.first))


def _described(
    columns: Columns, problem: Problem, matching: _Matching, index_of: Mapping[str, int]
) -> tuple[npt.NDArray[np.float64], Rows, Rows, npt.NDArray[np.int16]]:
    """Return the present capacity, rack and subscription of each member, and the distinct subscriptions."""
    row_now = matching.row_now[:-1]
    is_there = row_now >= 0
    capacity = np.empty(len(matching.consumers), np.float64)
    rack, subscription = np.full((2, len(matching.consumers)), NOBODY, np.int32)
    for column, before in ((capacity, columns.capacity), (rack, columns.rack), (subscription, columns.subscription)):
        column[row_now[is_there]] = before[is_there]
    threads = columns.threads
    seen: dict[int, int] = {}  # as in `_subscriptions`
    for consumer, row in matching.row_of.items():
        member = problem.members[consumer]
        capacity[row] = member.capacity
        rack[row] = rack_of(member, columns.rack_names)
        if id(member.threads) not in seen:
            wanted = np.zeros(len(columns.topics), np.int16)
            for topic, count in member.threads.items():
                if topic in index_of:
                    wanted[index_of[topic]] = count
            same = np.flatnonzero((threads == wanted).all(axis=1))
            if not len(same):
                same = np.array([len(threads)])
                threads = np.vstack((threads, wanted))
            seen[id(member.threads)] = int(same[0])
        subscription[row] = seen[id(member.threads)]
    is_used = np.bincount(subscription, minlength=len(threads)) > 0
    if is_used.all():
        return capacity, rack, subscription, threads
    return capacity, rack, (np.cumsum(is_used) - 1)[subscription].astype(np.int32), threads[is_used]
