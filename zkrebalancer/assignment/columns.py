"""A problem as arrays, so that a strategy is arithmetic on columns.

A row is a partition; rows are sorted by topic name and partition number. Members are sorted by `ordered_consumers`.
Each distinct subscription is stored once, because most groups have few of them.

A strategy is a function from columns, and the user's options, to the member and the consumer thread of each row
(NOBODY: unassigned).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zkrebalancer.assignment.model import Member, Problem, ordered_consumers

NOBODY = -1

Rows: TypeAlias = npt.NDArray[np.int32]  # indexes of members, topics or threads; NOBODY for none
Offsets: TypeAlias = npt.NDArray[np.int64]  # indexes into another array, where the entries of each item begin
Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A group to assign: T topics, P partitions, M members, S distinct subscriptions.

    `first`: topic t has the rows first[t] … first[t + 1] - 1, in the order of their partition numbers.
    `holder`: the current owner, which has to stop the row before another member may start it.
    `owner`: the current owner if it still subscribes to the topic, so that a sticky strategy may keep the row there.
    The same array object as `holder` if they are equal.
    `subscription`: for each member, an index into `threads`. `threads`: consumer threads of a subscription for a topic,
    0 if it does not include the topic.
    `rack`, and the second index of `rack_sets`: index into `rack_names`. `rack_set`: for each row, the index of one of
    the S' sets of racks with a replica; the empty set means unknown.
    """

    topics: tuple[str, ...]
    first: Offsets  # [T + 1]
    topic: Rows  # [P]
    consumers: tuple[str, ...]
    static_count: int  # number of static members, which come first among the consumers
    holder: Rows  # [P]
    owner: Rows  # [P]
    owner_thread: Rows  # [P] consumer thread of the holder
    capacity: npt.NDArray[np.float64]  # [M] relative to others; 0: the member is being drained
    rack: Rows  # [M]
    subscription: Rows  # [M]
    threads: npt.NDArray[np.int16]  # [S, T]
    lag: Offsets  # [P] records; 0 when unknown
    rate: npt.NDArray[np.float64]  # [P] records per second; 0 when unknown
    rack_names: tuple[str, ...]
    rack_sets: Flags  # [S', R]
    rack_set: Offsets  # [P]
    is_contradicted: bool  # whether two members claim the same row
    disputed: Flags | None  # [P] rows that another member claims in the holder's generation; None: there are none
    numbers: Offsets | None = None  # [P] partition number of each row; None: row - first[topic], as no row is left out

    def readers(self, topic: int) -> Rows:
        """Return the members that subscribe to a topic, in order."""
        return np.flatnonzero(self.threads[self.subscription, topic] > 0).astype(np.int32)

    def numbers_of(self, topic: int) -> Offsets:
        """Return the partition numbers of a topic's rows."""
        begin, end = self.first[topic : topic + 2]
        return np.arange(end - begin) if self.numbers is None else self.numbers[begin:end]


Strategy: TypeAlias = Callable[[Columns, Mapping[str, object]], tuple[Rows, Rows]]


def to_columns(problem: Problem) -> Columns:
    """Return the columns of a problem."""
    topics, counts = read_topics(problem)
    index_of = {topic: index for index, topic in enumerate(topics)}
    first = offsets(counts)
    topic = np.repeat(np.arange(len(topics), dtype=np.int32), counts)
    consumers = tuple(ordered_consumers(problem))
    members = [problem.members[consumer] for consumer in consumers]
    subscription, threads = _subscriptions(members, index_of)
    row_of = {consumer: row for row, consumer in enumerate(consumers)}
    holder, owner_thread = np.full((2, first[-1]), NOBODY, np.int32)
    rows, claimants, claiming_threads = read_claims(problem, row_of, index_of, first)
    holder[rows], owner_thread[rows] = claimants, claiming_threads  # the last of several claims wins: the newest one
    owner = _readers_only(holder, reads_row(topic, holder, subscription, threads))
    is_contradicted = bool(np.count_nonzero(holder >= 0) < len(rows))
    lag, rate = read_loads(problem, index_of, first)
    rack_names = rack_names_of(problem, members)
    rack_sets, rack_set = read_rack_sets(problem, rack_names, index_of, first)
    return Columns(
        topics=topics,
        first=first,
        topic=topic,
        consumers=consumers,
        static_count=sum(1 for member in members if member.instance_id),
        holder=holder,
        owner=owner,
        owner_thread=owner_thread,
        capacity=np.fromiter((member.capacity for member in members), np.float64, len(members)),
        rack=np.fromiter((rack_of(member, rack_names) for member in members), np.int32, len(members)),
        subscription=subscription,
        threads=threads,
        lag=lag,
        rate=rate,
        rack_names=rack_names,
        rack_sets=rack_sets,
        rack_set=rack_set,
        is_contradicted=is_contradicted,
        disputed=_disputed(holder, rows, claimants, members) if is_contradicted else None,
    )


def read_topics(problem: Problem) -> tuple[tuple[str, ...], Offsets]:
    """Return the topics, sorted, and the number of partitions of each."""
    topics = tuple(sorted(problem.topics))
    return topics, np.fromiter((problem.topics[topic] for topic in topics), np.int64, len(topics))


def read_loads(
    problem: Problem, index_of: Mapping[str, int], first: Offsets
) -> tuple[Offsets, npt.NDArray[np.float64]]:
    """Return the lag and the rate of each row, 0 where unknown; a column without any value is a broadcast 0."""
    lag = np.zeros(first[-1], np.int64) if problem.lag else np.broadcast_to(np.int64(0), first[-1])
    rate = np.zeros(first[-1], np.float64) if problem.rate else np.broadcast_to(np.float64(0.0), first[-1])
    _fill(lag, problem.lag, index_of, first)
    _fill(rate, problem.rate, index_of, first)
    return lag, rate


