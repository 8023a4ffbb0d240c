"""Keeps `given/<consumer>` equal to what the consumer may own: a claim beyond that is false, also after a failover.

Each start writes its consumer's record in the same transaction (`batch.py`), so a record never says less than what was
given. Here it is made to say no more: when partitions were let go, and for a group whose records cannot be relied on,
since another version led it: then what its members claim is recorded once.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from zkrebalancer.protocol import cluster_nodes, ownership, paths
from zkrebalancer.protocol.calls import Check, Create, Operation, Refusal, Refused, Reply, SetContent
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.rebalance.scheduler import PartScheduler
from zkrebalancer.rebalance.view import GroupView

DELAY_US = 1_000_000  # so that the releases of a rebalance share a transaction, and delay none of its starts
MAX_RECORDS = 64  # of one transaction: other groups wait meanwhile
MAX_RECORDED = 20_000  # partitions in them


class GivenRecords:
    """The records of one group that say something else than what is known."""

    def __init__(self, scheduler: PartScheduler, view: GroupView) -> None:
        """Have nothing to write."""
        self._scheduler = scheduler
        self._view = view
        self._is_writing = False

    def reset(self) -> None:
        """Everything is read anew."""
        self._is_writing = False

    def look(self) -> None:
        """See to it that records which say something else are written soon."""
        is_due = bool(self._view.unrecorded) or not self._view.is_recorded
        if is_due and not self._is_writing and not self._scheduler.is_awake_planned("given"):
            self._scheduler.wake("given", self._scheduler.now.mono_us + DELAY_US, self._write)

    def _write(self) -> None:
        names: list[str] = []
        operations: list[Operation] = []
        count = 0
        while self._view.unrecorded and len(names) < MAX_RECORDS and count < MAX_RECORDED:
            consumer, _ = self._view.unrecorded.popitem(last=False)
            member = self._view.members.get(consumer)
            if member is None or member.given is None or not (member.given or consumer in self._view.recorded):
                continue
            names.append(consumer)
            operations.append(record(self._view, consumer, member.given.keys(), self._scheduler.room() // 2))
            count += len(member.given)
        fitting = self._scheduler.fitting(operations)
        self._view.unrecorded.update(dict.fromkeys(names[fitting:]))
        if operations:
            self._is_writing = True
            self._scheduler.write(operations[:fitting], self._written, names[:fitting])
        elif not self._view.is_recorded:
            self._mark()

    def _written(self, reply: Reply, names: list[str]) -> None:
        self._is_writing = False
        if isinstance(reply, Refused):
            self._view.unrecorded.update(dict.fromkeys(names))
            if reply.index is not None and reply.refusal in {Refusal.NO_NODE, Refusal.NODE_EXISTS}:
                self._view.recorded ^= {names[reply.index]}  # somebody else has removed or made it
        else:
            self._view.recorded.update(names)
        self.look()

    def _mark(self) -> None:
        """Every member has a record: from now on they tell, as long as no other version raises the generation."""
        if any(member.given is None for member in self._view.members.values()):
            return  # until it can be read, or is gone; then the group is read anew
        group = self._view.group
        mark = SetContent(paths.given(group), cluster_nodes.encode_counter(self._view.generation))
        self._is_writing = True
        self._scheduler.write([Check(paths.generation(group), self._view.generation_version), mark], self._marked)

    def _marked(self, reply: Reply) -> None:
        self._is_writing = False
        self._view.is_recorded = not isinstance(reply, Refused)
        self.look()


def record(view: GroupView, consumer: str, given: AbstractSet[TopicPartition], max_bytes: int) -> Operation:
    """Return what stores the record of what a consumer was given: a coarser one if it would be larger than this."""
    content = ownership.encode_given(given)
    if len(content) > max_bytes:
        content = ownership.encode_given(given, is_coarse=True)
    write = SetContent if consumer in view.recorded else Create
    return write(paths.given(view.group, consumer), content)
