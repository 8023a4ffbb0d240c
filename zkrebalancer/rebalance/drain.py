"""Members that an operator drains: they read only the topics that no other member reads.

So a drained member gives up its partitions, under every strategy, and a topic never loses its last reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from zkrebalancer.assignment.model import Member as ProblemMember
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.interests import Interests

NOTHING: Mapping[str, int] = {}  # shared, because strategies recognise equal subscriptions by identity


class Drain:
    """The drained members of one group, and the topics that others read. It is kept up to date one member at a time."""

    def __init__(self) -> None:
        """Drain no member."""
        self.settings = GroupSettings()  # those of the last plan, while a new one begins
        self._readers = Interests()  # of the members that are not drained
        self._topics_of: dict[str, Mapping[str, int]] = {}  # what these members read
        self._drained: dict[str, ProblemMember] = {}  # as they would be otherwise
        self._is_touched = False  # whether a drained member may read something else now

    @property
    def names(self) -> list[str]:
        """The drained members that take part, sorted."""
        return sorted(self._drained)

    def begin(self, settings: GroupSettings) -> bool:
        """Keep the settings for the next plan; return whether members have to be examined again."""
        before, self.settings = self.settings, settings
        names, hosts = settings.drained_members, settings.drained_hosts
        return (names, hosts) != (before.drained_members, before.drained_hosts)

    def note(self, consumer: str, registration: Registration | None, member: ProblemMember | None) -> bool:
        """Note a member as it would be without a drain, None if it is gone; return whether it is drained.

        `registration`: None if it cannot be read, or if the member keeps its share, because it can be told nothing:
        then the member is neither drained nor a reader.
        """
        if member is None or registration is None:
            self._count(consumer, NOTHING)
        elif self.settings.drains(consumer, registration.instance_id, registration.host):
            self._count(consumer, NOTHING)
            self._drained[consumer] = member
            self._is_touched = True
            return True
        else:
            self._count(consumer, member.threads)
        if self._drained.pop(consumer, None) is not None:
            self._is_touched = True
        return False

    def _count(self, consumer: str, topics: Mapping[str, int]) -> None:
        before = self._topics_of.pop(consumer, NOTHING)
        if topics:
            self._topics_of[consumer] = topics
        if before is topics:
            return
        is_first = bool(topics) and self._readers.add(topics)
        was_last = bool(before) and self._readers.remove(before)
        self._is_touched = self._is_touched or is_first or was_last

    def settled(self) -> Iterator[tuple[str, ProblemMember]]:
        """Yield each drained member as the strategy has to see it, if that may have changed."""
        if not self._is_touched:
            return
        self._is_touched = False
        for consumer, member in sorted(self._drained.items()):
            topics = {topic: count for topic, count in member.threads.items() if topic not in self._readers}
            yield consumer, replace(member, threads=topics or NOTHING)
