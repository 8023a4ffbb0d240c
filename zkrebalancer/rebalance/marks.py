"""Tells which topic the stored offsets of a group belong to, by the marks in `offsets` and their records."""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import islice

from zkrebalancer.protocol.cluster_nodes import UNREAD, Topic, is_same_topic, merged_names, names_creation


class OffsetMarks:
    """The questions of a group's view about its stored offsets."""

    __slots__ = ()
    topics: Mapping[str, Topic]  # of the cluster
    # Topic -> incarnation of the stored offsets: by their mark, and by the record that only coordinators write.
    incarnations: dict[str, str]
    recorded_incarnations: dict[str, str]
    hidden_topics: set[str]  # of which the one or the other may not be read: nothing of them is started, or reset
    are_marks_hidden: bool  # whether the marks, or the records, may not be listed

    def is_hidden_topic(self, topic: str) -> bool:
        """Whether the mark of the stored offsets' topic may not be read: nothing of it is started, or reset.

        If only one of the two lists may not be read, the other one is enough for a topic that is named in it.
        """
        if not self.are_marks_hidden or topic in self.hidden_topics:
            return topic in self.hidden_topics
        known = self.topics.get(topic)
        stored = f"{self.incarnations.get(topic, '')} {self.recorded_incarnations.get(topic, '')}"
        return known is None or not is_same_topic(known.incarnation, stored)

    @property
    def has_hidden_topics(self) -> bool:
        """Whether this may be true for any topic."""
        return self.are_marks_hidden or bool(self.hidden_topics)

    def is_stale(self, topic: str) -> bool:
        """Whether the stored offsets belong to a former incarnation of the topic: by their mark and by the record.

        Anybody may have written the mark, so it is not enough. Alone, before there is a record, it has to look like one
        that a coordinator has written.
        """
        if topic not in self.incarnations or self.is_hidden_topic(topic):
            return False
        recorded, mark = self.recorded_incarnations.get(topic), self.incarnations[topic]
        known, stored = self.topics.get(topic), f"{mark} {recorded or ''}"
        if known is not None and known.incarnation in {mark, recorded}:
            return False
        if not recorded and not names_creation(mark):
            return False
        return known is not None and known is not UNREAD and not is_same_topic(known.incarnation, stored)

    def stale_topics(self) -> set[str]:
        """Return the topics whose stored offsets belong to a former incarnation."""
        return {topic for topic in self._topics_named_otherwise() if self.is_stale(topic)}

    def _topics_named_otherwise(self) -> list[str]:
        """Return the topics whose mark or record is not their present name: few, but there may be ten thousand."""
        topics, recorded = self.topics, self.recorded_incarnations
        return [
            topic
            for topic, mark in self.incarnations.items()
            if topic not in topics or not mark == recorded.get(topic) == topics[topic].incarnation
        ]

    def is_marked(self, topic: str) -> bool:
        """Whether the mark of the stored offsets names the topic."""
        known = self.topics.get(topic)
        return known is not None and is_same_topic(self.incarnations.get(topic, ""), known.incarnation)

    def names_to_store(self, topic: str) -> str | None:
        """Return what the mark and the record of a topic should say; None: they do, or nothing is known of it."""
        known = self.topics.get(topic)
        if known is None or not known.incarnation or topic in self.hidden_topics or self.are_marks_hidden:
            return None
        names, stored = known.incarnation, [self.incarnations.get(topic), self.recorded_incarnations.get(topic)]
        for before in () if stored == [names, names] else stored:
            if before is not None and is_same_topic(before, known.incarnation):
                names = merged_names(names, before)
        return names if stored != [names, names] else None

    def renamed_topics(self, limit: int, but: Container[str] = ()) -> dict[str, str]:
        """Return topic -> names to store, for topics with offsets of which not every name is stored in both places.

        At most `limit` of them, and none in `but`: all topics may get ids at the same time.
        """
        marked = (topic for topic in self._topics_named_otherwise() if topic not in but)
        renamed = (topic for topic in marked if self.stored_incarnation(topic) and not self.is_stale(topic))
        names = ((topic, self.names_to_store(topic)) for topic in renamed)
        return dict(islice(((topic, wanted) for topic, wanted in names if wanted is not None), limit))

    def stored_incarnation(self, topic: str) -> str:
        """Return which incarnation the stored offsets belong to, as far as that is known."""
        return self.recorded_incarnations.get(topic) or self.incarnations.get(topic, "")

    def absent_topics(self) -> set[str]:
        """Return the topics that have stored offsets, with marks that may be read, and do not exist."""
        if self.are_marks_hidden:
            return set()
        return self.incarnations.keys() - self.topics.keys() - self.hidden_topics
