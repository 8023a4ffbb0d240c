"""Where offsets are kept: in ZooKeeper, in Kafka's own store, or in both while a group moves. Pure.

Kafka does not fence a commit by the version of a node, as ZooKeeper does. So a commit to Kafka is preceded by a check
of `owners/<consumer>`, and has to be over before the lease that this check proves (`writes.py`). Where both are used
the higher offset wins: each was finished by somebody, and the store that others do not write stays behind.

Every offset in Kafka carries a mark, which topic of that name it belongs to: one that was deleted and created again
begins anew, and a late commit to the old one is no offset of the new one. Offsets with another text, or none, come from
other programs and count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from zkrebalancer.protocol.fields import TopicPartition

MARK_PREFIX = "zkrebalancer:"
NO_OFFSET = -1  # of a partition that nothing tells where to begin


class Storage(Enum):
    """The setting `offsets_storage`."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    DUAL = "dual"

    @property
    def in_zookeeper(self) -> bool:
        """Whether offsets are kept in ZooKeeper."""
        return self is not Storage.KAFKA

    @property
    def in_kafka(self) -> bool:
        """Whether offsets are kept in Kafka."""
        return self is not Storage.ZOOKEEPER


@dataclass(slots=True)
class KafkaBook:
    """What is known of the offsets in Kafka of the partitions that one consumer owns."""

    stored: dict[TopicPartition, int] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)  # of each topic, as the group's offsets in ZooKeeper say

    def note_read(self, found: Mapping[TopicPartition, tuple[int, str]]) -> dict[TopicPartition, int]:
        """Take in what was read, offset and text; return the offsets that belong to the topics as they are."""
        valid = {tp: offset for tp, (offset, text) in found.items() if not self._is_of_another_topic(tp[0], text)}
        self.stored.update(valid)
        return valid

    def changed(self, finished: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return those of the offsets that differ from what is stored."""
        return {tp: offset for tp, offset in finished.items() if self.stored.get(tp) != offset}

    def marked(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, str]]:
        """Return the offsets with their marks, as they are stored."""
        return {tp: (offset, MARK_PREFIX + self.marks.get(tp[0], "")) for tp, offset in offsets.items()}

    def _is_of_another_topic(self, topic: str, text: str) -> bool:
        return text.startswith(MARK_PREFIX) and text.removeprefix(MARK_PREFIX) != self.marks.get(topic, "")
