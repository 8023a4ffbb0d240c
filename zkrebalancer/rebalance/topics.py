"""The topic listener and the topic partition listener: keep the known topics equal to `/brokers/topics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from zkrebalancer.protocol import calls, cluster_nodes, paths
from zkrebalancer.protocol.calls import Children, Content, Get, ListChildren, Refusal, Refused, Reply
from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.rebalance.scheduler import ANY, OF_A_ROOT, Scheduler, pause_us
from zkrebalancer.rebalance.subscriptions import Subscriptions

OWNER = "/topics"  # no group has such a name


class TopicListener:
    """Reads and watches every topic; notifies the groups that a change concerns."""

    def __init__(self, scheduler: Scheduler, subscriptions: Subscriptions, notify: Callable[[str, str], None]) -> None:
        """`notify(group, kind of trigger)` is called for every group that is interested in a topic that changed."""
        self._scheduler = scheduler.part(OWNER)
        self._subscriptions = subscriptions
        self._notify = notify
        self._unread: set[str] | None = None  # topics that were listed and not read yet; None: not listed yet
        self._refused: set[str] = set()  # names that no topic can have; each was logged once
        self._tries: Counter[str] = Counter()  # at reading topics that may not be read

    def read_all(self) -> None:
        """Read the topics anew: at startup, and when the watches are gone with a connection."""
        self.forget()
        self._list()

    def forget(self) -> None:
        """Nothing is watched any more."""
        self._scheduler.forget()
        self._unread = None
        self._note_whether_known()

    def _note_whether_known(self) -> None:
        """Groups may be planned once every topic was read."""
        self._subscriptions.are_topics_known = self._unread is not None and not self._unread

    def watched(self, event: calls.Watched) -> None:
        """The list of topics changed, or one topic."""
        if event.path == paths.BROKER_TOPICS:
            self._list()
        else:
            self._read(event.path.removeprefix(paths.BROKER_TOPICS + "/"))

    def _list(self) -> None:
        listing = ListChildren(paths.BROKER_TOPICS, watch=True)
        self._scheduler.ask(listing, self._listed, expected=OF_A_ROOT)

    def _listed(self, reply: Reply) -> None:
        if not isinstance(reply, Children):
            return
        names = {name for name in reply.names if self._is_legal(name)}
        known = self._subscriptions.topics.keys()
        if self._unread is None:
            self._unread = names  # nothing is watched: what is known may be out of date
        else:
            self._unread = (self._unread & names) | (names - known)
        self._note_whether_known()
        for name in sorted(known - names):
            self._change(name, None)
        for name in sorted(self._unread):
            self._read(name)

    def _is_legal(self, name: str) -> bool:
        """Whether Kafka can have such a topic; commands for any other would be refused by every agent."""
        if not paths.is_legal_topic(name) and name not in self._refused:
            self._refused.add(name)
            self._scheduler.warn(f"{paths.BROKER_TOPICS}: {name!r:.80} is not a topic's name; it is left out")
        return name not in self._refused

    def _read(self, name: str) -> None:
        self._scheduler.ask(Get(paths.topic(name), watch=True), self._topic_read, name, expected=ANY)

    def _topic_read(self, reply: Reply, name: str) -> None:
        """One topic that cannot be read stays as it was, and holds up no other."""
        topic = self._subscriptions.topics.get(name)
        if isinstance(reply, Content):
            topic = self._decoded(name, reply, topic)
        elif reply == Refused(Refusal.NO_NODE):
            topic = None
        if isinstance(reply, Refused) and reply.refusal is not Refusal.NO_NODE:
            self._read_later(name, reply)
        else:
            self._tries.pop(name, None)
        if self._unread is not None:
            self._unread.discard(name)
        self._note_whether_known()
        self._change(name, topic)

    def _decoded(self, name: str, reply: Content, before: Topic | None) -> Topic | None:
        try:
            return cluster_nodes.decode_topic(reply.content, reply.stat.created_zxid)
        except NodeContentError as error:
            self._scheduler.warn(f"{paths.topic(name)}: {error}; the topic stays as it was until its node changes")
            return before

    def _read_later(self, name: str, reply: Refused) -> None:
        self._scheduler.note_refused(Get(paths.topic(name)), reply.refusal)
        at_us = self._scheduler.now.mono_us + pause_us(self._tries[name])
        self._tries[name] += 1
        self._scheduler.wake(name, at_us, self._read, name)

    def _change(self, name: str, topic: Topic | None) -> None:
        before = self._subscriptions.topics.get(name)
        if topic == before:
            return
        self._subscriptions.set_topic(name, topic)
        for group in self._subscriptions.groups_interested_in(name):
            self._notify(group, _kind(before, topic))


def _kind(before: Topic | None, after: Topic | None) -> str:
    if before is None:
        return "topic-created"
    if after is None:
        return "topic-deleted"
    if not cluster_nodes.is_same_topic(before.incarnation, after.incarnation):
        return "topic-recreated"
    return "partitions-added" if before.partitions != after.partitions else "topic-renamed"
