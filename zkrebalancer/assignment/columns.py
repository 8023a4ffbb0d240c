"""A problem as arrays: a row for each partition, a row for each member, so that a strategy is arithmetic on columns.

A row of the partitions is a partition of a topic; topics are sorted by name, partitions by number, so the rows of one
topic stand together. Members stand in the one order that all strategies use (`ordered_consumers`). What members
subscribe to is kept once for each distinct subscription, because in most groups there are few of them.

A strategy on columns is a function `Columns -> int32[P]`: the member that gets each row, NOBODY for none.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zkrebalancer.assignment.model import Member, Problem, ordered_consumers, rank

NOBODY = -1
MANY_CHANGED = 1_000  # members; of more it is quicker to read everything anew

Rows: TypeAlias = npt.NDArray[np.int32]  # indexes of members, topics, threads; NOBODY where there is none
Offsets: TypeAlias = npt.NDArray[np.int64]  # where in another array the entries of a row begin
Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A group to assign: T topics, P partitions, M members, S distinct subscriptions.

    `first`: the partitions of topic t are the rows first[t] … first[t + 1] - 1; a partition's number is row - first[t].
    `holder`: member that has to let go of the row before another one may start it; newer claims beat older ones.
    `owner`: the same, but only where the member still subscribes to the topic: what a sticky strategy may keep. It is
    the very same array where that makes no difference.
    `subscription`: of each member, a row of `threads`.
    `threads`: consumer threads with which that subscription reads a topic, 0 where it does not.
    `rack`: index into `rack_names`; `racks[racks_first[p]:racks_first[p + 1]]` are those that hold a replica of row p.
    """

    topics: tuple[str, ...]
    first: Offsets  # [T + 1]
    topic: Rows  # [P]
    consumers: tuple[str, ...]
    holder: Rows  # [P]
    owner: Rows  # [P]
    owner_thread: Rows  # [P] consumer thread of the holder
    capacity: npt.NDArray[np.float64]  # [M] relative to others; 0: is being drained
    rack: Rows  # [M]
    subscription: Rows  # [M]
    threads: npt.NDArray[np.int16]  # [S, T]
    lag: Offsets  # [P] records; 0 when unknown
    rate: npt.NDArray[np.float64]  # [P] records per second; 0 when unknown
    rack_names: tuple[str, ...]
    racks_first: Offsets  # [P + 1]
    racks: Rows
    is_contradicted: bool = False  # whether some claim has lost against a newer one

    @property
    def alike(self) -> bool:
        """Whether all members subscribe to the same topics."""
        reads = self.threads > 0
        return bool((reads == reads[:1]).all())

    def readers(self, topic: int) -> Rows:
        """Return the members that subscribe to a topic, in order."""
        return np.flatnonzero(self.threads[self.subscription, topic] > 0).astype(np.int32)


def to_columns(problem: Problem) -> Columns:
    """Return the columns of a problem."""
    topics = tuple(sorted(problem.topics))
    index_of = {topic: index for index, topic in enumerate(topics)}
    counts = np.fromiter((problem.topics[topic] for topic in topics), np.int64, len(topics))
    first = offsets(counts)
    topic = np.repeat(np.arange(len(topics), dtype=np.int32), counts)
    consumers = tuple(ordered_consumers(problem))
    members = [problem.members[consumer] for consumer in consumers]
    subscription, threads = _subscriptions(members, index_of)
    row_of = {consumer: row for row, consumer in enumerate(consumers)}
    holder, owner_thread = np.full((2, first[-1]), NOBODY, np.int32)
    rows, claimants, claiming_threads = _claims(problem, row_of, topics, first)
    holder[rows], owner_thread[rows] = claimants, claiming_threads  # of two claims to a row the last, newer one stays
    owner = _readers_only(holder, reads_row(topic, holder, subscription, threads))
    lag, rate = _loads(problem, index_of, first)
    rack_names, rack, racks_first, racks = _racks(problem, members, topics, counts)
    return Columns(
        topics=topics,
        first=first,
        topic=topic,
        consumers=consumers,
        holder=holder,
        owner=owner,
        owner_thread=owner_thread,
        capacity=np.fromiter((member.capacity for member in members), np.float64, len(members)),
        rack=rack,
        subscription=subscription,
        threads=threads,
        lag=lag,
        rate=rate,
        rack_names=rack_names,
        racks_first=racks_first,
        racks=racks,
        is_contradicted=bool(np.count_nonzero(holder >= 0) < len(rows)),
    )