def _fill(
    column: npt.NDArray[Any],
    topics: Mapping[str, Sequence[Any] | npt.NDArray[Any]],
    index_of: Mapping[str, int],
    first: Offsets,
) -> None:
    """Write the values of each topic's partitions, which may be fewer than the partitions, into the column."""
    for name, values in topics.items():
        if name in index_of:
            begin, end = first[index_of[name]], first[index_of[name] + 1]
            column[begin:end][: len(values)] = values[: end - begin]


def offsets(counts: npt.NDArray[np.integer]) -> Offsets:
    """Return the begins of consecutive pieces with these lengths, and the end of the last one."""
    begins = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=begins[1:])
    return begins


def ranges(begins: Offsets, lengths: npt.NDArray[np.integer]) -> Offsets:
    """Return the concatenated ranges begin … begin + length - 1."""
    numbers = np.repeat(begins - offsets(lengths)[:-1], lengths)
    numbers += np.arange(len(numbers))  # in place, because allocating new memory costs as much as the sum
    return numbers


def reads_row(topic: Rows, member: Rows, subscription: Rows, threads: npt.NDArray[np.int16]) -> Flags:
    """Return for each row whether its member, if any, subscribes to the row's topic."""
    if not len(subscription):
        return np.zeros(len(topic), np.bool_)
    reads: Flags = threads[0, topic] > 0 if len(threads) == 1 else threads[subscription[member], topic] > 0
    return reads & (member >= 0)


def _readers_only(holder: Rows, reads: Flags) -> Rows:
    """Return the holders that subscribe to their row's topic, NOBODY for others."""
    return holder if reads[holder >= 0].all() else np.where(reads, holder, np.int32(NOBODY))


def _subscriptions(members: Sequence[Member], index_of: Mapping[str, int]) -> tuple[Rows, npt.NDArray[np.int16]]:
    """Number the distinct subscriptions in order of first appearance; return [M] and [S, T]."""
    number_of: dict[frozenset[tuple[str, int]], int] = {}
    seen: dict[int, int] = {}  # by identity, because members usually share one mapping
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


def read_claims(
    problem: Problem, row_of: Mapping[str, int], index_of: Mapping[str, int], first: Offsets
) -> tuple[Offsets, Rows, Rows]:
    """Return the claims of these members: row, member and thread of each.

    Of several claims to a row, the winning one (see `claims.current_owners`) comes last. Claims to partitions that do
    not exist are left out.
    """
    # Arrays, not lists: converting a long list to numpy holds the GIL for tens of milliseconds.
    topics, partitions, threads, claimants, sizes = (array("q") for _ in range(5))
    oldest_first = sorted(row_of, reverse=True)
    oldest_first.sort(key=lambda name: problem.members[name].generation)
    for consumer in oldest_first:
        owned = problem.members[consumer].owned
        if owned:
            names, numbers = zip(*owned, strict=True)
            topics.fromlist(list(map(index_of.get, names, repeat(NOBODY))))
            partitions.fromlist(list(numbers))
            threads.fromlist(list(owned.values()))
            claimants.append(row_of[consumer])
            sizes.append(len(owned))
    topic, partition = np.frombuffer(topics, np.int64), np.frombuffer(partitions, np.int64)
    counts = np.append(np.diff(first), 0)  # the last entry is for topics that do not exist
    exists = (partition >= 0) & (partition < counts[topic])
    return (
        (first[topic] + partition)[exists],
        np.repeat(np.frombuffer(claimants, np.int64).astype(np.int32), np.frombuffer(sizes, np.int64))[exists],
        np.frombuffer(threads, np.int64).astype(np.int32)[exists],
    )


def _disputed(holder: Rows, rows: Offsets, claimants: Rows, members: Sequence[Member]) -> Flags | None:
    """Return the rows that another member claims in the holder's generation, None if there are none."""
    generation = np.fromiter((member.generation for member in members), np.int64, len(members))
    winners = holder[rows]
    rivals = (claimants != winners) & (generation[claimants] == generation[winners])
    disputed = np.zeros(len(holder), np.bool_)
    disputed[rows[rivals]] = True
    return disputed if rivals.any() else None


def rack_names_of(problem: Problem, members: Iterable[Member]) -> tuple[str, ...]:
    """Return the racks of all partitions and of these members, sorted."""
    of_members = {member.rack for member in members if member.rack is not None}
    return tuple(sorted(of_members.union(*problem.racks.sets)))


def rack_of(member: Member, rack_names: tuple[str, ...]) -> int:
    """Return the index of a member's rack, NOBODY if it has none."""
    return NOBODY if member.rack is None else rack_names.index(member.rack)


def read_rack_sets(
    problem: Problem, rack_names: tuple[str, ...], index_of: Mapping[str, int], first: Offsets
) -> tuple[Flags, Offsets]:
    """Return the racks in each set, [S', R], and the set of each row, [P]; 0 (the empty set) if unknown."""
    racks = problem.racks
    holds = np.array([[name in names for name in rack_names] for names in racks.sets], np.bool_)
    rack_set = np.zeros(first[-1], np.int64) if racks.of_topic else np.broadcast_to(np.int64(0), first[-1])
    _fill(rack_set, racks.of_topic, index_of, first)
    return holds.reshape(len(racks.sets), len(rack_names)), rack_set
