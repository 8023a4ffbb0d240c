"""Begins new lives of offsets that an operator has set, so that sinks do not continue at their own offsets."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from zkrebalancer.operations.starts_pause import Pause
from zkrebalancer.protocol import cluster_nodes, offset_lives, paths
from zkrebalancer.protocol.calls import ABSENT, Content, Create, Get, Operation, SetContent
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.zk import BlockingZk


def begin_lives(zk: BlockingZk, group: str, pause: Pause, partitions: Iterable[TopicPartition]) -> None:
    """Begin new lives once the offsets of these partitions are set; before that, sinks ignore the change.

    Raises:
        OffsetsRefusedError: the group changed meanwhile.
        ZooKeeperRefusedError: a node may not be read or written.

    """
    writes = _writes(zk, group, partitions)
    while writes:
        pause.write(zk, writes)


def _writes(zk: BlockingZk, group: str, partitions: Iterable[TopicPartition]) -> list[Operation]:
    numbers: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, []).append(number)
    if not numbers:
        return []
    read_first = paths.lives(group), paths.generation(group), paths.group(group), paths.SERVED
    parent, generation, node, served = zk.perform_all([Get(path) for path in read_first], ABSENT)
    reached = None
    if isinstance(generation, Content):
        with suppress(NodeContentError):  # the leader replaces it by a higher one
            reached = cluster_nodes.decode_counter("generation", generation.content)
    first = node.stat.created_zxid if isinstance(node, Content) else 0  # as the leader would begin
    if isinstance(served, Content):
        first = cluster_nodes.first_generation(served.content, served.stat.created_zxid, first)
    operations: list[Operation] = [] if isinstance(parent, Content) else [Create(paths.lives(group))]
    read = zk.perform_all([Get(paths.lives(group, topic)) for topic in numbers], ABSENT)
    for (topic, set_now), reply in zip(numbers.items(), read, strict=True):
        lives: dict[int, int] = {}
        if isinstance(reply, Content):
            with suppress(NodeContentError):
                lives = offset_lives.decode(reply.content)
        life = offset_lives.following(lives, reached, first)
        content, path = offset_lives.encode({**lives, **dict.fromkeys(set_now, life)}), paths.lives(group, topic)
        operations.append(
            SetContent(path, content, reply.stat.version) if isinstance(reply, Content) else Create(path, content)
        )
    return operations
