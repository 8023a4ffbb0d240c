"""A problem as arrays: a row for each partition, a row for each member, so that a strategy is arithmetic on columns.

A row of the partitions is a partition of a topic; topics are sorted by name, partitions by number, so the rows of one
topic stand together. Members stand in the one order that all strategies use (`ordered_consumers`). What members
subscribe to is kept once for each distinct subscription, because in most groups there are few of them.

A strategy is a function of columns, and of the options that a user has set, to the member and the consumer thread that
get each row, NOBODY for none.
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
    `rack`, and the second index of `rack_sets`: index into `rack_names`. `rack_set`: of each row, one of the S' sets of
    racks that hold a replica; an empty set is one that is not known.
    """

    topics: tuple[str, ...]
    first: Offsets  # [T + 1]
    topic: Rows  # [P]
    consumers: tuple[str, ...]
    static_count: int  # so many of the consumers, the first ones, are static members
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
    rack_sets: Flags  # [S', R]
    rack_set: Offsets  # [P]
    is_contradicted: bool  # whether some claim has lost against another one
    disputed: Flags | None  # [P] rows that somebody else claims in the generation of their holder; None: there are none

    @property
    def alike(self) -> bool:
        """Whether all members subscribe to the same topics."""
        reads = self.threads > 0
        return bool((reads == reads[:1]).all())

    def readers(self, topic: int) -> Rows:
        """Return the members that subscribe to a topic, in order."""
        return np.flatnonzero(self.threads[self.subscription, topic] > 0).astype(np.int32)


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
    holder[rows], owner_thread[rows] = claimants, claiming_threads  # of two claims to a row the last, newer one stays
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
    """Return the topics in their order, and how many partitions each has."""
    topics = tuple(sorted(problem.topics))
    return topics, np.fromiter((problem.topics[topic] for topic in topics), np.int64, len(topics))


def read_loads(
    problem: Problem, index_of: Mapping[str, int], first: Offsets
) -> tuple[Offsets, npt.NDArray[np.float64]]:
    """Return lag and rate of each row, 0 where nothing is said; where nothing at all is said, one 0 is all of them."""
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
    """Write what is said of topics, for each partition from the first one on, into the column."""
    for name, values in topics.items():
        if name in index_of:
            begin, end = first[index_of[name]], first[index_of[name] + 1]
            column[begin:end][: len(values)] = values[: end - begin]


def offsets(counts: npt.NDArray[np.integer]) -> Offsets:
    """Return where each of consecutive pieces of these lengths begins, and where the last one ends."""
    begins = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=begins[1:])
    return begins


def ranges(begins: Offsets, lengths: npt.NDArray[np.integer]) -> Offsets:
    """Return the numbers from each begin on, as many as its length says, one range after another."""
    numbers = np.repeat(begins - offsets(lengths)[:-1], lengths)
    numbers += np.arange(len(numbers))  # in place: pages that are new to the process cost as much as the sum
    return numbers


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


def read_claims(
    problem: Problem, row_of: Mapping[str, int], index_of: Mapping[str, int], first: Offsets
) -> tuple[Offsets, Rows, Rows]:
    """Return the rows that these members claim, the members and the threads; the claims that count stand last.

    See `claims.current_owners` for which claim counts. Claims to what does not exist are left out.
    """
    # Arrays, and not lists: to make one of numpy's from a long list lets no other thread run for tens of milliseconds.
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
    counts = np.append(np.diff(first), 0)  # the last entry is that of topics that do not exist
    exists = (partition >= 0) & (partition < counts[topic])
    return (
        (first[topic] + partition)[exists],
        np.repeat(np.frombuffer(claimants, np.int64).astype(np.int32), np.frombuffer(sizes, np.int64))[exists],
        np.frombuffer(threads, np.int64).astype(np.int32)[exists],
    )


def _disputed(holder: Rows, rows: Offsets, claimants: Rows, members: Sequence[Member]) -> Flags | None:
    """Return the rows that somebody claims in the same generation as the holder; None if there are none."""
    generation = np.fromiter((member.generation for member in members), np.int64, len(members))
    winners = holder[rows]
    rivals = (claimants != winners) & (generation[claimants] == generation[winners])
    disputed = np.zeros(len(holder), np.bool_)
    disputed[rows[rivals]] = True
    return disputed if rivals.any() else None


def rack_names_of(problem: Problem, members: Iterable[Member]) -> tuple[str, ...]:
    """Return the racks that are named of any partition, or of these members."""
    of_members = {member.rack for member in members if member.rack is not None}
    return tuple(sorted(of_members.union(*problem.racks.sets)))


def rack_of(member: Member, rack_names: tuple[str, ...]) -> int:
    """Return the number of a member's rack."""
    return NOBODY if member.rack is None else rack_names.index(member.rack)


def read_rack_sets(
    problem: Problem, rack_names: tuple[str, ...], index_of: Mapping[str, int], first: Offsets
) -> tuple[Flags, Offsets]:
    """Return which racks each set holds, and the set of each row; 0, the empty one, where nothing is said."""
    racks = problem.racks
    holds = np.array([[name in names for name in rack_names] for names in racks.sets], np.bool_)
    rack_set = np.zeros(first[-1], np.int64) if racks.of_topic else np.broadcast_to(np.int64(0), first[-1])
    _fill(rack_set, racks.of_topic, index_of, first)
    return holds.reshape(len(racks.sets), len(rack_names)), rack_set
