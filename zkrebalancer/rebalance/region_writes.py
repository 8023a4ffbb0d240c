"""What the leader of a region writes beside its orders: merges, offsets of partitions that no member holds, evictions.

What is refused for want of a right is decided anew after a pause, except a merge: by then, it may be of a former round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from zkrebalancer.protocol import paths
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
from zkrebalancer.protocol.cluster_nodes import may_be_same_topic
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import MAX_PARTITION, TopicPartition
from zkrebalancer.protocol.numbers import decimal
from zkrebalancer.rebalance.scheduler import ANY, RACES, PartScheduler, pause_us
from zkrebalancer.rebalance.view import GroupView
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Initial, Merge, Order
from zkrebalancer.region.limits import MAX_PIECES, piece_bytes
from zkrebalancer.region.merge import Answers, merged

MAX_OFFSET = 2**63 - 1
MAX_AT_ONCE = 200  # nodes that are read or written at once


@dataclass(slots=True)
class _Unheld:
    """Partitions that the region has read and no member holds now: their stored and their initial offsets."""

    waiting: list[TopicPartition]
    missing: int = 0
    stored: dict[TopicPartition, Content] = field(default_factory=dict)
    initial: dict[TopicPartition, Initial] = field(default_factory=dict)


@dataclass(slots=True)
class _Gone:
    """A deleted topic, and what of its initial offsets is deleted at once."""

    topic: str
    deletes: list[Operation]
    missing: int = 0


@dataclass(slots=True)
class _Doomed:
    """Registrations that are evicted: how many are not read yet, and what is deleted of the others."""

    missing: int
    deletes: list[Operation] = field(default_factory=list)


def _nothing() -> None:
    """Do nothing: there is nothing to do again."""


class RegionWrites:
    """The writes of one region. One task at a time; `forget` drops it."""

    def __init__(self, scheduler: PartScheduler, view: GroupView) -> None:
        """Start with nothing to do."""
        self._scheduler = scheduler
        self._view = view
        self._task = 0
        self._again: Callable[[], None] = _nothing
        self._tries = 0  # to store offsets, in a row
        self._evictions = 0  # tries in a row that have deleted nothing
        self._sweeps = 0  # the last one's number

    def forget(self) -> None:
        """Drop what is under way: its replies are void."""
        self._task += 1

    def _go_on(self, task: int, then: Callable[[], None]) -> None:
        if task == self._task:
            then()

    def _path(self, kind: str, name: str | None = None) -> str:
        return paths.region(self._view.group, kind, name)

    # ---- which partitions no member holds

    def _find_unheld(self, held: Collection[TopicPartition], then: Callable[[_Unheld], None]) -> None:
        """Call `then` with the partitions that have an initial offset and are not held: others were never read."""
        self._task += 1
        self._scheduler.ask(ListChildren(self._path("initial")), self._topics_listed, self._task, set(held), then)

    def _topics_listed(
        self, reply: Reply, task: int, held: set[TopicPartition], then: Callable[[_Unheld], None]
    ) -> None:
        if task != self._task:
            return
        names = [name for name in reply.names if name in self._view.topics] if isinstance(reply, Children) else []
        found = _Unheld([], missing=len(names))
        for name in names:
            path = self._path("initial", name)
            self._scheduler.ask(ListChildren(path), self._partitions_listed, task, name, held, found, then)
        if not names:
            then(found)

    def _partitions_listed(
        self,
        reply: Reply,
        task: int,
        topic: str,
        held: set[TopicPartition],
        found: _Unheld,
        then: Callable[[_Unheld], None],
    ) -> None:
        if task != self._task:
            return
        numbers = [decimal(name, MAX_PARTITION) for name in reply.names] if isinstance(reply, Children) else []
        known = [(topic, at) for at in numbers if at is not None and self._view.is_known((topic, at))]
        found.waiting += [partition for partition in known if partition not in held]
        found.missing -= 1
        if not found.missing:
            self._read_unheld(task, found, then)

    def _read_unheld(self, task: int, found: _Unheld, then: Callable[[_Unheld], None]) -> None:
        some, found.waiting = found.waiting[:MAX_AT_ONCE], found.waiting[MAX_AT_ONCE:]
        found.missing = 2 * len(some)
        for tp in some:
            stored, initial = paths.offsets(self._view.group, *tp), f"{self._path('initial', tp[0])}/{tp[1]}"
            self._scheduler.ask(Get(stored), self._unheld_read, task, tp, found, then)
            self._scheduler.ask(Get(initial), self._initial_read, task, tp, found, then)
        if not some:
            then(found)

    def _unheld_read(
        self, reply: Reply, task: int, tp: TopicPartition, found: _Unheld, then: Callable[[_Unheld], None]
    ) -> None:
        if task != self._task:
            return
        if isinstance(reply, Content):
            found.stored[tp] = reply
        self._one_less(task, found, then)

    def _initial_read(
        self, reply: Reply, task: int, tp: TopicPartition, found: _Unheld, then: Callable[[_Unheld], None]
    ) -> None:
        if task != self._task:
            return
        if isinstance(reply, Content):
            try:
                initial = documents.decode_initial(reply.content)
                if self._is_of_present(tp[0], initial.incarnation):
                    found.initial[tp] = initial
            except NodeContentError as error:
                path = f"{self._path('initial', tp[0])}/{tp[1]}"
                self._scheduler.complain(path, f"{path}: {error}")
        self._one_less(task, found, then)

    def _is_of_present(self, topic: str, mark: str) -> bool:
        """Whether this mark may be of the present topic, not of a deleted one of its name."""
        present = self._view.topics.get(topic)
        return present is None or may_be_same_topic(mark, present.incarnation)

    def _offsets(self, merge: Merge | None) -> Mapping[TopicPartition, int]:
        """Return the offsets of a merge that are of present topics."""
        if merge is None:
            return {}
        former = {name for name, mark in merge.incarnations.items() if not self._is_of_present(name, mark)}
        return {tp: at for tp, at in merge.offsets.items() if tp[0] not in former} if former else merge.offsets

    def _one_less(self, task: int, found: _Unheld, then: Callable[[_Unheld], None]) -> None:
        found.missing -= 1
        if not found.missing:
            self._read_unheld(task, found, then)

    # ---- a reset: they continue where the others do

    def place_unheld(
        self, held: Collection[TopicPartition], merge: Merge | None, done: Callable[[], None], *, is_forced: bool
    ) -> None:
        """Store where partitions that no member holds continue after a reset; members of forced groups seek anyway."""
        if is_forced:
            done()
        else:
            self._again = partial(self.place_unheld, held, merge, done, is_forced=False)
            self._find_unheld(held, lambda found: self._place(found, merge, done))

    def _place(self, found: _Unheld, merge: Merge | None, done: Callable[[], None]) -> None:
        offsets = self._offsets(merge)
        writes: list[list[Operation]] = []
        for tp, initial in sorted(found.initial.items()):
            content, path = str(offsets.get(tp, initial.offset)).encode(), paths.offsets(self._view.group, *tp)
            stored = found.stored.get(tp)
            if stored is None:
                writes.append([Create(path, content)])
            elif stored.content != content:
                writes.append([SetContent(path, content, stored.stat.version)])
        self._store([operation for some in writes for operation in some], done)

    def _store(self, operations: list[Operation], done: Callable[[], None]) -> None:
        if not operations:
            done()
            return
        topics = sorted(
            {operation.path.rpartition("/")[0] for operation in operations if isinstance(operation, Create)}
        )
        missing = [path for path in topics if path.rpartition("/")[2] not in self._view.incarnations]
        if missing:
            topic = missing[0].rpartition("/")[2]
            known = self._view.topics.get(topic)
            if known is None or self._view.is_hidden_topic(topic):  # deleted meanwhile, or it may have another mark
                self._store_later()
                return
            mark = self._view.incarnations[topic] = known.incarnation
            create, what = Create(missing[0], mark.encode()), (self._task, topic, operations, done)
            self._scheduler.write([create], self._place_made, *what, expected=ANY)
            return
        count = min(self._scheduler.fitting(operations), MAX_AT_ONCE)
        rest = operations[count:]
        self._scheduler.write(operations[:count], self._stored, self._task, rest, done, expected=ANY)

    def _place_made(
        self, reply: Reply, task: int, topic: str, operations: list[Operation], done: Callable[[], None]
    ) -> None:
        is_there = isinstance(reply, Done) or (isinstance(reply, Refused) and reply.refusal is Refusal.NODE_EXISTS)
        if not is_there:
            self._view.incarnations.pop(topic, None)
        if task == self._task and is_there:
            self._store(operations, done)
        elif task == self._task:
            self._store_later()

    def _stored(self, reply: Reply, task: int, rest: list[Operation], done: Callable[[], None]) -> None:
        if task != self._task:
            return
        if isinstance(reply, Done):
            self._tries = 0
            self._store(rest, done)
        else:  # another client has written one of them, or a right is missing: they are read again
            self._store_later()

    def _store_later(self) -> None:
        at_us = self._scheduler.now.mono_us + pause_us(self._tries)
        self._tries += 1
        self._scheduler.wake("region-offsets", at_us, self._go_on, self._task, self._again)

    # ---- a checkpoint

    def store_merge(
        self, answers: Answers, before: Merge | None, done: Callable[[Merge | None, int], None], *, is_forced: bool
    ) -> None:
        """Store the merge of a checkpoint, in pieces; then call `done(merge, piece count)`; None: it is too large.

        Partitions that no member holds continue where the group's offsets are: their last holders have drained them. In
        a forced group nothing but a reset moves a partition, so that they are still where the former merge has them.
        """
        held = answers.union().keys()
        self._find_unheld(held, lambda found: self._merge(answers, before, found, done, is_forced=is_forced))

    def _merge(
        self,
        answers: Answers,
        before: Merge | None,
        found: _Unheld,
        done: Callable[[Merge | None, int], None],
        *,
        is_forced: bool,
    ) -> None:
        before = None if before is None else replace(before, offsets=self._offsets(before))
        former = before.offsets if before is not None else {}
        unheld = {tp: former.get(tp, initial.offset) for tp, initial in found.initial.items()}
        if not is_forced:
            stored = {tp: decimal(reply.content, MAX_OFFSET) for tp, reply in found.stored.items()}
            unheld.update({tp: at for tp, at in stored.items() if at is not None and tp in unheld})
        topics = {topic: self._view.topics.get(topic) for topic, _number in unheld}
        marks = {name: topic.incarnation for name, topic in topics.items() if topic is not None}
        merge = merged(answers, before, unheld, marks)
        pieces = documents.merge_pieces(merge, piece_bytes(self._scheduler.limit.max_bytes))
        if len(pieces) > MAX_PIECES:
            done(None, 0)
        else:
            self._store_pieces(merge, list(enumerate(pieces)), len(pieces), done)

    def _store_pieces(
        self,
        merge: Merge,
        left: list[tuple[int, bytes]],
        count: int,
        done: Callable[[Merge | None, int], None],
    ) -> None:
        if not left:
            done(merge, count)
            return
        number, content = left[0]
        path = self._path("merged", f"{merge.id}.{number}")
        self._scheduler.write([Create(path, content)], self._piece_stored, self._task, merge, left[1:], count, done)

    def _piece_stored(  # the reply, and what it belongs to
        self,
        reply: Reply,
        task: int,
        merge: Merge,
        left: list[tuple[int, bytes]],
        count: int,
        done: Callable[[Merge | None, int], None],
    ) -> None:
        if task != self._task:
            return
        if isinstance(reply, Done):
            self._store_pieces(merge, left, count, done)
        else:
            done(None, 0)

    # ---- members that did not reset in time

    def evict(self, members: Mapping[str, int], reason: str, done: Callable[[], None]) -> None:
        """Delete registrations, each if it is still the one that this transaction has made; then call `done`.

        The node of a name that was registered again has the same version. Only its transaction tells it apart, so it is
        read right before the deletion. `reason`: why, of the first one.
        """
        self._task += 1
        name = next(iter(members))
        self._scheduler.complain(
            self._path("members", name), f"region: {name} has {reason}; its registration is removed"
        )
        doomed = _Doomed(len(members))
        for name, zxid in members.items():
            path = self._path("members", name)
            self._scheduler.ask(Get(path), self._doomed_read, self._task, path, zxid, doomed, done, expected=ANY)

    def _doomed_read(
        self, reply: Reply, task: int, path: str, zxid: int, doomed: _Doomed, done: Callable[[], None]
    ) -> None:
        if task != self._task:
            return
        doomed.missing -= 1
        if isinstance(reply, Content) and reply.stat.created_zxid == zxid:
            doomed.deletes.append(Delete(path, reply.stat.version))
        if doomed.missing:
            return
        deletes = doomed.deletes[: self._scheduler.fitting(doomed.deletes)]
        if deletes:
            self._scheduler.write(deletes, self._members_deleted, task, done, expected=ANY)
        else:
            self._look_again_later(task, done)

    def _members_deleted(self, reply: Reply, task: int, done: Callable[[], None]) -> None:
        if task != self._task:
            return
        if isinstance(reply, Done):
            self._evictions = 0
            done()
        else:
            self._look_again_later(task, done)

    def _look_again_later(self, task: int, done: Callable[[], None]) -> None:
        at_us = self._scheduler.now.mono_us + pause_us(self._evictions)
        self._evictions += 1
        self._scheduler.wake("region-members", at_us, self._go_on, task, done)

    # ---- what no order names any more

    def sweep(self, order: Order) -> None:
        """Delete answers and merges of all other rounds, and initial offsets of deleted topics, some at a time.

        A list that was refused comes when later rounds may be open: it counts for the last sweep only.
        """
        self._sweeps += 1
        kept = (order.complete, order.open.id if order.open is not None else None)
        names = {str(number) for number in kept if number is not None}
        self._scheduler.ask(ListChildren(self._path("merged")), self._merges_listed, self._sweeps, names)
        self._scheduler.ask(ListChildren(self._path("contributions")), self._rounds_listed, self._sweeps, names)
        self._scheduler.ask(ListChildren(self._path("initial")), self._initial_listed)

    def _merges_listed(self, reply: Reply, sweep: int, kept: set[str]) -> None:
        names = reply.names if isinstance(reply, Children) and sweep == self._sweeps else ()
        self._delete(self._path("merged", name) for name in names if name.partition(".")[0] not in kept)

    def _rounds_listed(self, reply: Reply, sweep: int, kept: set[str]) -> None:
        for name in reply.names if isinstance(reply, Children) and sweep == self._sweeps else ():
            if name not in kept:
                path = self._path("contributions", name)
                self._scheduler.ask(ListChildren(path), self._round_listed, path)

    def _round_listed(self, reply: Reply, path: str) -> None:
        if isinstance(reply, Children):
            self._delete([*(f"{path}/{name}" for name in reply.names), path])

    def _is_gone(self, topic: str) -> bool:
        return topic not in self._view.topics and topic not in self._view.held_topics()

    def _initial_listed(self, reply: Reply) -> None:
        topic = next(filter(self._is_gone, sorted(reply.names)), None) if isinstance(reply, Children) else None
        if topic is not None:
            path = self._path("initial", topic)
            self._scheduler.ask(ListChildren(path), self._gone_listed, path, topic)

    def _gone_listed(self, reply: Reply, path: str, topic: str) -> None:
        names = reply.names[:MAX_AT_ONCE] if isinstance(reply, Children) else ()
        gone = _Gone(topic, [Delete(path)] if isinstance(reply, Children) and len(names) == len(reply.names) else [])
        gone.missing = len(names)
        for name in names:
            self._scheduler.ask(Get(f"{path}/{name}"), self._gone_read, f"{path}/{name}", gone)
        if not names:
            self._delete_gone(gone)

    def _gone_read(self, reply: Reply, path: str, gone: _Gone) -> None:
        """Delete what was read, but no offset that a member stores meanwhile because the topic was created again."""
        if isinstance(reply, Content):
            gone.deletes.insert(0, Delete(path, reply.stat.version))
        gone.missing -= 1
        if not gone.missing:
            self._delete_gone(gone)

    def _delete_gone(self, gone: _Gone) -> None:
        if gone.deletes and self._is_gone(gone.topic):
            deletes = gone.deletes[: self._scheduler.fitting(gone.deletes)]
            self._scheduler.write(deletes, _ignore, expected=ANY)

    def _delete(self, doomed: Iterable[str]) -> None:
        deletes = [Delete(path) for path in doomed][:MAX_AT_ONCE]
        deletes = deletes[: self._scheduler.fitting(deletes)]
        if deletes:
            self._scheduler.write(deletes, self._swept, deletes, expected=ANY)

    def _swept(self, reply: Reply, deletes: list[Delete]) -> None:
        """Leave out a node that is gone, or that cannot be deleted because another program has made a node below it.

        What is refused otherwise is left to the next sweep: each one would add a transaction that is repeated for ever.
        """
        if isinstance(reply, Refused) and reply.index is not None and reply.refusal in RACES:
            if reply.refusal is Refusal.NOT_EMPTY:
                self._scheduler.note_refused(deletes[reply.index], reply.refusal)
            self._delete(each.path for at, each in enumerate(deletes) if at != reply.index)


def _ignore(_reply: Reply) -> None:
    """What is left over is deleted after the next round."""
