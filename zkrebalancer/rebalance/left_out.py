"""Leaves out, for a while, a consumer or a topic for which ZooKeeper refuses a write, so that the others continue.

What was refused is tried again by itself where that is possible: a new plan for each try would stop an eager group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Delete, Operation, Refused, Reply, SetContent
from zkrebalancer.rebalance import facts, static_members, topic_reset
from zkrebalancer.rebalance.batch import given_record
from zkrebalancer.rebalance.scheduler import ANY, FIRST_PAUSE_US, RACES, PartScheduler, pause_us
from zkrebalancer.rebalance.view import GroupView, Member

MAX_TRIED = 64  # consumers, or topics, at once


class LeftOut:
    """The consumers and topics of one group that get no start now."""

    def __init__(self, scheduler: PartScheduler, view: GroupView, report: Callable[[facts.Fact], None]) -> None:
        """Start without exclusions."""
        self._scheduler = scheduler
        self._view = view
        self._report = report
        # Consumer -> path and size of a write for it that was refused; the last one was tried last.
        self._writes: dict[str, tuple[str, int]] = {}
        self._topic_tries = 0  # in a row that stored no topic's incarnation

    def reset(self) -> None:
        """Forget the tries of topics, because the group is read again."""
        self._topic_tries = 0

    def adopt(self) -> None:
        """After the group was read again, go on leaving out the same ones, without a plan to try them."""
        self._writes = {name: write for name, write in self._writes.items() if name in self._view.members}
        for consumer in self._writes:
            self._view.members[consumer].is_refused = True
        self._try_later()
        self._try_topics_later()

    # Consumers ------------------------------------------------------------------------------------------------------

    def leave_out(self, refused: Mapping[str, Operation]) -> Iterable[str]:
        """Leave out consumers, and return them: for each, ZooKeeper refuses a write that concerns it alone."""
        for consumer, write in refused.items():
            member = self._view.members.get(consumer)
            if member is not None:
                member.refused_tries += 1
                size = len(write.content) if isinstance(write, Create | SetContent) else 0
                self._writes[consumer] = write.path, size
                self.close(member)
        self._try_later()
        return refused.keys()

    def close(self, member: Member) -> None:
        """Let a consumer keep what it holds, and give it nothing more, until its writes are tried with success."""
        if not member.is_refused:
            member.is_refused = True
            self._view.touch(member.consumer)
            self._report(facts.Changed("member-refused", member.consumer))

    def _try_later(self) -> None:
        members = self._view.members
        tries = [members[consumer].refused_tries for consumer in self._writes if consumer in members]
        if tries:
            at_us = self._scheduler.now.mono_us + pause_us(min(tries) - 1)
            self._scheduler.wake("refused", at_us, self._try_some)

    def _try_some(self) -> None:
        """Try some of the writes alone, each time others."""
        for consumer in list(islice(self._writes, MAX_TRIED)):
            write = self._writes.pop(consumer)
            member = self._view.members.get(consumer)
            probe = None if member is None else self._probe(member, *write)
            if member is None or probe is None:
                self.take_in(consumer)
                continue
            self._writes[consumer] = write
            member.refused_tries += 1
            self._scheduler.write(probe, self._tried, consumer, expected=ANY)
        self._try_later()

    def _probe(self, member: Member, path: str, size: int) -> list[Operation] | None:
        """Return a write that needs the same right and room, and changes nothing; None: only a plan can try it."""
        view, consumer = self._view, member.consumer
        if path == paths.given(view.group, consumer):
            if member.given is None:
                return None
            return [given_record(view, consumer, member.given.keys(), self._scheduler.room() // 2)]
        channel = paths.channel(view.group, consumer)
        if path.startswith(f"{channel}/"):
            path = f"{channel}/{paths.PROBE}"
        elif member.instance is None or member.instance in view.unreadable_statics:
            return None
        elif member.instance in view.statics:
            return [static_members.stores(view, member.instance, view.statics[member.instance][0])]
        return [Create(path, bytes(size)), Delete(path)]

    def _tried(self, reply: Reply, consumer: str) -> None:
        if isinstance(reply, Refused) and reply.refusal not in RACES and not reply.index:
            return  # the first operation is what was refused before
        path, _size = self._writes.pop(consumer, ("", 0))
        self._note_written(consumer, path, reply)
        self.take_in(consumer)
        if self._writes:  # mostly, one right was missing for all
            self._scheduler.wake("refused", self._scheduler.now.mono_us + FIRST_PAUSE_US, self._try_some)

    def _note_written(self, consumer: str, path: str, reply: Reply) -> None:
        view, instance = self._view, path.rpartition("/")[2]
        if isinstance(reply, Refused):
            return
        if path == paths.given(view.group, consumer):
            view.recorded.add(consumer)
        elif instance in view.statics and path == paths.static(view.group, instance):
            static_members.note_stored(view, instance, view.statics[instance][0])

    def answered(self, consumer: str) -> None:
        """Take in a consumer that was left out for a late command only: that is answered, or gone."""
        if consumer not in self._writes:
            self.take_in(consumer)

    def take_in(self, consumer: str) -> None:
        """Let the next plan give a consumer its share."""
        member = self._view.members.get(consumer)
        if member is not None and member.is_refused:
            member.is_refused = False
            self._view.touch(consumer)
            self._report(facts.Changed("retry"))

    # Topics ---------------------------------------------------------------------------------------------------------

    def bar(self, topics: Iterable[str]) -> None:
        """Start nothing of these topics, because ZooKeeper refuses to store an incarnation: no plan waits for that."""
        self._view.barred.update(dict.fromkeys(topics))
        self._try_topics_later()

    def _try_topics_later(self) -> None:
        if self._view.barred and not self._scheduler.has_timer("barred"):
            at_us = self._scheduler.now.mono_us + pause_us(self._topic_tries)
            self._topic_tries += 1
            self._scheduler.wake("barred", at_us, self._try_topics)

    def _try_topics(self) -> None:
        """Try some of the writes alone, each time others."""
        barred = self._view.barred
        count = len(barred)
        for topic in list(islice(barred, MAX_TRIED)):
            del barred[topic]
            names = None if self._view.is_stale(topic) else self._view.names_to_store(topic)
            if names is not None:  # otherwise it is gone, or stored, or its offsets have to be deleted before
                barred[topic] = None
                stores = topic_reset.stores(self._view, topic, names)
                self._scheduler.write(stores, self._topic_tried, topic, names, expected=ANY)
        self._try_topics_later()
        if len(barred) < count:
            self._start_more()

    def _topic_tried(self, reply: Reply, topic: str, names: str) -> None:
        """Once a write succeeds, start all topics: mostly, one right was missing for all of them."""
        if isinstance(reply, Refused):
            if reply.refusal in RACES:
                self._report(facts.Outdated())
            return
        self._view.incarnations[topic] = self._view.recorded_incarnations[topic] = names
        if topic in self._view.barred:
            self._view.barred.clear()
            self._topic_tries = 0
            self._scheduler.cancel_wake("barred")
            self._start_more()
        if self._view.is_stale(topic):
            self._report(facts.Changed("topic-recreated", topic))  # while the transaction was in flight

    def _start_more(self) -> None:
        """Let the next plan start partitions that no member could get so far."""
        self._view.is_unbarred = True
        self._report(facts.Changed("retry"))
