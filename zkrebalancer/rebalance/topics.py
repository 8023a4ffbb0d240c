"""The topic listener and the topic partition listener: keep the known topics equal to `/brokers/topics`."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Container
from typing import Any

from zkrebalancer.protocol import calls, cluster_nodes, paths
from zkrebalancer.protocol.calls import Children, Content, Get, ListChildren, Refusal, Refused, Reply
from zkrebalancer.protocol.cluster_nodes import UNREAD, Topic
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.rebalance.listing import Listing
from zkrebalancer.rebalance.scheduler import ANY, OF_A_ROOT, Scheduler, pause_us
from zkrebalancer.rebalance.subscriptions import Subscriptions

OWNER = "/topics"  # no group has such a name
WORK_OF_A_READ = 5  # units of `scheduler.MAX_WORK_PER_STEP`
WORK_OF_A_LOOK = 10  # more, because the first match of a pattern takes longer than later ones
WORK_OF_A_NOTICE = 60
MAX_NAMED = 20  # topics whose faults are logged one by one; those of all others together, at growing intervals


class TopicListener:
    """Reads and watches every topic, and notifies the groups that a change concerns, in portions."""

    def __init__(
        self, scheduler: Scheduler, subscriptions: Subscriptions, notify: Callable[[str, str, str], None]
    ) -> None:
        """`notify(group, kind of trigger, topic)` is called for every group that is interested in a changed topic."""
        self._scheduler = scheduler.part(OWNER)
        self._subscriptions = subscriptions
        self._notify = notify
        self._listing = Listing(self._scheduler, self._seen, self._missing, self._compared)
        self._is_listed = False  # since the watches were set
        self._unread: set[str] = set()  # topics that were listed and not read yet
        self._to_read: deque[str] = deque()
        self._to_drop: OrderedDict[str, None] = OrderedDict()  # topics that were deleted
        self._absent: set[str] = set()  # topics whose nodes are gone; the next list shows whether they were deleted
        self._is_listing = False
        self._reads_all = False  # whether the next list causes a read of all topics
        self._is_reading_all = False
        self._changes: OrderedDict[str, str] = OrderedDict()  # topic -> kind of trigger, not reported to groups yet
        self._reported = ""  # the topic whose groups are being notified
        self._reported_kind = ""
        self._to_notify: deque[str] = deque()  # groups that the change may concern
        self._tries: Counter[str] = Counter()  # to read topics that may not be read
        self._named: set[str] = set()  # topics whose faults are logged one by one

    def read_all(self) -> None:
        """Read the topics anew: at startup, and when the watches are gone with a connection."""
        self.forget()
        self._list()

    def read_again(self) -> None:
        """List and read known topics again, because ZooKeeper sends no watch events without the right to read."""
        self._reads_all = True
        if not self._is_listing:
            self._list()

    def forget(self) -> None:
        """Note that all watches are gone."""
        self._scheduler.forget()
        self._to_read.clear()
        self._to_drop.clear()
        self._absent.clear()
        self._is_listing = self._reads_all = self._is_reading_all = False
        self._notify_groups()
        self._is_listed = False
        self._unread.clear()
        self._note_whether_known()

    def end(self) -> list[OrderedDict[str, Any]]:
        """Drop unreported changes, because the leadership is over; return what has to be freed."""
        rubbish: list[OrderedDict[str, Any]] = [self._changes, self._to_drop]
        self._changes, self._to_drop = OrderedDict(), OrderedDict()
        self._to_notify.clear()
        self.forget()
        return rubbish

    def _note_whether_known(self) -> None:
        """Note whether every topic was read, so that groups may be planned."""
        self._subscriptions.are_topics_known = self._is_listed and not self._unread

    def watched(self, event: calls.Watched) -> None:
        """Handle a change of the list of topics, or of one topic."""
        if event.path == paths.BROKER_TOPICS:
            self._list()
        else:
            self._read(event.path.removeprefix(paths.BROKER_TOPICS + "/"))

    def _list(self) -> None:
        self._is_listing = True
        listing = ListChildren(paths.BROKER_TOPICS, watch=True)
        self._scheduler.ask(listing, self._listed, expected=OF_A_ROOT)

    def _listed(self, reply: Reply) -> None:
        self._is_listing = False
        if not isinstance(reply, Children):
            return
        if not self._is_listed:
            self._unread.clear()
            self._to_read.clear()
        self._is_reading_all |= self._reads_all
        self._reads_all = False
        self._listing.compare(reply.names, self._subscriptions.topics)

    def _seen(self, names: list[str]) -> None:
        """Read new topics, and after a broken connection all of them, because known ones may be out of date."""
        known: Container[str] = self._subscriptions.topics if self._is_listed else ()
        for name in names:
            is_back = name in self._to_drop or name in self._absent
            self._to_drop.pop(name, None)
            self._absent.discard(name)
            if is_back or (name not in known and name not in self._unread):
                self._unread.add(name)
                self._to_read.append(name)
            elif self._is_reading_all:
                self._to_read.append(name)

    def _missing(self, names: list[str]) -> None:
        self._to_drop.update(dict.fromkeys(names))
        self._absent.difference_update(names)

    def _compared(self) -> None:
        self._is_listed, self._is_reading_all = True, False
        if not self._is_listing:
            self._absent.clear()  # the others are neither listed nor known
        self._go_on()
        self._note_whether_known()

    def _go_on(self) -> None:
        """Do as much as one step allows."""
        while self._to_drop and self._scheduler.has_time:
            self._scheduler.spend(WORK_OF_A_READ)
            self._change(self._to_drop.popitem(last=False)[0], None)
        while self._to_read and self._scheduler.has_time:
            self._scheduler.spend(WORK_OF_A_READ)
            self._read_listed(self._to_read.popleft())
        if self._to_drop or self._to_read:
            self._scheduler.wake_soon("/listed", self._go_on)

    def _read_listed(self, name: str) -> None:
        if self._is_legal(name):
            self._read(name)
        else:
            self._unread.discard(name)
            self._note_whether_known()

    def _is_legal(self, name: str) -> bool:
        """Whether Kafka allows a topic of this name; agents would refuse commands for any other."""
        is_legal = paths.is_legal_topic(name)
        if not is_legal:
            text = f"{paths.BROKER_TOPICS}: {name!r:.80} is not a topic's name; it is left out"
            self._scheduler.complain(paths.BROKER_TOPICS, text)
        return is_legal

    def _read(self, name: str) -> None:
        self._scheduler.ask(Get(paths.topic(name), watch=True), self._topic_read, name, expected=ANY)

    def _topic_read(self, reply: Reply, name: str) -> None:
        """Handle a topic's node; an unreadable topic stays as it was, and delays no other.

        If the node is gone, the topic counts as deleted only if the list of topics exists and lacks it.
        """
        topic: Topic | None = self._subscriptions.topics.get(name, UNREAD)
        if isinstance(reply, Content):
            topic = self._decoded(name, reply, topic)
        elif reply == Refused(Refusal.NO_NODE):
            topic = self._subscriptions.topics.get(name)
            self._absent.add(name)
            if not self._is_listing:  # a listing that is under way was asked for later than this topic
                self._list()
        if isinstance(reply, Refused) and reply.refusal is not Refusal.NO_NODE:
            self._read_later(name)
        else:
            self._tries.pop(name, None)
        self._unread.discard(name)
        self._note_whether_known()
        self._change(name, topic)

    def _decoded(self, name: str, reply: Content, before: Topic | None) -> Topic | None:
        try:
            return cluster_nodes.decode_topic(reply.content, reply.stat.created_zxid)
        except NodeContentError as error:
            path = paths.topic(name)
            if len(self._named) < MAX_NAMED:
                self._named.add(name)
            place = path if name in self._named else paths.BROKER_TOPICS  # another program may have made thousands
            self._scheduler.complain(place, f"{path}: {error}; the topic stays as it was until its node changes")
            return before

    def _read_later(self, name: str) -> None:
        at_us = self._scheduler.now.mono_us + pause_us(self._tries[name])
        self._tries[name] += 1
        self._scheduler.wake(name, at_us, self._read, name)

    def _change(self, name: str, topic: Topic | None) -> None:
        before = self._subscriptions.topics.get(name)
        if topic == before:
            return
        self._subscriptions.set_topic(name, topic)
        self._changes[name] = _kind(before, topic)
        self._notify_groups()

    def _notify_groups(self) -> None:
        """Notify as many groups as one step allows, change by change."""
        while self._has_to_notify() and self._scheduler.has_time:
            self._scheduler.spend(WORK_OF_A_LOOK)
            group = self._to_notify.popleft()
            if self._subscriptions.concerns(self._reported, group):
                self._scheduler.spend(WORK_OF_A_NOTICE)
                self._notify(group, self._reported_kind, self._reported)
        self._subscriptions.are_changes_reported = not self._has_to_notify()
        if self._to_notify:
            self._scheduler.wake_soon("/changed", self._notify_groups)

    def _has_to_notify(self) -> bool:
        """Whether a group may not know of a change yet; proceeds to the next change if necessary."""
        while self._changes and not self._to_notify:
            self._reported, self._reported_kind = self._changes.popitem(last=False)
            self._to_notify.extend(self._subscriptions.may_concern(self._reported))
        return bool(self._to_notify)


def _kind(before: Topic | None, after: Topic | None) -> str:
    if after is None:
        return "topic-deleted"
    if before is None or before is UNREAD:
        return "topic-created"
    if not cluster_nodes.is_same_topic(before.incarnation, after.incarnation):
        return "topic-recreated"
    return "partitions-added" if before.partitions != after.partitions else "topic-renamed"
