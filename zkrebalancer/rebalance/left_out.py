"""Leaves out, for a while, a consumer or a topic for which ZooKeeper refuses a write, so that the others continue.

What was refused is tried again by itself where that is possible: a new plan for each try would stop an eager group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Done, Refused, Reply
from zkrebalancer.rebalance import facts, topic_reset
from zkrebalancer.rebalance.batch import given_record
from zkrebalancer.rebalance.scheduler import ANY, RACES, PartScheduler, pause_us
from zkrebalancer.rebalance.view import GroupView

MAX_TOPICS_TRIED = 64  # at once


class LeftOut:
    """The consumers and topics of one group that get no start now."""

    def __init__(
        self,
        scheduler: PartScheduler,
        view: GroupView,
        report: Callable[[facts.Fact], None],
        serve_again: Callable[[], None],
    ) -> None:
        """Leave out nobody. `serve_again()` continues the plan with what was left out of it."""
        self._scheduler = scheduler
        self._view = view
        self._report = report
        self._serve_again = serve_again
        self._topic_tries = 0  # in a row that stored no topic's incarnation

    def reset(self) -> None:
        """Forget everything, because the group is read again."""
        self._topic_tries = 0

    # Consumers ------------------------------------------------------------------------------------------------------

    def leave_out(self, consumer: str, path: str) -> None:
        """Leave out a consumer: ZooKeeper refuses a write at `path`, which is its alone."""
        member = self._view.members.get(consumer)
        if member is not None:
            self._wait(consumer, member.refused_tries, path)
            member.refused_tries += 1
            member.is_refused = True
            self._view.touch(consumer)
            self._report(facts.Changed("member-refused", consumer))

    def _wait(self, consumer: str, tries: int, path: str) -> None:
        at_us = self._scheduler.now.mono_us + pause_us(tries)
        self._scheduler.wake(("refused", consumer), at_us, self._try_again, consumer, path)

    def _try_again(self, consumer: str, path: str) -> None:
        """Try the write alone, if that is the record of what was given, and the consumer needs no command before."""
        view = self._view
        member = view.members.get(consumer)
        if member is None:
            return
        if path != paths.given(view.group, consumer) or member.given is None or view.held_by(consumer):
            self._take_in(consumer)
            return
        record = given_record(view, consumer, member.given.keys(), self._scheduler.room() // 2)
        self._scheduler.write([record], self._tried, consumer, path, expected=ANY)

    def _tried(self, reply: Reply, consumer: str, path: str) -> None:
        member = self._view.members.get(consumer)
        if isinstance(reply, Done):
            self._view.recorded.add(consumer)
        if member is not None and isinstance(reply, Refused) and reply.refusal not in RACES:
            self._wait(consumer, member.refused_tries, path)
            member.refused_tries += 1
        else:
            self._take_in(consumer)

    def _take_in(self, consumer: str) -> None:
        member = self._view.members.get(consumer)
        if member is not None:
            member.is_refused = False
            self._view.touch(consumer)
            self._report(facts.Changed("retry"))

    # Topics ---------------------------------------------------------------------------------------------------------

    def bar(self, topics: Iterable[str]) -> None:
        """Start nothing of these topics, because ZooKeeper refuses to store an incarnation."""
        self._view.barred.update(dict.fromkeys(topics))
        if self._view.barred and not self._scheduler.has_timer("barred"):
            at_us = self._scheduler.now.mono_us + pause_us(self._topic_tries)
            self._topic_tries += 1
            self._scheduler.wake("barred", at_us, self._try_topics)

    def _try_topics(self) -> None:
        """Try some of the writes alone, each time others."""
        barred = self._view.barred
        for topic in list(islice(barred, MAX_TOPICS_TRIED)):
            del barred[topic]
            names = None if self._view.is_stale(topic) else self._view.names_to_store(topic)
            if names is not None:  # otherwise it is gone, or stored, or its offsets have to be deleted before
                barred[topic] = None
                stores = topic_reset.stores(self._view, topic, names)
                self._scheduler.write(stores, self._topic_tried, topic, names, expected=ANY)
        self.bar(())
        self._serve_again()

    def _topic_tried(self, reply: Reply, topic: str, names: str) -> None:
        """Once a write succeeds, start all topics: mostly, one right was missing for all of them."""
        if isinstance(reply, Refused):
            if reply.refusal in RACES:
                self._report(facts.Outdated())
            return
        self._view.incarnations[topic] = self._view.recorded_incarnations[topic] = names
        self._view.barred.clear()
        self._topic_tries = 0
        self._scheduler.cancel_wake("barred")
        self._serve_again()
        if self._view.is_stale(topic):
            self._report(facts.Changed("topic-recreated", topic))  # while the transaction was in flight
