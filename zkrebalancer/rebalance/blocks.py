"""Which topics count as held completely, because it is unknown what a consumer of them holds."""

from __future__ import annotations

from collections import Counter

ALL_TOPICS = "*"  # not a legal topic name: stands for every topic of the group


class Blocks:
    """The topics that consumers block. A look costs the same for any number of them: each start is looked up."""

    def __init__(self) -> None:
        """Block nothing."""
        self._topics_of: dict[str, tuple[str, ...]] = {}
        self._blockers: Counter[str] = Counter()  # topic -> how many consumers block it

    def change(self, consumer: str, topics: tuple[str, ...]) -> bool:
        """Note all that a consumer blocks now; return whether it did block something, and now does not."""
        before = self._topics_of.pop(consumer, ())
        if topics:
            self._topics_of[consumer] = topics
        if before != topics:
            self._blockers.update(topics)
            self._blockers.subtract(before)
            for topic in before:
                if not self._blockers[topic]:
                    del self._blockers[topic]
        return bool(before) and not topics

    def __contains__(self, topic: str) -> bool:
        """Whether any consumer blocks a topic."""
        return topic in self._blockers or ALL_TOPICS in self._blockers
