"""Offsets of topics, to be written from outside with the marks that tell the coordinator which topic they belong to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from zkrebalancer.operations.starts_pause import OffsetsRefusedError, Pause
from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import (
    ABSENT,
    Check,
    Children,
    Content,
    Create,
    Get,
    ListChildren,
    Operation,
    SetContent,
)
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


def write_offsets(
    zk: BlockingZk, group: str, known: Mapping[str, Topic], offsets: Mapping[TopicPartition, int], pause: Pause
) -> None:
    """Write offsets, and each topic's mark first: otherwise the coordinator would delete the offsets again.

    `known`: the topics as they were when the offsets were judged. Each transaction requires that their marks stay: the
    leader replaces them when a topic was created anew, and what is written after that would count for the new topic.

    Raises:
        UnknownTopicError: a topic was deleted meanwhile.
        OffsetsRefusedError: the group or its offsets changed meanwhile, or a topic was created anew.
        ZooKeeperRefusedError: a node may not be read or written; offsets before it may be written already.

    """
    marks = {paths.offsets(group, topic): of.incarnation.encode() for topic, of in known.items()}
    found = zk.perform_all([Get(path) for path in marks], ABSENT)
    _refuse_topics_created_anew(known, require_topics(zk, known))
    writes: list[Operation] = []
    guards: dict[str, Check] = {}
    for (path, content), node in zip(marks.items(), found, strict=True):
        if isinstance(node, Content):
            writes.append(SetContent(path, content, node.stat.version))
            guards[path] = Check(path, node.stat.version + 1)
        else:
            writes.append(Create(path, content))
            guards[path] = Check(path, 0)
    # All at once: starts are paused meanwhile, and a group may read thousands of topics.
    lists = zk.perform_all([ListChildren(path) for path in marks], ABSENT)
    present = {
        f"{path}/{name}"
        for path, listed in zip(marks, lists, strict=True)
        if isinstance(listed, Children)
        for name in listed.names
    }
    for partition, offset in offsets.items():
        path, content = paths.offsets(group, *partition), cluster_nodes.encode_counter(offset)
        writes.append(SetContent(path, content) if path in present else Create(path, content))
    while writes:
        pause.write(zk, writes, guards)


def _refuse_topics_created_anew(known: Mapping[str, Topic], now: Mapping[str, Topic]) -> None:
    for topic, before in known.items():
        if not cluster_nodes.is_same_topic(now[topic].incarnation, before.incarnation):
            raise OffsetsRefusedError(f"topic {topic} was created anew meanwhile; look at its offsets, and try again")
