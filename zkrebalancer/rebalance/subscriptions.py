"""The topics of the cluster, and the groups that subscribe to them.

Keeps the legacy names: `consumer_groups_per_topic` and `groups_with_wildcard_topics`.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.errors import PatternError
from zkrebalancer.protocol.patterns import MAX_PATTERN_LENGTH, TopicFilter
from zkrebalancer.protocol.registration import STATIC, Registration
from zkrebalancer.rebalance.kept import Kept

MAX_CACHED_FILTERS = 10_000
MAX_FILTER_BYTES = 64_000_000  # of all of them, as estimated
BYTES_PER_LOOK = 1_000  # of a compiled expression, with what RE2 keeps while it matches
MAX_SHARED = 1_000  # resolved subscriptions
MAX_SHARED_BYTES = 100_000_000  # of all of them, as estimated
BYTES_OF_A_NAME = 200  # of a topic in a subscription and in its key, without its characters
BYTES_OF_A_TOPIC = 50  # of one that exists
TOPICS_PER_PART = 500  # that are added at a time
MANY_TOPICS = 1_000  # a subscription that names more is noted as a whole, because each topic takes microseconds
LONG = 100  # topics; keys of subscriptions that name more are kept: making one of 20,000 names takes milliseconds
MAX_LONG = 16  # keys that are kept
MAX_LONG_BYTES = 50_000_000  # of all of them, as estimated
MAX_LOOKS_AT_ONCE = 500  # in one step
MAX_CHANGES = 10_000  # of topics; a subscription that has missed more is resolved anew

Wildcard = tuple[str, str]  # (white_list or black_list, regular expression)
Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Resolved:
    """The existing topics that one subscription wants, resolved in portions, because there may be ten thousand."""

    is_wanted: Callable[[str], bool]
    thread_count: Callable[[str], int]
    looks: int  # at one topic, see `TopicFilter`
    to_look_at: deque[str]
    changes_seen: int  # of topics, see `Subscriptions._change_count`
    bytes_of_names: int  # that the subscription has
    topics: Mapping[str, int] = field(default_factory=dict)  # in the order of their names
    others: dict[str, int] = field(default_factory=dict)  # wanted topics that are not among `topics` yet
    gone: set[str] = field(default_factory=set)  # topics among `topics` that no longer exist

    @property
    def size_bytes(self) -> int:
        """The memory that it takes at most, about."""
        return self.bytes_of_names + BYTES_OF_A_TOPIC * (len(self.to_look_at) + len(self.topics))

    def look(self, existing: Mapping[str, Topic], limit: int) -> int:
        """Examine topics until that has cost `limit` looks; return what it has cost."""
        looked_at = 0
        while self.to_look_at and looked_at < limit:
            looked_at += self.looks
            name = self.to_look_at.popleft()
            is_found, was_found = name in existing and self.is_wanted(name), name in self.topics
            self.others.pop(name, None)
            self.gone.discard(name)
            if is_found and not was_found:
                self.others[name] = self.thread_count(name)
            elif was_found and not is_found:
                self.gone.add(name)
        if (self.others or self.gone) and not self.to_look_at:
            self._merge()
        return looked_at

    def _merge(self) -> None:
        """Rebuild `topics` without a loop, because there may be ten thousand."""
        found = {**self.topics, **self.others}
        for name in self.gone:
            del found[name]
        names = sorted(found)
        self.topics = dict(zip(names, map(found.__getitem__, names), strict=True))
        self.others, self.gone = {}, set()


class Subscriptions:
    """The existing topics, and the groups that each of them concerns."""

    def __init__(self) -> None:
        """Start without topics and groups."""
        self.topics: dict[str, Topic] = {}
        self.are_topics_known = False  # whether every topic was read, so that groups may be planned
        self.are_changes_reported = True  # whether every group knows of the changes of its topics
        # topic -> group -> consumers that name it; group -> wildcard -> consumers
        self.consumer_groups_per_topic: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.groups_with_wildcard_topics: defaultdict[str, Counter[Wildcard]] = defaultdict(Counter)
        self._topics_of: defaultdict[str, set[str]] = defaultdict(set)  # group -> topics that its consumers name
        # group -> subscriptions with many topics, by their identity, each with the number of its consumers
        self._noted_whole: defaultdict[str, dict[int, tuple[Registration, int]]] = defaultdict(dict)
        self._filters = Kept[TopicFilter | PatternError](MAX_CACHED_FILTERS, MAX_FILTER_BYTES)  # by the wildcard
        self._resolved = Kept[_Resolved](MAX_SHARED, MAX_SHARED_BYTES)
        # Group -> what is resolved for its plan in parts: at most one for each group that is planned.
        self._under_way: dict[str, tuple[Registration, _Resolved]] = {}
        self._long = Kept[tuple[Registration, Hashable]](MAX_LONG, MAX_LONG_BYTES)  # by the registration's identity
        self._changes: deque[str] = deque(maxlen=MAX_CHANGES)  # the topics created or deleted last
        self._change_count = 0  # since the beginning

    def set_topic(self, name: str, topic: Topic | None) -> None:
        """Set a topic that was created or changed; None: it was deleted."""
        if (topic is None) != (name not in self.topics):
            self._changes.append(name)
            self._change_count += 1
        if topic is None:
            self.topics.pop(name, None)
        else:
            self.topics[name] = topic

    def clear(self) -> list[dict[Any, Any]]:
        """Forget every topic and every group; return what has to be freed."""
        rubbish: list[dict[Any, Any]] = [self.topics, self._topics_of, self._noted_whole]
        rubbish += [kept.clear() for kept in (self._filters, self._resolved, self._long)]
        rubbish += [self.consumer_groups_per_topic, self.groups_with_wildcard_topics]
        self.topics = {}
        self._under_way = {}
        self.consumer_groups_per_topic, self.groups_with_wildcard_topics = defaultdict(Counter), defaultdict(Counter)
        self._topics_of, self._noted_whole = defaultdict(set), defaultdict(dict)
        return rubbish

    def replace(self, group: str, before: Registration | None, after: Registration | None) -> None:
        """Replace a consumer's registration; no `before` for a new consumer, no `after` for one that is gone."""
        if before is not None:
            self.remove(group, before)
        if after is not None:
            self.add(group, after)

    def add(self, group: str, registration: Registration) -> None:
        """Add the registration of a consumer."""
        for _added in self.add_in_parts(group, registration):
            pass

    def add_in_parts(self, group: str, registration: Registration) -> Iterator[int]:
        """Add the registration of a consumer, some topics at a time; yield how many were added."""
        if len(registration.subscription) > MANY_TOPICS:
            whole = self._noted_whole[group]
            whole[id(registration)] = registration, whole.get(id(registration), (registration, 0))[1] + 1
            yield 1
        elif registration.pattern == STATIC:
            topics, named = iter(registration.subscription), self._topics_of[group]
            while part := list(islice(topics, TOPICS_PER_PART)):
                for topic in part:
                    self.consumer_groups_per_topic[topic][group] += 1
                named.update(part)
                yield len(part)
        else:
            self.groups_with_wildcard_topics[group][_wildcard(registration)] += 1
            yield 1

    def remove(self, group: str, registration: Registration) -> None:
        """Remove the registration of a consumer."""
        if len(registration.subscription) > MANY_TOPICS:
            whole = self._noted_whole[group]
            _known, count = whole.pop(id(registration), (registration, 1))
            if count > 1:
                whole[id(registration)] = registration, count - 1
            elif not whole:
                del self._noted_whole[group]
        elif registration.pattern == STATIC:
            for topic in registration.subscription:
                _count_down(self.consumer_groups_per_topic, topic, group)
                if group not in self.consumer_groups_per_topic.get(topic, ()):
                    self._topics_of[group].discard(topic)
        else:
            _count_down(self.groups_with_wildcard_topics, group, _wildcard(registration))

    def forget_group(self, group: str) -> None:
        """Drop all subscriptions of a group."""
        for topic in self._topics_of.pop(group, ()):
            del self.consumer_groups_per_topic[topic][group]
            if not self.consumer_groups_per_topic[topic]:
                del self.consumer_groups_per_topic[topic]
        self.groups_with_wildcard_topics.pop(group, None)
        self._noted_whole.pop(group, None)
        self._under_way.pop(group, None)

    def may_concern(self, topic: str) -> list[str]:
        """Return the groups that name a topic, and those with wildcards: see `concerns`."""
        naming = dict.fromkeys(self.consumer_groups_per_topic.get(topic, ()))
        naming.update(dict.fromkeys(group for group in self._noted_whole if self._is_in_whole(topic, group)))
        return [*naming, *(group for group in self.groups_with_wildcard_topics if group not in naming)]

    def concerns(self, topic: str, group: str) -> bool:
        """Whether consumers of the group subscribe to the topic, by name or by a wildcard.

        A group with many or long wildcards counts as concerned: its next plan matches them, some at a time.
        """
        if group in self.consumer_groups_per_topic.get(topic, ()) or self._is_in_whole(topic, group):
            return True
        filters = [self._filter(wildcard) for wildcard in self.groups_with_wildcard_topics.get(group, ())]
        compiled = [each for each in filters if not isinstance(each, PatternError)]
        if sum(each.looks for each in compiled) > MAX_LOOKS_AT_ONCE:
            return True
        return any(each.matches(topic) for each in compiled)

    def _is_in_whole(self, topic: str, group: str) -> bool:
        return any(topic in known.subscription for known, _count in self._noted_whole.get(group, {}).values())

    def resolve(self, registration: Registration) -> Mapping[str, int]:
        """Return existing topic -> consumer threads: the same mapping for all that subscribe alike.

        Raises:
            PatternError: the wildcard does not compile.

        """
        resolved = self._begun(registration)
        resolved.look(self.topics, sys.maxsize)
        return resolved.topics

    def forget_progress(self, group: str) -> None:
        """Forget what was examined in part for a group's plan: its member may have left meanwhile."""
        self._under_way.pop(group, None)

    def resolve_some(self, registration: Registration, limit: int, group: str | None = None) -> int:
        """Examine topics for at most `limit` looks, but at least one; return what it has cost.

        If that is less than `limit`, `resolve` is complete. `group`: whose plan needs it. What was examined for that is
        not lost, however many others are examined at the same time.

        Raises:
            PatternError: the wildcard does not compile.

        """
        known, held = (None, None) if group is None else self._under_way.pop(group, (None, None))
        resolved = self._begun(registration, held if known is registration else None)
        looks = resolved.look(self.topics, limit)
        if group is not None and looks >= limit:
            self._under_way[group] = registration, resolved
        elif resolved is held:
            self._keep(registration, resolved)
        return looks

    def _begun(self, registration: Registration, held: _Resolved | None = None) -> _Resolved:
        """Return what is resolved of a subscription, with all topics that still have to be examined."""
        resolved = held or self._resolved.get(self._key(registration))
        forgotten = self._change_count - len(self._changes)
        if resolved is None or resolved.changes_seen < forgotten:
            to_look_at = deque(self.topics if registration.pattern != STATIC else registration.subscription)
            wanted, size_bytes = self._wanted(registration), _bytes_of_names(registration)
            resolved = _Resolved(*wanted, to_look_at, self._change_count, size_bytes)
            self._keep(registration, resolved)
        if resolved.changes_seen < self._change_count:
            resolved.to_look_at.extend(islice(self._changes, resolved.changes_seen - forgotten, None))
            resolved.changes_seen = self._change_count
            self._keep(registration, resolved)
        return resolved

    def _keep(self, registration: Registration, resolved: _Resolved) -> None:
        self._resolved.keep(self._key(registration), resolved, resolved.size_bytes)

    def _key(self, registration: Registration) -> Hashable:
        if len(registration.subscription) <= LONG:
            return _key(registration)
        known = self._long.get(id(registration))
        if known is None or known[0] is not registration:
            known = registration, _key(registration)
            self._long.keep(id(registration), known, _bytes_of_names(registration))
        return known[1]

    def _wanted(self, registration: Registration) -> tuple[Callable[[str], bool], Callable[[str], int], int]:
        """Return whether a registration wants a topic, with how many threads, and what it costs to know that."""
        if registration.pattern == STATIC:
            return registration.subscription.__contains__, registration.subscription.__getitem__, 1
        compiled = self._filter(_wildcard(registration))
        if isinstance(compiled, PatternError):
            raise compiled
        (thread_count,) = registration.subscription.values()
        return compiled.matches, lambda _topic: thread_count, compiled.looks

    def _filter(self, wildcard: Wildcard) -> TopicFilter | PatternError:
        known = self._filters.get(wildcard)
        if known is None:
            known = _compiled(wildcard)
            expression = wildcard[1]
            if len(expression) <= MAX_PATTERN_LENGTH:  # otherwise it is refused at once
                looks = 1 if isinstance(known, PatternError) else known.looks
                self._filters.keep(wildcard, known, len(expression) + BYTES_PER_LOOK * looks)
        return known


def _compiled(wildcard: Wildcard) -> TopicFilter | PatternError:
    try:
        return TopicFilter(*wildcard)
    except PatternError as error:
        return error


def _key(registration: Registration) -> Hashable:
    """Return what those that subscribe alike share: mostly, all threads are as many, and pairs would take longer."""
    topics = registration.subscription
    counts = set(topics.values())
    names = frozenset(topics) if len(counts) == 1 else frozenset(topics.items())
    return registration.pattern, names, counts.pop() if len(counts) == 1 else 0


def _bytes_of_names(registration: Registration) -> int:
    names = registration.subscription
    return BYTES_OF_A_NAME * len(names) + len("".join(names))


def _wildcard(registration: Registration) -> Wildcard:
    return registration.pattern, next(iter(registration.subscription))


def _count_down(counters: dict[str, Counter[Key]], name: str, key: Key) -> None:
    counter = counters[name]
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
    if not counter:
        del counters[name]
