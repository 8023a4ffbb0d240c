"""The stores of offsets: ZooKeeper, Kafka's own store, or both while a group moves. Pure.

Kafka does not fence a commit by the version of a node, as ZooKeeper does. So a check of `owners/<consumer>` precedes
each commit to Kafka, which has to finish within the lease that the check proves (`fenced_writes.py`). If both stores
are used, the higher offset wins: each was finished once, and a store that some consumers do not write falls behind.

Every offset in Kafka has a mark that names the topic's incarnation: a topic that was deleted and created again starts
anew, and a late commit to the old one is ignored. Offsets with other metadata, or none, come from other programs and
are used.

Refusals show which offset nodes exist in ZooKeeper: if a node is missing, or exists already, that is noted and the
transaction is built again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import Create, Operation, Refusal, SetContent
from zkrebalancer.protocol.cluster_nodes import is_same_topic
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.requests import RequestLimit

MARK_PREFIX = "zkrebalancer:"
NO_OFFSET = -1  # of a partition without a position
MAX_OPERATIONS = 490  # in one transaction; leaves room for the check or the ack


class Storage(Enum):
    """The setting `offsets_storage`."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    DUAL = "dual"

    @property
    def in_zookeeper(self) -> bool:
        """Whether offsets are stored in ZooKeeper."""
        return self is not Storage.KAFKA

    @property
    def in_kafka(self) -> bool:
        """Whether offsets are stored in Kafka."""
        return self is not Storage.ZOOKEEPER


