"""Who is interested in which topic: the topics of the cluster, and the groups that want them.

Keeps the legacy names: `consumer_groups_per_topic` and `groups_with_wildcard_topics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.errors import PatternError
from zkrebalancer.protocol.patterns import TopicFilter
from zkrebalancer.protocol.registration import STATIC, Registration

MAX_CACHED_FILTERS = 10_000  # and as many lists of matching topics

Wildcard = tuple[str, str]  # (white_list or black_list, regular expression)
Key = TypeVar("Key", bound=Hashable)


class Subscriptions:
    """The topics that exist, and which groups each of them concerns."""

    def __init__(self) -> None:
        """Know no topic and no group."""
        self.topics: dict[str, Topic] = {}
        self.consumer_groups_per_topic: dict[str, Counter[str]] = {}  # topic -> group -> consumers that name it
        self.groups_with_wildcard_topics: dict[str, Counter[Wildcard]] = {}  # group -> wildcard -> consumers
        self._filters: dict[Wildcard, TopicFilter | PatternError] = {}
        self._matching: dict[Wildcard, tuple[str, ...]] = {}  # existing topics, until the set of topics changes

    def set_topic(self, name: str, topic: Topic | None) -> None:
        """A topic was created or changed, or (None) deleted."""
        if (topic is None) != (name not in self.topics):
            self._matching.clear()
        if topic is None:
            self.topics.pop(name, None)
        else:
            self.topics[name] = topic

    def clear(self) -> None:
        """Forget every topic and every group."""
        self.topics.clear()
        self.consumer_groups_per_topic.clear()
        self.groups_with_wildcard_topics.clear()
        self._matching.clear()

    def add(self, group: str, registration: Registration) -> None:
        """A consumer of the group has registered."""
        if registration.pattern == STATIC:
            for topic in registration.subscription:
                self.consumer_groups_per_topic.setdefault(topic, Counter())[group] += 1
        else:
            self.groups_with_wildcard_topics.setdefault(group, Counter())[_wildcard(registration)] += 1

    def remove(self, group: str, registration: Registration) -> None:
        """A consumer of the group is gone."""
        if registration.pattern == STATIC:
            for topic in registration.subscription:
                _count_down(self.consumer_groups_per_topic, topic, group)
        else:
            _count_down(self.groups_with_wildcard_topics, group, _wildcard(registration))

    def groups_interested_in(self, topic: str) -> list[str]:
        """Return the groups that a change of the topic concerns, by name or by wildcard, sorted."""
        interested = set(self.consumer_groups_per_topic.get(topic, ()))
        for group, wildcards in self.groups_with_wildcard_topics.items():
            if any(self._matches(wildcard, topic) for wildcard in wildcards):
                interested.add(group)
        return sorted(interested)

    def resolve(self, registration: Registration) -> Mapping[str, int]:
        """Return existing topic -> consumer threads.

        Raises:
            PatternError: the wildcard does not compile.

        """
        if registration.pattern == STATIC:
            return {topic: n for topic, n in registration.subscription.items() if topic in self.topics}
        wildcard = _wildcard(registration)
        if wildcard not in self._matching:
            compiled = self._filter(wildcard)
            if isinstance(compiled, PatternError):
                raise compiled
            self._matching[wildcard] = tuple(topic for topic in sorted(self.topics) if compiled.matches(topic))
        return dict.fromkeys(self._matching[wildcard], next(iter(registration.subscription.values())))

    def _matches(self, wildcard: Wildcard, topic: str) -> bool:
        compiled = self._filter(wildcard)
        return not isinstance(compiled, PatternError) and compiled.matches(topic)

    def _filter(self, wildcard: Wildcard) -> TopicFilter | PatternError:
        if wildcard not in self._filters:
            if len(self._filters) >= MAX_CACHED_FILTERS:
                self._filters.clear()
                self._matching.clear()
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
