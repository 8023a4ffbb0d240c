"""A topic that was deleted and created again has the old name and none of the old records.

Its stored offsets belong to the former incarnation. `offsets/<topic>` holds the incarnation that they belong to; where
that is not the topic's own, nobody starts the topic: it is stopped everywhere, its offsets are deleted once nobody
holds any of it, and then it starts anew. Because the mark stands in ZooKeeper, a new leader goes on where the old one
was.

The offsets of a topic that stays deleted are removed after ABANDONED_GRACE_US.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Children,
    Create,
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

if TYPE_CHECKING:
    from zkrebalancer.rebalance.group import Group

MAX_DELETES_PER_TRANSACTION = 500
ABANDONED_GRACE_US = 3_600_000_000  # a topic may be away for a while, when the topic mirror is set up anew


class TopicReset:
    """The incarnations whose offsets one group keeps."""

    def __init__(self, group: Group) -> None:
        """Have nothing to do."""
        self._group = group
        self._under_way: set[str] = set()
        self._written: dict[str, str] = {}
        self._absent_since_us: dict[str, int] = {}  # survives that the group is read anew

    def is_stale(self, topic: str) -> bool:
        """Whether the stored offsets belong to a former incarnation of the topic."""
        stored = self._group.view.incarnations.get(topic)
        if not stored:
            return False
        known = self._group.topics.get(topic)
        return known is not None and known.incarnation != stored

    def stale_topics(self) -> set[str]:
        """Return the topics that have to be reset."""
        return {topic for topic in self._group.view.incarnations if self.is_stale(topic)}

    def markers(self, topics: Iterable[str]) -> list[Operation]:
        """Return what marks the incarnation of topics that are started for the first time, to go with the start."""
        operations: list[Operation] = []
        self._written = {}
        for topic in sorted(set(topics)):
            stored = self._group.view.incarnations.get(topic)
            incarnation = self._group.topics[topic].incarnation
            if stored is None:
                operations.append(Create(paths.offsets(self._group.name, topic), incarnation.encode()))
            elif not stored:
                operations.append(SetContent(paths.offsets(self._group.name, topic), incarnation.encode()))
            else:
                continue
            self._written[topic] = incarnation
        return operations

    def markers_written(self) -> None:
        """The transaction with the last `markers` went through."""
        written, self._written = self._written, {}
        self._group.view.incarnations.update(written)
        if any(map(self.is_stale, written)):
            self._group.request("topic-recreated")  # while the transaction was under way

    def maybe_begin(self) -> None:
        """Delete the offsets of every stale topic that nobody holds, and wait out those that are gone."""
        stale = self.stale_topics() - self._under_way
        if stale:
            for topic in sorted(stale - self._group.view.held_topics()):
                self._under_way.add(topic)
                self._list(topic)
        self._wait_out_absent_topics()

    def _wait_out_absent_topics(self) -> None:
        desk, name = self._group.desk, self._group.name
        absent = self._group.view.incarnations.keys() - self._group.topics.keys()
        self._absent_since_us = {topic: self._absent_since_us.get(topic, desk.now.mono_us) for topic in sorted(absent)}
        for topic, since_us in self._absent_since_us.items():
            if not desk.is_awake_planned(name, ("abandoned", topic)):
                at_us = since_us + ABANDONED_GRACE_US
                desk.wake(name, ("abandoned", topic), at_us, self._look_whether_abandoned, topic)

    def _look_whether_abandoned(self, topic: str) -> None:
        self._group.desk.ask(self._group.name, Get(paths.topic(topic)), self._abandoned_read, topic)

    def _abandoned_read(self, reply: Reply, topic: str) -> None:
        """Only a topic that is really absent has lost its records; one that cannot be read has not."""
        in_use = self._group.view.held_topics() | self._group.topics.keys() | self._under_way
        if reply == Refused(Refusal.NO_NODE) and topic not in in_use:
            self._under_way.add(topic)
            self._list(topic)

    def _list(self, topic: str) -> None:
        offsets = ListChildren(paths.offsets(self._group.name, topic))
        self._group.desk.ask(self._group.name, offsets, self._listed, topic)

    def _listed(self, reply: Reply, topic: str) -> None:
        """Delete the offsets, and at last mark the node with the topic's incarnation, or delete it with the topic."""
        group = self._group
        if not isinstance(reply, Children):
            self._under_way.discard(topic)
            return
        known = group.topics.get(topic)
        path = paths.offsets(group.name, topic)
        names = reply.names[:MAX_DELETES_PER_TRANSACTION]
        operations: list[Operation] = [Delete(f"{path}/{name}") for name in names]
        is_complete = len(names) == len(reply.names)
        if is_complete:
            operations.append(SetContent(path, known.incarnation.encode()) if known else Delete(path))
        incarnation = known.incarnation if known else None
        deletion = group.leadership.fenced(*operations)
        group.desk.ask(group.name, deletion, self._deleted, topic, is_complete, incarnation)

    def _deleted(self, reply: Reply, topic: str, is_complete: bool, incarnation: str | None) -> None:
        group = self._group
        if group.leadership.is_deposed(reply):
            return
        if isinstance(reply, Done) and not is_complete:
            self._list(topic)
            return
        self._under_way.discard(topic)
        if isinstance(reply, Refused):
            if not reply.outcome_unknown:
                group.load("outdated")
        elif incarnation is None:
            group.view.incarnations.pop(topic, None)
        else:
            group.view.incarnations[topic] = incarnation
            group.request("topic-recreated")

    def reset(self) -> None:
        """The group is read anew: what was under way is found out from ZooKeeper."""
        self._under_way.clear()
        self._written = {}