def updated(columns: Columns, problem: Problem, changed: Collection[str]) -> Columns:
    """Return the columns of a group some of whose members have changed: the others' claims are not read again.

    `columns`: of the group before. `changed`: consumers that have joined, left, or say anything else than before. What
    a problem says of racks must be as before. Costs time for what changed, and one pass over the rows in numpy; only
    other topics, and claims that contradict each other, make it read everything again.
    """
    if not _has_topics_of(columns, problem) or len(changed) > MANY_CHANGED:
        return to_columns(problem)
    consumers, old_rows = _without(columns.consumers, changed)
    joined = sorted((name for name in changed if name in problem.members), key=lambda name: rank(problem, name))
    row_of: dict[str, int] = {}
    for name in joined:  # in their order: nobody is put before one that has its row
        row_of[name] = bisect_left(consumers, rank(problem, name), key=lambda other: rank(problem, other))
        consumers.insert(row_of[name], name)
    is_old = np.ones(len(consumers), np.bool_)
    is_old[list(row_of.values())] = False
    renumbered = np.full(len(columns.consumers) + 1, NOBODY, np.int32)  # the last entry is NOBODY's
    renumbered[old_rows] = np.flatnonzero(is_old)

    holder = renumbered.take(columns.holder, mode="wrap")  # twice as quick as indexing, and NOBODY is the last entry
    owner = holder if columns.owner is columns.holder else renumbered.take(columns.owner, mode="wrap")
    owner_thread = columns.owner_thread
    if len(old_rows) < len(columns.consumers):  # somebody has let go
        owner_thread = np.where(holder >= 0, owner_thread, np.int32(NOBODY))
    rows, claimants, claiming_threads = _claims(problem, row_of, columns.topics, columns.first)
    racks = {problem.members[consumer].rack for consumer in joined} - {None}
    is_contradicted = columns.is_contradicted or (holder[rows] >= 0).any() or len(np.unique(rows)) < len(rows)
    if is_contradicted or not racks <= set(columns.rack_names):
        return to_columns(problem)
    capacity, rack, subscription, threads = _described(columns, problem, row_of, old_rows, is_old)
    if len(rows):
        reads = reads_row(columns.topic[rows], claimants, subscription, threads)
        if owner is holder and not reads.all():
            owner = holder.copy()
        owner_thread = owner_thread.copy() if owner_thread is columns.owner_thread else owner_thread
        holder[rows], owner_thread[rows] = claimants, claiming_threads
        owner[rows] = np.where(reads, claimants, NOBODY)
    lag, rate = _loads(problem, {topic: index for index, topic in enumerate(columns.topics)}, columns.first)
    return replace(
        columns,
        lag=lag,
        rate=rate,
        consumers=tuple(consumers),
        holder=holder,
        owner=owner,
        owner_thread=owner_thread,
        capacity=capacity,
        rack=rack,
        subscription=subscription,
        threads=threads,
    )


def _has_topics_of(columns: Columns, problem: Problem) -> bool:
    topics = tuple(sorted(problem.topics))
    counts = np.fromiter((problem.topics[topic] for topic in topics), np.int64, len(topics))
    return topics == columns.topics and np.array_equal(counts, np.diff(columns.first))


def _loads(problem: Problem, index_of: Mapping[str, int], first: Offsets) -> tuple[Offsets, npt.NDArray[np.float64]]:
    """Return lag and rate of each row, 0 where nothing is said."""
    lag, rate = np.zeros(first[-1], np.int64), np.zeros(first[-1], np.float64)
    for of_topics, column in ((problem.lag, lag), (problem.rate, rate)):
        for name, values in of_topics.items():
            if name in index_of:
                begin, end = first[index_of[name]], first[index_of[name] + 1]
                column[begin:end][: len(values)] = values[: end - begin]
    return lag, rate


def _without(consumers: Sequence[str], changed: Collection[str]) -> tuple[list[str], Offsets]:
    """Return those that have not changed, and the rows that they had."""
    gone = frozenset(changed)
    rows = [row for row, consumer in enumerate(consumers) if consumer in gone]
    rest = list(consumers)
    for row in reversed(rows):
        del rest[row]
    return rest, np.delete(np.arange(len(consumers)), rows)


def _described(
    columns: Columns, problem: Problem, row_of: Mapping[str, int], old_rows: Offsets, is_old: Flags
) -> tuple[npt.NDArray[np.float64], Rows, Rows, npt.NDArray[np.int16]]:
    """Return capacity, rack and subscription of each member, and the subscriptions, after these have joined anew."""
    capacity = np.empty(len(is_old), np.float64)
    rack, subscription = np.full((2, len(is_old)), NOBODY, np.int32)
    capacity[is_old] = columns.capacity[old_rows]
    rack[is_old] = columns.rack[old_rows]
    subscription[is_old] = columns.subscription[old_rows]
    threads = columns.threads
    index_of = {topic: index for index, topic in enumerate(columns.topics)}
    seen: dict[int, int] = {}  # as in `_subscriptions`
    for consumer, row in row_of.items():
        member = problem.members[consumer]
        capacity[row] = member.capacity
        if member.rack is not None:
            rack[row] = columns.rack_names.index(member.rack)
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
    return capacity, rack, (np.cumsum(is_used) - 1)[subscription].astype(np.int32), threads[is_used]


