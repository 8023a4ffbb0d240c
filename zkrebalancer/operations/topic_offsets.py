"""Offsets of topics, to be written from outside with the marks that tell the coordinator which topic they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from zkrebalancer.operations.nodes import names_below
from zkrebalancer.operations.starts_pause import OffsetsRefusedError
from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import ABSENT, Content, Create, Get, Operation, SetContent
from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.rebalance.view import GroupView
from zkrebalancer.runtime.zk import BlockingZk


class UnknownTopicError(RebalancerError):
    """There is no such topic, or it has no such partition."""


def read_topic(zk: BlockingZk, name: str) -> Topic:
    """Return the topic as it is now; raises UnknownTopicError, NodeContentError, ZooKeeperRefusedError."""
    node = zk.perform(Get(paths.topic(name)), ABSENT)
    if not isinstance(node, Content):
        raise UnknownTopicError(f"topic {name} does not exist; create it first, or choose others with --topic")
    return cluster_nodes.decode_topic(node.content, node.stat.created_zxid)


def refuse_former_topics(zk: BlockingZk, group: str, known: Mapping[str, Topic]) -> None:
    """Raise OffsetsRefusedError if a topic's stored offsets belong to a former topic: they would get its mark."""
    view = GroupView(group, known)
    for topic in known:
        for path, stored in (
            (paths.offsets(group, topic), view.incarnations),
            (paths.incarnations(group, topic), view.recorded_incarnations),
        ):
            node = zk.perform(Get(path), ABSENT)
            if isinstance(node, Content):
                with suppress(NodeContentError):  # then the other one decides
                    stored[topic] = ""
                    stored[topic] = cluster_nodes.decode_mark(node.content)
        if view.is_stale(topic):
            raise OffsetsRefusedError(
                f"group {group} has offsets of a former topic {topic}; start a coordinator, which deletes them"
            )


def offset_writes(
    zk: BlockingZk, group: str, known: Mapping[str, Topic], offsets: Mapping[TopicPartition, int]
) -> list[Operation]:
    """Return what to write, each topic's mark first: otherwise the coordinator would delete the offsets again."""
    marks = {paths.offsets(group, topic): found.incarnation.encode() for topic, found in known.items()}
    numbers = {paths.offsets(group, *tp): cluster_nodes.encode_counter(offset) for tp, offset in offsets.items()}
    present = {path for path in marks if isinstance(zk.perform(Get(path), ABSENT), Content)}
    present |= {f"{path}/{name}" for path in present for name in names_below(zk, path)}
    return [
        SetContent(path, content) if path in present else Create(path, content)
        for path, content in {**marks, **numbers}.items()
    ]
