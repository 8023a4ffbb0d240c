"""The cluster's topics, and what a subscription selects of them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from uuid import UUID, uuid5

from zkrebalancer.group_protocol.stored import StoredConsumerGroup, StoredContent, StoredTopic
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.patterns import TopicFilter
from zkrebalancer.protocol.registration import WHITE_LIST

MAX_SELECTED_BYTES = 128 << 20  # of expressions and the topics that they select: clients may send any number of them
EXPRESSION_BYTES = 500  # that a remembered expression uses, besides its characters
SELECTED_BYTES = 64  # that a topic uses which it selects
MAX_ALIKE = 8  # subscriptions whose topics are remembered: most members subscribe as the one before them
TOPICS_PER_TURN = 500  # that are looked at between two pauses if the expression is simple: some milliseconds
NO_ID = UUID(int=0)  # what brokers say whose `inter.broker.protocol.version` is below 2.8
MADE_UP = UUID("6f0c3c0e-5d0b-4b53-9d7b-0a4f6a2f5e11")  # the namespace of ids that are made up here; never changes


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic; if it is deleted and created again, its id changes, unless it is made up."""

    topic_id: UUID
    partition_count: int
    has_id: bool = field(default=True, compare=False)  # at the brokers

    @staticmethod
    def of(name: str, topic_id: UUID, partition_count: int) -> Topic:
        """Return a topic as brokers show it; all topics without an id have the same one there."""
        has_id = topic_id != NO_ID
        return Topic(topic_id if has_id else made_up_id(name), partition_count, has_id)