def offsets(counts: npt.NDArray[np.integer]) -> Offsets:
    """Return where each of consecutive pieces of these lengths begins, and where the last one ends."""
    begins = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=begins[1:])
    return begins


def ranges(begins: Offsets, lengths: npt.NDArray[np.integer]) -> Offsets:
    """Return the numbers from each begin on, as many as its length says, one range after another."""
    return np.arange(lengths.sum()) + np.repeat(begins - offsets(lengths)[:-1], lengths)


def reads_row(topic: Rows, member: Rows, subscription: Rows, threads: npt.NDArray[np.int16]) -> Flags:
    """Tell for each row whether the member that stands there, if any, subscribes to the row's topic."""
    if not len(subscription):
        return np.zeros(len(topic), np.bool_)
    reads: Flags = threads[0, topic] > 0 if len(threads) == 1 else threads[subscription[member], topic] > 0
    return reads & (member >= 0)


def _readers_only(holder: Rows, reads: Flags) -> Rows:
    """Return the holders of the rows that their holders read."""
    return holder if reads[holder >= 0].all() else np.where(reads, holder, np.int32(NOBODY))


def _subscriptions(members: Sequence[Member], index_of: Mapping[str, int]) -> tuple[Rows, npt.NDArray[np.int16]]:
    """Number the distinct subscriptions in the order in which they first appear."""
    number_of: dict[frozenset[tuple[str, int]], int] = {}
    seen: dict[int, int] = {}  # by identity: members usually share one mapping, whose content need not be read again
    subscription = np.empty(len(members), np.int32)
    for row, member in enumerate(members):
        number = seen.get(id(member.threads))
        if number is None:
            content = frozenset((name, count) for name, count in member.threads.items() if name in index_of)
            number = seen[id(member.threads)] = number_of.setdefault(content, len(number_of))
        subscription[row] = number
    threads = np.zeros((len(number_of), len(index_of)), np.int16)
    for content, number in number_of.items():
        for name, count in content:
            threads[number, index_of[name]] = count
    return subscription, threads


def _claims(
    problem: Problem, row_of: Mapping[str, int], topics: Sequence[str], first: Offsets
) -> tuple[Offsets, Rows, Rows]:
    """Return the rows that these members claim, the members and the threads; the claims that count stand last.

    See `claims.current_owners` for which claim counts. Claims to what does not exist are left out.
    """
    index_of = {topic: index for index, topic in enumerate(topics)}
    # Arrays, and not lists: to make one of numpy's from a long list lets no other thread run for tens of milliseconds.
    claimed_topics, claimants, sizes, partitions, threads = (array("q") for _ in range(5))
    oldest_first = sorted(row_of, reverse=True)
    oldest_first.sort(key=lambda name: problem.members[name].generation)
    for consumer in oldest_first:
        for name, owned in problem.members[consumer].owned.items():
            if name in index_of:
                partitions.extend(owned)
                threads.extend(owned.values())
                claimed_topics.append(index_of[name])
                claimants.append(row_of[consumer])
                sizes.append(len(owned))
    size = np.frombuffer(sizes, np.int64)
    topic = np.repeat(np.frombuffer(claimed_topics, np.int64), size)
    partition = np.frombuffer(partitions, np.int64)
    exists = (partition >= 0) & (partition < first[topic + 1] - first[topic])
    return (
        (first[topic] + partition)[exists],
        np.repeat(np.frombuffer(claimants, np.int64).astype(np.int32), size)[exists],
        np.frombuffer(threads, np.int64).astype(np.int32)[exists],
    )


def _racks(
    problem: Problem, members: Sequence[Member], topics: Sequence[str], counts: npt.NDArray[np.int64]
) -> tuple[tuple[str, ...], Rows, Offsets, Rows]:
    """Return rack names, rack of each member, and the racks of each row, compressed."""
    of_members = {member.rack for member in members if member.rack is not None}
    of_replicas = {rack for replicas in problem.racks.values() for racks in replicas for rack in racks}
    names = tuple(sorted(of_members | of_replicas))
    number_of = {name: number for number, name in enumerate(names)}
    rack = np.fromiter((NOBODY if m.rack is None else number_of[m.rack] for m in members), np.int32, len(members))
    lengths: list[int] = []
    racks: list[int] = []
    for topic, count in zip(topics, counts.tolist(), strict=True):
        replicas = list(problem.racks.get(topic, ()))[:count]
        for of_partition in replicas:
            distinct = sorted({number_of[name] for name in of_partition})
            racks.extend(distinct)
            lengths.append(len(distinct))
        lengths.extend([0] * (count - len(replicas)))
    return names, rack, offsets(np.array(lengths, np.int64)), np.array(racks, np.int32)
