"""Deletes offsets that belong to a deleted topic, or to an earlier topic of the same name.

A topic that was deleted and created again has none of the old records, and its stored offsets belong to the former
incarnation. `offsets/<topic>` has a mark that names the incarnation they belong to. If that is not the topic's own, the
topic is stopped everywhere, its offsets are deleted once none of it is held, and then it is started anew. Because the
mark is in ZooKeeper, a new leader continues where the old one was.

The offsets of a topic that stays deleted are removed after ABANDONED_GRACE_US.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Children,
    Delete,
    Done,
    Get,
    ListChildren,
    Operation,
    Refusal,
    Refused,
    Reply,
    SetContent,
)
from zkrebalancer.rebalance import facts
from zkrebalancer.rebalance.scheduler import ANY, RACES, PartScheduler, pause_us
from zkrebalancer.rebalance.view import GroupView

MAX_DELETES_PER_TRANSACTION = 500
ABANDONED_GRACE_US = 3_600_000_000  # a topic may be away for a while, when the topic mirror is set up anew


class TopicReset:
    """Deletes the offsets of one group that belong to no topic any more."""

    def __init__(self, scheduler: PartScheduler, view: GroupView, report: Callable[[facts.Fact], None]) -> None:
        """Begin with nothing under way."""
        self._scheduler = scheduler
        self._view = view
        self._report = report
        self._under_way: set[str] = set()
        self._tries: Counter[str] = Counter()  # at deletions that were refused
        self.absent_since_us: dict[str, int] = {}  # kept when the group is read again

    def maybe_begin(self) -> None:
        """Delete the offsets of stale topics of which nothing is held, and begin to wait for topics that are absent."""
        stale = self._view.stale_topics() - self._under_way
        for topic in sorted(stale - self._view.held_topics()):
            self._under_way.add(topic)
            self._list(topic)
        for topic, incarnation in self._view.renamed_topics().items():
            self._rename(topic, incarnation)
        self._wait_out_absent_topics()

    def _rename(self, topic: str, incarnation: str) -> None:
        """Store every name that the topic's incarnation has now: it may lose one of them later."""
        mark = SetContent(paths.offsets(self._view.group, topic), incarnation.encode())
        if topic not in self._under_way:
            self._under_way.add(topic)
            self._scheduler.write([mark], self._renamed, topic, incarnation)

    def _renamed(self, reply: Reply, topic: str, incarnation: str) -> None:
        self._under_way.discard(topic)
        if isinstance(reply, Done):
            self._view.incarnations[topic] = incarnation
        else:
            self._report(facts.Outdated())

    def _wait_out_absent_topics(self) -> None:
        now_us = self._scheduler.now.mono_us
        absent = sorted(self._view.absent_topics())
        self.absent_since_us = {topic: self.absent_since_us.get(topic, now_us) for topic in absent}
        for topic, since_us in self.absent_since_us.items():
            if not self._scheduler.is_awake_planned(("abandoned", topic)):
                at_us = since_us + ABANDONED_GRACE_US
                self._scheduler.wake(("abandoned", topic), at_us, self._look_whether_abandoned, topic)

    def _look_whether_abandoned(self, topic: str) -> None:
        self._scheduler.ask(Get(paths.topic(topic)), self._abandoned_read, topic)

    def _abandoned_read(self, reply: Reply, topic: str) -> None:
        """Only a topic that is really absent has lost its records; one that cannot be read has not."""
        in_use = self._view.held_topics() | self._view.topics.keys() | self._under_way
        if reply == Refused(Refusal.NO_NODE) and topic not in in_use:
            self._under_way.add(topic)
            self._list(topic)

    def _list(self, topic: str) -> None:
        self._scheduler.ask(ListChildren(paths.offsets(self._view.group, topic)), self._listed, topic)

    def _listed(self, reply: Reply, topic: str) -> None:
        """Delete the offsets, and at last mark the node with the topic's incarnation, or delete it with the topic."""
        if not isinstance(reply, Children):
            self._under_way.discard(topic)
            return
        known = self._view.topics.get(topic)
        path = paths.offsets(self._view.group, topic)
        operations: list[Operation] = [Delete(f"{path}/{name}") for name in reply.names[:MAX_DELETES_PER_TRANSACTION]]
        if len(operations) == len(reply.names):
            operations.append(SetContent(path, known.incarnation.encode()) if known else Delete(path))
        operations = operations[: self._scheduler.fitting(operations)]
        is_complete = len(operations) > len(reply.names)
        incarnation = known.incarnation if known else None
        self._scheduler.write(operations, self._deleted, topic, is_complete, incarnation, operations, expected=ANY)

    def _deleted(
        self, reply: Reply, topic: str, is_complete: bool, incarnation: str | None, operations: list[Operation]
    ) -> None:
        if isinstance(reply, Refused) and reply.refusal not in RACES:
            self._scheduler.note_refused(operations[reply.index or 0], reply.refusal)
            self._under_way.discard(topic)  # what has to be deleted may be something else by then
            at_us = self._scheduler.now.mono_us + pause_us(self._tries[topic])
            self._tries[topic] += 1
            self._scheduler.wake(("reset", topic), at_us, self.maybe_begin)
            return
        self._tries.pop(topic, None)
        if isinstance(reply, Done) and not is_complete:
            self._list(topic)
            return
        self._under_way.discard(topic)
        if isinstance(reply, Refused):
            self._report(facts.Outdated())
        elif incarnation is None:
            self._view.incarnations.pop(topic, None)
        else:
            self._view.incarnations[topic] = incarnation
            self._report(facts.Changed("topic-recreated"))

    def reset(self) -> None:
        """The group is read anew: what was under way is found out from ZooKeeper."""
        self._under_way.clear()
