"""The cluster's topics, and what a subscription selects of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from zkrebalancer.protocol.patterns import TopicFilter
from zkrebalancer.protocol.registration import WHITE_LIST

MAX_EXPRESSIONS = 1_000  # whose topics are remembered: clients may send any number of them


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic; if it is deleted and created again, its id changes."""

    topic_id: UUID
    partition_count: int


class Topics:
    """The known topics; `is_known` is False until they are read for the first time."""

    def __init__(self) -> None:
        self.by_name: Mapping[str, Topic] = {}
        self.name_of: dict[UUID, str] = {}
        self.is_known = False
        self._matching: dict[str, frozenset[str]] = {}

    def replace(self, by_name: Mapping[str, Topic]) -> None:
        """Replace the known topics."""
        self.by_name = by_name
        self.name_of = names_of(by_name)
        self.is_known = True
        self._matching.clear()

    def matching(self, expression: str) -> frozenset[str]:
        """Return the topics whose whole name a checked regular expression matches, internal ones too, as in Kafka.

        In a central group the coordinator assigns none of these.
        """
        if expression not in self._matching:
            if len(self._matching) >= MAX_EXPRESSIONS:
                self._matching.clear()
            filter_ = _of_whole_names(expression)
            self._matching[expression] = frozenset(name for name in self.by_name if filter_.matches_internal(name))
        return self._matching[expression]


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
