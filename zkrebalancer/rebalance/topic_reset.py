"""Deletes offsets that belong to a deleted topic, or to an earlier topic of the same name.

A topic that was deleted and created again has none of the old records, and its stored offsets belong to the former
incarnation, which the mark in `offsets/<topic>` names. If that is not the topic's own incarnation, the topic is stopped
everywhere, its offsets are deleted once nothing of it is held, and then it is started again. Because the mark is in
ZooKeeper, a new leader continues where the old one stopped.

The offsets of a topic that stays deleted are removed after ABANDONED_GRACE_US.

No offset is deleted without a copy: each transaction that deletes offsets creates a node with the same offsets. What
cannot be read or copied is not deleted.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from zkrebalancer.protocol import fields, offset_copy, paths
from zkrebalancer.protocol.calls import (
    Children,
    Content,
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
from zkrebalancer.protocol.numbers import decimal
from zkrebalancer.protocol.offset_copy import OffsetCopy
from zkrebalancer.rebalance import facts
from zkrebalancer.rebalance.offset_copies import OffsetCopies
from zkrebalancer.rebalance.scheduler import ANY, RACES, PartScheduler, pause_us
from zkrebalancer.rebalance.view import GroupView

MAX_DELETES_PER_TRANSACTION = 500
MAX_UNDELETABLE = 1_000  # nodes that are emptied instead; more are tried again at growing intervals
MAX_RENAMES = 64  # topics whose incarnations one transaction stores
MAX_BEGUN = 64  # topics at once; thousands may be made anew together, and other groups wait meanwhile
PAUSE_US = 50_000  # before the next ones
ABANDONED_GRACE_US = 3_600_000_000  # topics may be absent for a while, when the topic mirror is set up anew


class TopicReset:
    """Deletes the offsets of one group that no longer belong to a topic."""

    def __init__(self, scheduler: PartScheduler, view: GroupView, report: Callable[[facts.Fact], None]) -> None:
        """Start with nothing in progress."""
        self._scheduler = scheduler
        self._view = view
        self._report = report
        self._waiting: OrderedDict[str, None] = OrderedDict()  # stale topics, of which nothing was held
        self._under_way: set[str] = set()
        self._is_renaming = False
        self._rename_tries = 0  # refused ones in a row
        self._tries: Counter[str] = Counter()  # of deletions that were refused
        # Topic and name of nodes that have foreign nodes below them, and whether they are emptied: they count as none.
        self._undeletable: dict[tuple[str, str], bool] = {}
        self._copies = OffsetCopies(scheduler, view.group)
        self.absent_since_us: dict[str, int] = {}  # kept when the group is read again

    def maybe_begin(self) -> None:
        """Delete the offsets of stale topics of which nothing is held, and start the wait for absent topics."""
        self.begin_free(self._view.stale_topics())
        self._rename()
        self._wait_out_absent_topics()

    def begin_free(self, stale: Iterable[str]) -> None:
        """Delete the offsets of those of these stale topics of which nothing is held, of some topics at a time."""
        held = self._view.held_topics()
        free = sorted(topic for topic in stale if topic not in self._under_way and topic not in held)
        self._waiting.update(dict.fromkeys(free))
        if not self._scheduler.has_timer("resets"):
            self._begin_some()

    def _begin_some(self) -> None:
        for _ in range(min(MAX_BEGUN, len(self._waiting))):
            topic, _none = self._waiting.popitem(last=False)
            if topic not in self._under_way and self._view.is_stale(topic):
                self._begin(topic)
        if self._waiting:
            self._scheduler.wake("resets", self._scheduler.now.mono_us + PAUSE_US, self._begin_some)

    def _rename(self) -> None:
        """Store all present names of topics' incarnations, because a topic may lose one of them later."""
        if self._is_renaming:
            return
        names = self._view.renamed_topics(MAX_RENAMES, but=self._under_way)
        if not names:
            return
        operations: list[Operation] = []
        fitting: dict[str, str] = {}
        for topic, incarnation in sorted(names.items()):
            more = [*operations, *stores(self._view, topic, incarnation)]
            if fitting and self._scheduler.fitting(more) < len(more):
                break
            operations, fitting[topic] = more, incarnation
        self._is_renaming = True
        self._scheduler.write(operations, self._renamed, fitting, expected=ANY)

    def _renamed(self, reply: Reply, names: dict[str, str]) -> None:
        """Continue; after a refusal with what the names are then, because a topic may be made anew meanwhile."""
        if isinstance(reply, Refused) and reply.refusal not in RACES:
            at_us = self._scheduler.now.mono_us + pause_us(self._rename_tries)
            self._rename_tries += 1
            self._scheduler.wake("rename", at_us, self._rename_again)
            return
        self._is_renaming, self._rename_tries = False, 0
        if isinstance(reply, Done):
            self._view.incarnations.update(names)
            self._view.recorded_incarnations.update(names)
            self._rename()
        else:
            self._report(facts.Outdated())

    def _rename_again(self) -> None:
        self._is_renaming = False
        self._rename()

    def _wait_out_absent_topics(self) -> None:
        now_us = self._scheduler.now.mono_us
        absent = sorted(self._view.absent_topics())
        self.absent_since_us = {topic: self.absent_since_us.get(topic, now_us) for topic in absent}
        for topic, since_us in self.absent_since_us.items():
            if not self._scheduler.has_timer(("abandoned", topic)):
                at_us = since_us + ABANDONED_GRACE_US
                self._scheduler.wake(("abandoned", topic), at_us, self._look_whether_abandoned, topic)

    def _look_whether_abandoned(self, topic: str) -> None:
        self._scheduler.ask(Get(paths.topic(topic)), self._abandoned_read, topic)

    def _abandoned_read(self, reply: Reply, topic: str) -> None:
        """Continue only if the topic is really absent; an unreadable one has not lost its records."""
        if reply == Refused(Refusal.NO_NODE):
            self._scheduler.ask(Get(paths.BROKER_TOPICS), self._root_read, topic)

    def _root_read(self, reply: Reply, topic: str) -> None:
        """Continue only if the list of topics exists; without it, no topic is known to be gone."""
        uses = self._view.held_topics(), self._view.topics, self._under_way  # of thousands, each is asked for
        if isinstance(reply, Content) and not any(topic in names for names in uses):
            self._begin(topic)

    def _begin(self, topic: str) -> None:
        self._under_way.add(topic)
        for known in [key for key in self._undeletable if key[0] == topic]:
            self._undeletable[known] = False  # somebody may have written an offset there meanwhile
        self._list(topic)

    def _list(self, topic: str) -> None:
        self._scheduler.ask(ListChildren(paths.offsets(self._view.group, topic)), self._listed, topic)

    def _listed(self, reply: Reply, topic: str) -> None:
        """Read what has to be deleted."""
        if not isinstance(reply, Children):
            self._under_way.discard(topic)
            return
        left = [name for name in reply.names if self._undeletable.get((topic, name)) is not True]
        names = left[:MAX_DELETES_PER_TRANSACTION]
        chunk = _Chunk(topic, set(names), is_last=len(names) == len(left))
        for name in names:
            self._scheduler.ask(Get(f"{paths.offsets(self._view.group, topic)}/{name}"), self._read, chunk, name)
        if not names:
            self._delete(chunk)

    def _read(self, reply: Reply, chunk: _Chunk, name: str) -> None:
        chunk.unread.discard(name)
        if isinstance(reply, Content):
            chunk.found[name] = reply
        if not chunk.unread:
            self._delete(chunk)

    def _is_over(self, topic: str) -> bool:
        """Whether the topic of the stored offsets is gone, and no member reads a topic with its name now."""
        is_gone = topic not in self._view.topics or self._view.is_stale(topic)
        return is_gone and topic not in self._view.held_topics()

    def _delete(self, chunk: _Chunk) -> None:
        """Copy and delete offsets; finally mark the node with the topic's incarnation, or delete it without one."""
        if not self._is_over(chunk.topic):
            self._under_way.discard(chunk.topic)
            return
        operations = self._operations(chunk)
        while self._scheduler.fitting(operations) < len(operations) and len(chunk.found) > 1:
            chunk.halve()
            operations = self._operations(chunk)
        known = self._view.topics.get(chunk.topic)
        incarnation = known.incarnation if known else None
        self._scheduler.write(operations, self._deleted, chunk, incarnation, operations, expected=ANY)

    def _operations(self, chunk: _Chunk) -> list[Operation]:
        view, epoch_ms = self._view, self._scheduler.now.epoch_ms
        path = paths.offsets(view.group, chunk.topic)
        operations: list[Operation] = []
        offsets = chunk.offsets()
        if offsets:
            copy = OffsetCopy(chunk.topic, view.stored_incarnation(chunk.topic), epoch_ms, offsets)
            name = paths.deleted_offsets(view.group, offset_copy.name_prefix(epoch_ms))
            operations.append(Create(name, offset_copy.encode(copy), sequence=True))
        for name, node in chunk.found.items():
            node_path, version = f"{path}/{name}", node.stat.version
            is_stuck = (chunk.topic, name) in self._undeletable and chunk.topic in view.topics
            operations.append(SetContent(node_path, b"", version) if is_stuck else Delete(node_path, version))
        if chunk.is_last:
            known = view.topics.get(chunk.topic)
            if known:
                operations += stores(view, chunk.topic, known.incarnation)
            elif chunk.topic in view.recorded_incarnations:
                operations.append(Delete(paths.incarnations(view.group, chunk.topic)))
            if not known:
                operations.append(Delete(path))
        return operations

    def _deleted(self, reply: Reply, chunk: _Chunk, incarnation: str | None, operations: list[Operation]) -> None:
        topic = chunk.topic
        if isinstance(reply, Refused) and not _is_race(reply, operations, chunk):
            is_progress = False
            if reply.refusal is Refusal.NOT_EMPTY and reply.index is not None:
                self._scheduler.note_refused(operations[reply.index], reply.refusal)  # for others that is a race
                is_progress = self._is_new_undeletable(topic, operations[reply.index].path.rpartition("/")[2])
            self._under_way.discard(topic)  # what has to be deleted may be something else by then
            tries = 0 if is_progress else self._tries[topic]
            self._tries[topic] = tries + 1
            at_us = self._scheduler.now.mono_us + pause_us(tries)
            self._scheduler.wake(("reset", topic), at_us, self.maybe_begin)
            return
        self._tries.pop(topic, None)
        if reply == Refused(Refusal.NO_NODE, 0) and isinstance(operations[0], Create):
            self._scheduler.write([Create(paths.deleted_offsets(self._view.group))], self._place_made, topic)
            return
        if isinstance(reply, Done):
            self._note_copied(chunk, reply)
            emptied = [(topic, name) for name in chunk.found if (topic, name) in self._undeletable]
            self._undeletable.update(dict.fromkeys(emptied, True))
        if isinstance(reply, Done) and not chunk.is_last:
            self._list(topic)
            return
        self._under_way.discard(topic)
        if isinstance(reply, Refused):
            self._report(facts.Outdated())
            return
        for known in [key for key in self._undeletable if key[0] == topic]:
            del self._undeletable[known]
        if incarnation is None:
            self._view.incarnations.pop(topic, None)
            self._view.recorded_incarnations.pop(topic, None)
        else:
            self._view.incarnations[topic] = self._view.recorded_incarnations[topic] = incarnation
            self._report(facts.Changed("topic-recreated", topic))

    def _is_new_undeletable(self, topic: str, name: str) -> bool:
        """Note a node that has foreign nodes below it; return whether the next try gets further."""
        is_new = (topic, name) not in self._undeletable and len(self._undeletable) < MAX_UNDELETABLE
        if is_new:
            self._undeletable[topic, name] = False
        return is_new and topic in self._view.topics

    def _place_made(self, reply: Reply, topic: str) -> None:
        if reply == Refused(Refusal.NO_NODE, 0):  # the group is gone
            self._under_way.discard(topic)
            self._report(facts.Outdated())
        else:
            self._list(topic)

    def _note_copied(self, chunk: _Chunk, reply: Done) -> None:
        count = len(chunk.offsets())
        if count:
            self._scheduler.warn(
                f"topic {chunk.topic} of {count} stored offsets is gone: they are deleted;"
                " `groups offsets restore` puts them back"
            )
            self._copies.look(offset_copy.number_of(str(reply.results[0]).rpartition("/")[2]) or 0)

    def reset(self) -> None:
        """Forget what was in progress, because the group is read anew, which shows it; not what is in the way."""
        self._waiting.clear()
        self._under_way.clear()
        self._is_renaming = False
        self._copies.reset()


