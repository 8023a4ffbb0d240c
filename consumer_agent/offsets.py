"""Which offset nodes exist, what stands in them, and the operations that bring them up to date. Pure.

What is not known is learned from refusals: a node that should be there and is not, or the other way round, is noted and
the transaction is built again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import Create, Operation, Refusal, SetContent
from zkrebalancer.protocol.fields import TopicPartition

MAX_OPERATIONS = 490  # in one transaction; leaves room for the check or the ack
MAX_BYTES = 400_000
OPERATION_OVERHEAD_BYTES = 100


@dataclass(slots=True)
class OffsetBook:
    """What is known of the offset nodes of the partitions that one consumer owns."""

    group: str
    stored: dict[TopicPartition, int] = field(default_factory=dict)
    nodes: set[TopicPartition] = field(default_factory=set)
    missing_topics: set[str] = field(default_factory=set)

    def note_read(self, partition: TopicPartition, offset: int | None) -> None:
        """Take in what a read at a start has shown; None: there is no node."""
        if offset is None:
            self.stored.pop(partition, None)
            self.nodes.discard(partition)
        else:
            self.stored[partition] = offset
            self.nodes.add(partition)

    def note_unreadable(self, partition: TopicPartition) -> None:
        """Take in that there is a node, but no offset in it."""
        self.stored.pop(partition, None)
        self.nodes.add(partition)

    def note_written(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Take in what a transaction has written."""
        self.stored.update(offsets)
        self.nodes.update(offsets)
        self.missing_topics.difference_update(topic for topic, _ in offsets)

    def changed(self, finished: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return those of the offsets that differ from what is stored."""
        return {
            partition: finished[partition]
            for partition in finished
            if self.stored.get(partition) != finished[partition]
        }

    def first_chunk(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return as many of the offsets, in order, as one transaction takes."""
        chunk: dict[TopicPartition, int] = {}
        parents: set[str] = set()
        room_bytes = MAX_BYTES
        for partition in sorted(offsets):
            if partition[0] in self.missing_topics:
                parents.add(partition[0])
            room_bytes -= OPERATION_OVERHEAD_BYTES + len(paths.offsets(self.group, *partition))
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
        for partition, offset in chunk.items():
            path, content = paths.offsets(self.group, *partition), cluster_nodes.encode_counter(offset)
            built.append(SetContent(path, content) if partition in self.nodes else Create(path, content))
        return built

    def learn(self, operation: Operation, refusal: Refusal) -> bool:
        """Take in why an operation of `operations` was refused; False if building again cannot help."""
        topic, _, number = operation.path.removeprefix(paths.offsets(self.group) + "/").partition("/")
        if isinstance(operation, Create) and not number:
            self.missing_topics.discard(topic)
            return refusal is Refusal.NODE_EXISTS
        partition = (topic, int(number))
        if isinstance(operation, Create) and refusal is Refusal.NODE_EXISTS:
            self.nodes.add(partition)
        elif isinstance(operation, Create) and refusal is Refusal.NO_NODE:
            self.missing_topics.add(topic)
        elif isinstance(operation, SetContent) and refusal is Refusal.NO_NODE:
            self.nodes.discard(partition)
        else:
            return False
        return True
