"""From what members hold to what they shall hold: what each has to stop and to start.

Everything that every plan needs and that grows with the group is done here, on columns and away from the coordinator's
loop; what is left for that loop grows with what changes. Only the index for shares of single consumers, which few plans
ask for, is made where it is first asked for: one sort of the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zkrebalancer.assignment.alike import narrow
from zkrebalancer.assignment.columns import Columns, Flags, Offsets, Rows, Strategy, offsets, to_columns
from zkrebalancer.assignment.model import Problem
from zkrebalancer.assignment.updating import updated
from zkrebalancer.protocol.fields import TopicPartition


@dataclass(frozen=True, eq=False)  # no slots: what few ask for is found when it is asked for, and kept
class Transition:
    """What a strategy decided, by consumer, as the difference to what the problem's members claim.

    `everything`: `starts` are all that each shall have, also where it has it already.

    `stops`: consumer -> partitions that it has to let go. `starts`: consumer -> partition -> consumer thread.
    `moved_count`: partitions that go from one member to another.
    `withholds`: whether a partition that has readers was taken from its holder and given to nobody yet.
    """

    everything: bool
    columns: Columns
    member: Rows  # [P]
    thread: Rows  # [P]
    stops: dict[str, frozenset[TopicPartition]]
    starts: dict[str, dict[TopicPartition, int]]
    moved_count: int
    assigned_count: int
    withholds: bool
    changing: frozenset[str]  # consumers that have to stop or start something that is different from what they hold

    @cached_property
    def _index_of(self) -> Mapping[str, int]:
        """Consumer -> its row of the members."""
        return {consumer: index for index, consumer in enumerate(self.columns.consumers)}

    @cached_property
    def _topic_of(self) -> Mapping[str, int]:
        return {topic: index for index, topic in enumerate(self.columns.topics)}

    @cached_property
    def _rows(self) -> tuple[Offsets, Offsets]:
        """The rows sorted by member, and where those of each member begin: [P], [M + 1]."""
        counts = np.bincount(self.member + 1, minlength=len(self.columns.consumers) + 1)
        return np.argsort(narrow(self.member + 1), kind="stable"), offsets(counts)[1:]

    def knows(self, consumer: str) -> bool:
        """Whether the consumer took part."""
        return consumer in self._index_of

    def receiver(self, partition: TopicPartition) -> str | None:
        """Return the consumer that shall have the partition, None if nobody shall."""
        columns, topic = self.columns, self._topic_of.get(partition[0])
        if topic is None or not 0 <= partition[1] < columns.first[topic + 1] - columns.first[topic]:
            return None
        member = self.member[columns.first[topic] + partition[1]]
        return columns.consumers[member] if member >= 0 else None

    def share(self, consumer: str) -> dict[TopicPartition, int]:
        """Return all that a consumer shall have, partition -> consumer thread; {} for one that took no part."""
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
) -> Transition:
    """Decide, and say what it means for everybody.

    `before`: columns of the same group, of which only the consumers `changed` are different now; None to read all anew.
    `everything`: every partition is started anew, also where it stays (the eager mode).

    Raises:
        RebalancerError: what the strategy says about its options.

    """
    columns = to_columns(problem) if before is None else updated(before, problem, changed)
    return to_transition(columns, *strategy(columns, problem.options), everything)


def to_transition(columns: Columns, member: Rows, thread: Rows, everything: bool = False) -> Transition:
    """Return what follows from the member and the consumer thread that get each row."""
    moving = np.flatnonzero((columns.holder != member) | (columns.owner_thread != thread))
    giver, receiver = columns.holder[moving], member[moving]
    is_held, is_assigned = giver >= 0, receiver >= 0
    starting = np.flatnonzero(member >= 0) if everything else moving[is_assigned]
    gaining = np.flatnonzero(np.bincount(receiver[is_assigned])).tolist()
    stops = _by_consumer(columns, moving[is_held], columns.holder, columns.owner_thread)
    is_read: Flags = np.any(columns.threads > 0, axis=0)
    return Transition(
        everything=everything,
        columns=columns,
        member=member,
        thread=thread,
        stops={consumer: frozenset(partitions) for consumer, partitions in stops.items()},
        starts=_by_consumer(columns, starting, member, thread),
        moved_count=int(np.count_nonzero(is_held & is_assigned & (giver != receiver))),
        assigned_count=int(np.count_nonzero(member >= 0)),
        withholds=bool((is_held & ~is_assigned & is_read[columns.topic[moving]]).any()),
        changing=frozenset(stops).union(columns.consumers[index] for index in gaining),
    )


def _by_consumer(columns: Columns, rows: Offsets, member: Rows, thread: Rows) -> dict[str, dict[TopicPartition, int]]:
    """Collect these rows by the member that stands there."""
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
