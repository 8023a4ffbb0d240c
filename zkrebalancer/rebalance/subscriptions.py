"""The topics of the cluster, and the groups that subscribe to them.

Keeps the legacy names: `consumer_groups_per_topic` and `groups_with_wildcard_topics`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from typing import TypeVar

from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.errors import PatternError
from zkrebalancer.protocol.patterns import TopicFilter
from zkrebalancer.protocol.registration import STATIC, Registration

MAX_CACHED_FILTERS = 10_000
MAX_SHARED = 1_000  # resolved subscriptions

Wildcard = tuple[str, str]  # (white_list or black_list, regular expression)
Key = TypeVar("Key", bound=Hashable)


class Subscriptions:
    """The topics that exist, and which groups each of them concerns."""

    def __init__(self) -> None:
        """Begin without topics and groups."""
        self.topics: dict[str, Topic] = {}
        self.are_topics_known = False  # whether every topic was read, so that groups may be planned
        # topic -> group -> consumers that name it; group -> wildcard -> consumers
        self.consumer_groups_per_topic: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.groups_with_wildcard_topics: defaultdict[str, Counter[Wildcard]] = defaultdict(Counter)
        self._filters: dict[Wildcard, TopicFilter | PatternError] = {}
        self._resolved: dict[Hashable, Mapping[str, int]] = {}  # until the set of topics changes

    def set_topic(self, name: str, topic: Topic | None) -> None:
        """A topic was created or changed, or (None) deleted."""
        if (topic is None) != (name not in self.topics):
            self._resolved.clear()
        if topic is None:
            self.topics.pop(name, None)
        else:
            self.topics[name] = topic

    def clear(self) -> None:
        """Forget every topic and every group."""
        self.topics.clear()
        self.consumer_groups_per_topic.clear()
        self.groups_with_wildcard_topics.clear()
        self._resolved.clear()

    def replace(self, group: str, before: Registration | None, after: Registration | None) -> None:
        """A consumer of the group has changed its registration, has come (no `before`) or gone (no `after`)."""
        if before is not None:
            self.remove(group, before)
        if after is not None:
            self.add(group, after)

    def add(self, group: str, registration: Registration) -> None:
        """A consumer of the group has registered."""
        if registration.pattern == STATIC:
            for topic in registration.subscription:
                self.consumer_groups_per_topic[topic][group] += 1
        else:
            self.groups_with_wildcard_topics[group][_wildcard(registration)] += 1

    def remove(self, group: str, registration: Registration) -> None:
        """A consumer of the group is gone."""
        if registration.pattern == STATIC:
            for topic in registration.subscription:
                _count_down(self.consumer_groups_per_topic, topic, group)
        else:
            _count_down(self.groups_with_wildcard_topics, group, _wildcard(registration))

    def forget_group(self, group: str) -> None:
        """Drop all interest of a group, whatever was counted."""
        for topic in [topic for topic, groups in self.consumer_groups_per_topic.items() if group in groups]:
            del self.consumer_groups_per_topic[topic][group]
            if not self.consumer_groups_per_topic[topic]:
                del self.consumer_groups_per_topic[topic]
        self.groups_with_wildcard_topics.pop(group, None)

    def groups_interested_in(self, topic: str) -> list[str]:
        """Return the groups that a change of the topic concerns, by name or by wildcard, sorted."""
        interested = set(self.consumer_groups_per_topic.get(topic, ()))
        for group, wildcards in self.groups_with_wildcard_topics.items():
            if any(self._matches(wildcard, topic) for wildcard in wildcards):
                interested.add(group)
        return sorted(interested)

    def resolve(self, registration: Registration) -> Mapping[str, int]:
        """Return existing topic -> consumer threads: the same mapping to all that subscribe alike.

        Raises:
            PatternError: the wildcard does not compile.

        """
        key = registration.pattern, frozenset(registration.subscription.items())
        if key not in self._resolved:
            if len(self._resolved) >= MAX_SHARED:
                self._resolved.clear()
            self._resolved[key] = self._resolve(registration)
        return self._resolved[key]

    def _resolve(self, registration: Registration) -> dict[str, int]:
        if registration.pattern == STATIC:
            return {topic: n for topic, n in registration.subscription.items() if topic in self.topics}
        compiled = self._filter(_wildcard(registration))
        if isinstance(compiled, PatternError):
            raise compiled
        (thread_count,) = registration.subscription.values()
        return dict.fromkeys((topic for topic in sorted(self.topics) if compiled.matches(topic)), thread_count)

    def _matches(self, wildcard: Wildcard, topic: str) -> bool:
        compiled = self._filter(wildcard)
        return not isinstance(compiled, PatternError) and compiled.matches(topic)

    def _filter(self, wildcard: Wildcard) -> TopicFilter | PatternError:
        if wildcard not in self._filters:
            if len(self._filters) >= MAX_CACHED_FILTERS:
                self._filters.clear()
            try:
                self._filters[wildcard] = TopicFilter(*wildcard)
            except PatternError as error:
                self._filters[wildcard] = error
        return self._filters[wildcard]


def _wildcard(registration: Registration) -> Wildcard:
    return registration.pattern, next(iter(registration.subscription))


def _count_down(counters: dict[str, Counter[Key]], name: str, key: Key) -> None:
    counter = counters[name]
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
    if not counter:
        del counters[name]
