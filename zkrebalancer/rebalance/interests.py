"""Counts which topics the members of a group read, or hold some of.

Members that subscribe alike share one mapping of topics, which counts once: a thousand members may read ten thousand
topics each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, KeysView, Mapping
from typing import Any

from zkrebalancer.assignment.model import Member


class Interests:
    """The topics of some members."""

    def __init__(self) -> None:
        """Begin without members."""
        self._counts: Counter[str] = Counter()  # topic -> mappings that have it, and members that only hold some of it
        self._mappings: dict[int, tuple[Mapping[str, int], int]] = {}  # by identity, each with its members

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Continue in a copy, as tests make them: its mappings have other identities."""
        self.__dict__.update(state)
        self._mappings = {id(topics): (topics, members) for topics, members in self._mappings.values()}

    def __contains__(self, topic: str) -> bool:
        """Whether some member reads or holds a topic."""
        return topic in self._counts

    @property
    def topics(self) -> KeysView[str]:
        """The topics that some member reads or holds."""
        return self._counts.keys()

    def replace(self, before: Member | None, after: Member | None) -> None:
        """Replace a member, which has not changed since it was noted; None: there was, or is, none."""
        if after is not None:  # first, because it may be the only one that has the same mapping now
            self.add(after.threads)
            self._counts.update(_only_held(after))
        if before is not None:
            self.remove(before.threads)
            self._count_down(_only_held(before))

    def add(self, topics: Mapping[str, int]) -> bool:
        """Count what one more member reads; return whether no member did so of one of these topics."""
        _known, members = self._mappings.get(id(topics), (topics, 0))
        self._mappings[id(topics)] = topics, members + 1
        count = len(self._counts)
        if not members:
            self._counts.update(topics.keys())
        return len(self._counts) > count

    def remove(self, topics: Mapping[str, int]) -> bool:
        """Take back what was added of one member; return whether no member reads one of these topics now."""
        _known, members = self._mappings.pop(id(topics))
        count = len(self._counts)
        if members > 1:
            self._mappings[id(topics)] = topics, members - 1
        else:
            self._count_down(topics)
        return len(self._counts) < count

    def _count_down(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._counts[topic] -= 1
            if not self._counts[topic]:
                del self._counts[topic]


def _only_held(member: Member) -> set[str]:
    """Return the topics of which a member holds some, and which it does not read."""
    return {topic for topic, _number in member.owned if topic not in member.threads}
