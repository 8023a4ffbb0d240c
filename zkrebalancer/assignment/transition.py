"""From current owners to target owners: the partitions that each consumer has to stop and to start.

Work that grows with the group is done here, on columns, outside the coordinator's loop; the loop's own work grows with
the changes only. The exception is the index for `share`, which few plans need: its first use sorts the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zkrebalancer.assignment.alike import narrow
from zkrebalancer.assignment.around import place_around
from zkrebalancer.assignment.columns import Columns, Flags, Offsets, Rows, Strategy, offsets, to_columns
from zkrebalancer.assignment.model import Problem
from zkrebalancer.assignment.updating import updated
from zkrebalancer.protocol.fields import TopicPartition


@dataclass(frozen=True, eq=False)  # no slots, because of cached_property
class Transition:
    """A strategy's decision by consumer, as the difference from the members' claims.

    `everything`: `starts` contains all partitions of each consumer, also those that it owns already (eager mode).
    `stops`: consumer -> partitions to revoke. `starts`: consumer -> partition -> consumer thread.
    `moved_count`: partitions that go from one member to another; `displaced_count`: also those that are only revoked,
    to be assigned later, but none of a topic that no member reads.
    `withholds`: whether a partition with readers is revoked but not assigned yet.
    """

    everything: bool
    columns: Columns
    member: Rows  # [P]
    thread: Rows  # [P]
    stops: dict[str, frozenset[TopicPartition]]
    starts: dict[str, dict[TopicPartition, int]]
    moved_count: int
    displaced_count: int
    assigned_count: int
    withholds: bool
    changing: frozenset[str]  # consumers whose partitions or consumer threads change

    @cached_property
    def _index_of(self) -> Mapping[str, int]:
        """Consumer -> index of the member."""
        return {consumer: index for index, consumer in enumerate(self.columns.consumers)}

    @cached_property
    def _topic_of(self) -> Mapping[str, int]:
        return {topic: index for index, topic in enumerate(self.columns.topics)}

    @cached_property
    def _rows(self) -> tuple[Offsets, Offsets]:
        """The rows sorted by member, [P], and the index where each member's rows begin, [M + 1]."""
        counts = np.bincount(self.member + 1, minlength=len(self.columns.consumers) + 1)
        return np.argsort(narrow(self.member + 1), kind="stable"), offsets(counts)[1:]

    def knows(self, consumer: str) -> bool:
        """Whether the consumer is a member of the group."""
        return consumer in self._index_of

    def receiver(self, partition: TopicPartition) -> str | None:
        """Return the target owner of the partition, None if it has none."""
        columns, topic = self.columns, self._topic_of.get(partition[0])
        if topic is None or not 0 <= partition[1] < columns.first[topic + 1] - columns.first[topic]:
            return None
        member = self.member[columns.first[topic] + partition[1]]
        return columns.consumers[member] if member >= 0 else None

    def share(self, consumer: str) -> dict[TopicPartition, int]:
        """Return a consumer's target assignment, partition -> consumer thread; {} if it is not a member."""
        index = self._index_of.get(consumer)
        if index is None:
            return {}
        rows, begins = self._rows
        return _described(self.columns, rows[begins[index] : begins[index + 1]], self.thread)


def place(
    strategy: Strategy,
    problem: Problem,
    before: Columns | None = None,
    changed: Collection[str] = (),
    everything: bool = False,
    keeping: Collection[str] = (),
) -> Transition:
    """Run a strategy and return the transition to its result.

    `before`: earlier columns of the same group, in which only the consumers `changed` differ; None reads everything.
    `everything`: start every partition, also those that stay (eager mode). `keeping`: consumers that keep what they
    hold, and get nothing more.

    Raises:
        OptionError: one of the problem's options is invalid.

    """
    columns = to_columns(problem) if before is None else updated(before, problem, changed)
    if keeping:
        return to_transition(columns, *place_around(strategy, columns, problem.options, keeping), everything)
    return to_transition(columns, *strategy(columns, problem.options), everything)


def to_transition(columns: Columns, member: Rows, thread: Rows, everything: bool = False) -> Transition:
    """Return the transition to the given member and consumer thread of each row."""
    moving = np.flatnonzero((columns.holder != member) | (columns.owner_thread != thread))
    giver, receiver = columns.holder[moving], member[moving]
    is_held, is_assigned = giver >= 0, receiver >= 0
    starting = np.flatnonzero(member >= 0) if everything else moving[is_assigned]
    gaining = np.flatnonzero(np.bincount(receiver[is_assigned])).tolist()
    stops = _by_consumer(columns, moving[is_held], columns.holder, columns.owner_thread)
    is_read: Flags = np.any(columns.threads > 0, axis=0)
    is_displaced = is_held & (giver != receiver) & is_read[columns.topic[moving]]
    return Transition(
        everything=everything,
        columns=columns,
        member=member,
        thread=thread,
        stops={consumer: frozenset(partitions) for consumer, partitions in stops.items()},
        starts=_by_consumer(columns, starting, member, thread),
        moved_count=int(np.count_nonzero(is_held & is_assigned & (giver != receiver))),
        displaced_count=int(np.count_nonzero(is_displaced)),
        assigned_count=int(np.count_nonzero(member >= 0)),
        withholds=bool((is_held & ~is_assigned & is_read[columns.topic[moving]]).any()),
        changing=frozenset(stops).union(columns.consumers[index] for index in gaining),
    )


def _by_consumer(columns: Columns, rows: Offsets, member: Rows, thread: Rows) -> dict[str, dict[TopicPartition, int]]:
    """Group rows by their member: consumer -> partition -> consumer thread."""
    rows = rows[np.argsort(narrow(member[rows]), kind="stable")]
    begins = np.flatnonzero(np.diff(member[rows], prepend=np.int32(-1)))
    return {
        columns.consumers[member[piece[0]]]: _described(columns, piece, thread)
        for piece in (np.split(rows, begins[1:]) if len(rows) else ())
    }


def _described(columns: Columns, rows: Offsets, thread: Rows) -> dict[TopicPartition, int]:
    """Return partition -> consumer thread of these rows."""
    topics = columns.topic[rows]
    partitions = (rows - columns.first[topics]).tolist()
    names = [columns.topics[topic] for topic in topics.tolist()]
    return dict(zip(zip(names, partitions, strict=True), thread[rows].tolist(), strict=True))