def stores(view: GroupView, topic: str, incarnation: str) -> list[Operation]:
    """Return the operations that store the incarnation of a topic's offsets: in the record, then in the mark."""
    group, content = view.group, incarnation.encode()
    record, mark = paths.incarnations(group, topic), paths.offsets(group, topic)
    return [
        SetContent(record, content) if topic in view.recorded_incarnations else Create(record, content),
        SetContent(mark, content) if topic in view.incarnations else Create(mark, content),
    ]


def _is_race(reply: Refused, operations: list[Operation], chunk: _Chunk) -> bool:
    """Whether reading anew helps; it does not if an offset's node has nodes below it, which are foreign."""
    is_last = reply.index == len(operations) - 1 and chunk.is_last
    return reply.refusal in RACES and (reply.refusal is not Refusal.NOT_EMPTY or is_last)


@dataclass(slots=True)
class _Chunk:
    """Nodes below `offsets/<topic>` that are deleted together."""

    topic: str
    unread: set[str]
    is_last: bool  # whether no other nodes are left
    found: dict[str, Content] = field(default_factory=dict)

    def offsets(self) -> dict[int, int]:
        """Return the offsets in these nodes; invalid contents need no copy."""
        offsets: dict[int, int] = {}
        for name, node in self.found.items():
            partition, offset = decimal(name, fields.MAX_PARTITION), decimal(node.content.strip())
            if partition is not None and offset is not None:
                offsets[partition] = offset
        return offsets

    def halve(self) -> None:
        """Leave the second half for another transaction."""
        self.found = dict(list(self.found.items())[: len(self.found) // 2])
        self.is_last = False
