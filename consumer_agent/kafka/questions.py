"""What the application asks Kafka itself: offsets and topics. Nothing here waits, and any thread may ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from consumer_agent.kafka.offset_queries import OffsetQueries, Offsets, Where
from consumer_agent.runtime.threads import Condition
from zkrebalancer.protocol.fields import TopicPartition


class Question:
    """A question under way; `answered` is notified when `is_over`."""

    def __init__(self, count: int, answered: Condition) -> None:
        """Wait for so many answers."""
        self.offsets: dict[TopicPartition, int] = {}
        self.partitions: frozenset[int] | None = None  # of the topic; None: it does not exist, or there is a trouble
        self.trouble = ""  # why something is missing
        self.is_over = not count
        self._left = count
        self._answered = answered

    def note(self, offsets: Offsets, trouble: str) -> None:
        """Note the answer about some partitions, in any thread."""
        with self._answered.lock:
            self.offsets.update((partition, offset) for partition, offset in offsets.items() if offset is not None)
            self._end_one(trouble)

    def note_topic(self, partitions: frozenset[int] | None, trouble: str) -> None:
        """Note the answer about a topic, in any thread."""
        with self._answered.lock:
            self.partitions = partitions
            self._end_one(trouble)

    def _end_one(self, trouble: str) -> None:
        self.trouble = trouble or self.trouble
        self._left -= 1
        self.is_over = not self._left
        self._answered.notify()


def about_offsets(queries: OffsetQueries, wheres: Mapping[TopicPartition, Where], answered: Condition) -> Question:
    """Ask for the offset of each partition at an end, or since a time (ms): then its end, if nothing is later."""
    by_where: dict[Where, list[TopicPartition]] = {}
    for partition, where in wheres.items():
        by_where.setdefault(where, []).append(partition)
    question = Question(len(by_where), answered)

    def noting(where: Where) -> Callable[[Mapping[Where, Offsets]], None]:
        return lambda found: question.note(found[where], queries.trouble)

    for where, partitions in by_where.items():
        queries.ask(partitions, [where], noting(where))
    return question


def about_topic(queries: OffsetQueries, topic: str, answered: Condition) -> Question:
    """Ask for the partitions of a topic."""
    question = Question(1, answered)
    queries.describe(topic, question.note_topic)
    return question