class Topics:
    """The known topics; `is_known` is False until they are read for the first time."""

    def __init__(self) -> None:
        self.by_name: Mapping[str, Topic] = {}
        self.name_of: dict[UUID, str] = {}
        self.without_ids: frozenset[str] = frozenset()  # at the brokers
        self.is_known = False
        self._matching: dict[str, frozenset[str]] = {}
        self._matching_bytes = 0
        self._selected: dict[tuple[tuple[str, ...], str], frozenset[str]] = {}  # by names and expression

    def replace(self, by_name: Mapping[str, Topic], in_use: AbstractSet[str] | None = None) -> None:
        """Replace the known topics; `in_use`: the expressions to keep, None: all."""
        if in_use is not None:
            self._forget(self._matching.keys() - in_use)
        former, self.by_name = self.by_name, by_name
        self._selected.clear()
        self.name_of = names_of(by_name)
        self.without_ids = frozenset(name for name, topic in by_name.items() if not topic.has_id)
        self.is_known = True
        self._match_again(by_name.keys() - former.keys(), former.keys() - by_name.keys())

    def remember(self, stored: Mapping[str, Topic]) -> None:
        """Know topics of groups that were read, which brokers may not list: the topic reader looks for them."""
        if self.is_known and not stored.keys() <= self.by_name.keys():
            self.replace({**stored, **self.by_name})

    def renewed_ids(self, seen: Mapping[str, Topic]) -> dict[UUID, UUID]:
        """Return former id -> present id of topics that are the same, although one of the two ids is made up."""
        changed = {
            name: (topic.topic_id, self.by_name[name].topic_id)
            for name, topic in seen.items()
            if name in self.by_name and self.by_name[name].topic_id != topic.topic_id
        }
        return {former: present for name, (former, present) in changed.items() if made_up_id(name) in {former, present}}

    def selected(self, names: tuple[str, ...], expression: str) -> frozenset[str]:
        """Return the existing topics that a subscription selects: the same set for members that subscribe alike.

        A group may have a thousand members, each of which wants ten thousand topics.
        """
        key = names, expression
        found = self._selected.get(key)
        if found is None:
            found = frozenset(name for name in names if name in self.by_name)
            if expression:
                matching = self.matching(expression)
                found = found | matching if found else matching
            if len(self._selected) == MAX_ALIKE:
                del self._selected[next(iter(self._selected))]
            self._selected[key] = found
        return found

    def selected_by_all(self, subscriptions: Iterable[tuple[tuple[str, ...], str]]) -> dict[str, Topic]:
        """Return name -> topic of all that some of these subscriptions select."""
        names, last = set[str](), frozenset[str]()
        for one in subscriptions:
            selected = self.selected(*one)
            if selected is not last:
                names |= selected
                last = selected
        return {name: self.by_name[name] for name in names}

    def matching(self, expression: str) -> frozenset[str]:
        """Return the topics whose whole name a checked regular expression matches, internal ones too, as in Kafka.

        In a central group the coordinator assigns none of these.
        """
        selected = self._matching.get(expression)
        if selected is None:
            selected = _selected(expression, self.by_name)
            self._remember(expression, selected)
        return selected

    def has_matched(self, expression: str) -> bool:
        """Whether it is known what an expression matches."""
        return expression in self._matching

    def match_in_turns(self, expression: str) -> Iterator[None]:
        """Find out what an expression matches, with pauses, so that `matching` knows it, unless topics have changed.

        Raises:
            PatternError: it is invalid.

        """
        by_name, filter_, selected = self.by_name, _of_whole_names(expression), list[str]()
        per_turn = max(1, TOPICS_PER_TURN // filter_.looks)
        for number, name in enumerate(by_name, 1):
            if filter_.matches_internal(name):
                selected.append(name)
            if not number % per_turn:
                yield
        if self.by_name is by_name and not self.has_matched(expression):
            self._remember(expression, frozenset(selected))

    def _match_again(self, new: Collection[str], gone: Collection[str]) -> None:
        """Look at new topics only: with a hundred expressions, a look at ten thousand topics takes a second."""
        if not new and not gone:
            return
        former, self._matching, self._matching_bytes = self._matching, {}, 0
        for expression, selected in former.items():
            more = _selected(expression, new) if new else frozenset[str]()
            is_same = not more and selected.isdisjoint(gone)
            self._remember(expression, selected if is_same else selected.difference(gone) | more)

    def _forget(self, expressions: Iterable[str]) -> None:
        for expression in expressions:
            self._matching_bytes -= _size(expression, self._matching.pop(expression))

    def _remember(self, expression: str, selected: frozenset[str]) -> None:
        size = _size(expression, selected)
        if self._matching_bytes + size > MAX_SELECTED_BYTES:
            self._matching.clear()
            self._matching_bytes = 0
        self._matching[expression] = selected
        self._matching_bytes += size


def _size(expression: str, selected: Collection[str]) -> int:
    return EXPRESSION_BYTES + len(expression) + SELECTED_BYTES * len(selected)


def _selected(expression: str, names: Iterable[str]) -> frozenset[str]:
    """Return those of these topics whose whole name an expression matches."""
    filter_ = _of_whole_names(expression)
    return frozenset(name for name in names if filter_.matches_internal(name))


def as_stored(topics: Iterable[StoredTopic]) -> dict[str, Topic]:
    """Return name -> topic of a group that was read."""
    found = ((one, UUID(bytes=one.topic_id)) for one in topics)
    return {one.name: Topic(topic_id, one.partition_count, topic_id != made_up_id(one.name)) for one, topic_id in found}


def of_groups(groups: Iterable[StoredContent]) -> dict[str, Topic]:
    """Return name -> topic of all groups that were read, except for groups that are damaged.

    Names that no topic can have are left out: brokers would be asked for them, and some fit into no request.
    """
    found: dict[str, Topic] = {}
    for group in groups:
        if isinstance(group, StoredConsumerGroup):
            with contextlib.suppress(ValueError):
                known = as_stored(group.topics)
                found |= {name: topic for name, topic in known.items() if paths.is_legal_topic(name)}
    return found


def made_up_id(name: str) -> UUID:
    """Return the id of a topic that has none at the brokers: the same one in every gateway, and after a restart."""
    return uuid5(MADE_UP, name)


def names_of(by_name: Mapping[str, Topic]) -> dict[UUID, str]:
    """Return topic id -> name."""
    return {topic.topic_id: name for name, topic in by_name.items()}


def check_expression(expression: str) -> None:
    """Check that an expression is valid, by itself and in brackets, which it must not close.

    Raises:
        PatternError: RE2 rejects it, or it is too long.

    """
    TopicFilter(WHITE_LIST, expression)
    _of_whole_names(expression)


def _of_whole_names(expression: str) -> TopicFilter:
    return TopicFilter(WHITE_LIST, f"^(?:{expression})$")