@dataclass(slots=True)
class Book:
    """The stored offsets of a consumer's partitions, as far as the consumer knows them."""

    stored: dict[TopicPartition, int] = field(default_factory=dict, init=False)
    stale: set[TopicPartition] = field(default_factory=set, init=False)  # to be written again, even if unchanged

    def changed(self, finished: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offsets to write: those that differ from the stored ones, or may not be stored any more."""
        stored, stale = self.stored, self.stale
        return {tp: offset for tp, offset in finished.items() if stored.get(tp) != offset or tp in stale}

    def keep(self, owned: Mapping[TopicPartition, object]) -> None:
        """Forget all other partitions: a start reads what is stored."""
        for partition in self.stored.keys() - owned.keys():
            del self.stored[partition]
        self.stale.intersection_update(owned)


@dataclass(slots=True)
class OffsetBook(Book):
    """The offset nodes in ZooKeeper."""

    group: str
    nodes: set[TopicPartition] = field(default_factory=set)
    missing_topics: set[str] = field(default_factory=set)

    def keep(self, owned: Mapping[TopicPartition, object]) -> None:
        """Forget all other partitions, and topics without an owned one."""
        Book.keep(self, owned)
        self.nodes.intersection_update(owned)
        if self.missing_topics:
            self.missing_topics &= {topic for topic, _number in owned}

    def note_read(self, partition: TopicPartition, offset: int | None) -> None:
        """Note an offset that a start has read; None: there is no node."""
        if offset is None:
            self.stored.pop(partition, None)
            self.nodes.discard(partition)
        else:
            self.stored[partition] = offset
            self.nodes.add(partition)

    def note_unreadable(self, partition: TopicPartition) -> None:
        """Note a node without a readable offset."""
        self.stored.pop(partition, None)
        self.nodes.add(partition)

    def note_written(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note offsets that a transaction has written."""
        self.stored.update(offsets)
        self.note_nodes(offsets)

    def note_nodes(self, partitions: Collection[TopicPartition]) -> None:
        """Note nodes that exist, whatever their offsets are."""
        self.nodes.update(partitions)
        self.missing_topics.difference_update(topic for topic, _ in partitions)

    def first_chunk(
        self, offsets: Mapping[TopicPartition, int], limit: RequestLimit, beside: Iterable[Operation]
    ) -> dict[TopicPartition, int]:
        """Return the first offsets, in order, that fit into one transaction `beside` other operations."""
        chunk: dict[TopicPartition, int] = {}
        parents: set[str] = set()
        room_bytes = limit.max_bytes - limit.size(beside)
        for partition in sorted(offsets):
            topic = partition[0]
            if topic in self.missing_topics and topic not in parents:
                parents.add(topic)
                room_bytes -= limit.operation_size(Create(paths.offsets(self.group, topic)))
            room_bytes -= limit.operation_size(self._operation(partition, offsets[partition]))
            if chunk and (room_bytes < 0 or len(chunk) + len(parents) >= MAX_OPERATIONS):
                break
            chunk[partition] = offsets[partition]
        return chunk

    def operations(self, chunk: Mapping[TopicPartition, int]) -> list[Operation]:
        """Return the operations that write these offsets."""
        built: list[Operation] = [
            Create(paths.offsets(self.group, topic))
            for topic in sorted({topic for topic, _ in chunk} & self.missing_topics)
        ]
        return built + [self._operation(partition, offset) for partition, offset in chunk.items()]

    def _operation(self, partition: TopicPartition, offset: int) -> Operation:
        path, content = paths.offsets(self.group, *partition), cluster_nodes.encode_counter(offset)
        return SetContent(path, content) if partition in self.nodes else Create(path, content)

    @property
    def root(self) -> str:
        """The path below which all offsets of the group are."""
        return paths.offsets(self.group) + "/"

    def _named_by(self, operation: Operation) -> tuple[str, int | None]:
        """Return the topic of an operation, and the partition unless it creates the topic's node."""
        topic, _, number = operation.path.removeprefix(self.root).partition("/")
        return topic, int(number) if number else None

    def without(
        self, operation: Operation, offsets: Mapping[TopicPartition, int], *, whole_topic: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the offsets that do not need this operation; with `whole_topic`, none of its topic."""
        topic, number = self._named_by(operation)
        left_out = None if whole_topic else number
        return {tp: offset for tp, offset in offsets.items() if tp[0] != topic or left_out not in {None, tp[1]}}

    def learn(self, operation: Operation, refusal: Refusal) -> bool:
        """Note what a refused operation shows; return False if building the transaction again cannot help."""
        topic, number = self._named_by(operation)
        if number is None:
            if refusal is Refusal.NODE_EXISTS:
                self.missing_topics.discard(topic)
            return refusal is Refusal.NODE_EXISTS
        partition = (topic, number)
        if isinstance(operation, Create) and refusal is Refusal.NODE_EXISTS:
            self.nodes.add(partition)
        elif isinstance(operation, Create) and refusal is Refusal.NO_NODE:
            self.missing_topics.add(topic)
        elif isinstance(operation, SetContent) and refusal is Refusal.NO_NODE:
            self.nodes.discard(partition)
        else:
            return False
        return True


@dataclass(slots=True)
class KafkaBook(Book):
    """The offsets in Kafka."""

    marks: dict[str, str] = field(default_factory=dict)  # of each topic, as the group's offsets in ZooKeeper say

    def keep(self, owned: Mapping[TopicPartition, object]) -> None:
        """Forget all other partitions, and topics without an owned one."""
        Book.keep(self, owned)
        if self.marks:
            for topic in self.marks.keys() - {topic for topic, _number in owned}:
                del self.marks[topic]

    def note_read(
        self, partitions: Iterable[TopicPartition], found: Mapping[TopicPartition, tuple[int, str]]
    ) -> dict[TopicPartition, int]:
        """Note offsets and metadata found when `partitions` were read; return the offsets of the present topics.

        What was known of the other `partitions` is forgotten: their offsets may have been deleted since this consumer
        last owned them, and an offset that is believed to be stored would not be committed.
        """
        valid = self._of_present_topics(found)
        for partition in partitions:
            self.stored.pop(partition, None)
        self.stale.difference_update(partitions)
        self.stored.update(valid)
        return valid

    def note_late(self, found: Mapping[TopicPartition, tuple[int, str]]) -> dict[TopicPartition, int]:
        """Note offsets that were read when their partitions were owned already: what was committed since is newer."""
        valid = self._of_present_topics(found)
        self.stored.update({tp: offset for tp, offset in valid.items() if tp not in self.stored})
        return valid

    def _of_present_topics(self, found: Mapping[TopicPartition, tuple[int, str]]) -> dict[TopicPartition, int]:
        return {tp: offset for tp, (offset, text) in found.items() if not self._is_of_another_topic(tp[0], text)}

    def note_written(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note offsets that Kafka has stored."""
        self.stored.update(offsets)
        self.stale.difference_update(offsets)

    def marked(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, str]]:
        """Return the offsets with their marks, in stored form."""
        return {tp: (offset, MARK_PREFIX + self.marks.get(tp[0], "")) for tp, offset in offsets.items()}

    def _is_of_another_topic(self, topic: str, text: str) -> bool:
        return is_of_another_topic(text, self.marks.get(topic, ""))


def is_of_another_topic(metadata: str, known: str) -> bool:
    """Whether the metadata of an offset in Kafka says that it is of another topic than the present one; "": unknown."""
    return metadata.startswith(MARK_PREFIX) and known != "" and not is_same_topic(metadata[len(MARK_PREFIX) :], known)
