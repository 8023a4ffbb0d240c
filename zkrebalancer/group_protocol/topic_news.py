"""Tells KIP-848 groups of changed topics, some of them in each step: one new topic may concern all groups."""

from __future__ import annotations

from collections.abc import Mapping

from zkrebalancer.group_protocol.classic_group import ClassicGroup
from zkrebalancer.group_protocol.consumer_group import ConsumerGroup
from zkrebalancer.group_protocol.scheduler import Contain, Scheduler
from zkrebalancer.group_protocol.topics import Topic, Topics

LOOKS_PER_STEP = 1_000  # at topics and members of groups, each of which takes some microseconds
TIMER = ("\ud800", "topics", "")  # no request can name this group: its name cannot be written in UTF-8


class TopicNews:
    """The groups that have not looked at the present topics yet."""

    def __init__(
        self, scheduler: Scheduler, topics: Topics, groups: Mapping[str, ClassicGroup | ConsumerGroup], contain: Contain
    ) -> None:
        """Begin without news; `groups`: all groups by name, which change; `contain` runs an action on a group."""
        self._scheduler = scheduler
        self._topics = topics
        self._groups = groups
        self._contain = contain
        self._untold: dict[str, None] = {}

    def read(self, by_name: Mapping[str, Topic]) -> None:
        """Replace the topics, and let groups look at them, as many as one step allows."""
        topics = self._topics
        groups = [group for group in self._groups.values() if isinstance(group, ConsumerGroup)]
        in_use = {member.topic_regex for group in groups for member in group.roster.members.values()}
        may_rename = bool(topics.without_ids) or not topics.is_known
        topics.replace(by_name, in_use)
        if may_rename or topics.without_ids:  # clients may report partitions by the new ids from now on
            for group in groups:
                self._contain(group.group_id, group.renew_ids)
        self._untold = dict.fromkeys(group.group_id for group in groups)
        self._tell_some()

    def _tell_some(self) -> None:
        looks = 0
        while self._untold and looks < LOOKS_PER_STEP:
            name = next(iter(self._untold))
            del self._untold[name]
            group = self._groups.get(name)
            if isinstance(group, ConsumerGroup):
                self._contain(name, group.topics_changed)
                looks += 1 + len(group.seen) + len(group.roster.members)
        if self._untold:
            self._scheduler.start_timer(TIMER, 1, self._tell_some)
