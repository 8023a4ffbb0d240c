"""Offsets of topics, to be written from outside with the marks that tell the coordinator which topic they belong to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from zkrebalancer.operations.starts_pause import OffsetsRefusedError
from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import ABSENT, Children, Content, Create, Get, ListChildren, Operation, SetContent
from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.zk import BlockingZk


class UnknownTopicError(RebalancerError):
    """There is no such topic, or it has no such partition."""


def require_topics(zk: BlockingZk, topics: Iterable[str]) -> dict[str, Topic]:
    """Return the topics as they are now; raises UnknownTopicError, NodeContentError, ZooKeeperRefusedError."""
    names = sorted(set(topics))
    found: dict[str, Topic] = {}
    for name, node in zip(names, zk.perform_all([Get(paths.topic(name)) for name in names], ABSENT), strict=True):
        if not isinstance(node, Content):
            raise UnknownTopicError(f"topic {name} does not exist; create it first, or choose others with --topic")
        found[name] = cluster_nodes.decode_topic(node.content, node.stat.created_zxid)
    return found


def refuse_former_topics(group: str, former: Collection[str]) -> None:
    """Raise OffsetsRefusedError if a group has offsets of former topics (`inspection.former_topics`).

    With the mark of a present topic, they would count for that; without, the leader deletes what is written now.
    """
    if former:
        first = min(former)
        more = f" and {len(former) - 1} more" if len(former) > 1 else ""
        raise OffsetsRefusedError(
            f"group {group} has offsets of a former topic {first}{more}; start a coordinator, which deletes them"
        )


def offset_writes(
    zk: BlockingZk, group: str, known: Mapping[str, Topic], offsets: Mapping[TopicPartition, int]
) -> list[Operation]:
    """Return what to write, each topic's mark first: otherwise the coordinator would delete the offsets again."""
    marks = {paths.offsets(group, topic): found.incarnation.encode() for topic, found in known.items()}
    numbers = {paths.offsets(group, *tp): cluster_nodes.encode_counter(offset) for tp, offset in offsets.items()}
    # All at once: starts are paused meanwhile, and a group may read thousands of topics.
    lists = zk.perform_all([ListChildren(path) for path in marks], ABSENT)
    present = {path: listed.names for path, listed in zip(marks, lists, strict=True) if isinstance(listed, Children)}
    exists = present.keys() | {f"{path}/{name}" for path, names in present.items() for name in names}
    return [
        SetContent(path, content) if path in exists else Create(path, content)
        for path, content in {**marks, **numbers}.items()
    ]
