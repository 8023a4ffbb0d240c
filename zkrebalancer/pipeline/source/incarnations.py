"""Whether the topics of a batch that Spark repeats are still the same.

Offsets of a deleted topic name other records of a topic that was created under its name, or none. The group reads these
from their beginning, so to read them in place of the deleted ones would give them to the sink twice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from zkrebalancer.pipeline.source.kafka import DataLossError
from zkrebalancer.pipeline.source.offsets import Range
from zkrebalancer.pipeline.source.options import Options
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Content, Get
from zkrebalancer.protocol.cluster_nodes import decode_topic, is_same_topic
from zkrebalancer.runtime.zk import BlockingZk

_log = logging.getLogger(__name__)


def still_there(options: Options, ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges without those of deleted topics.

    Raises:
        DataLossError: a topic was deleted, and `failOnDataLoss` is set.
        RebalancerError: ZooKeeper does not answer, or a topic's node is not Kafka's.

    """
    identities = {one.topic: one.identity for one in ranges if one.identity}
    if not identities:
        return list(ranges)
    with BlockingZk(options.agent["zookeeper"]) as zk:
        present = present_identities(zk, list(identities))
    deleted = {
        topic
        for topic, identity in identities.items()
        if topic not in present or not is_same_topic(present[topic], identity)
    }
    for topic in sorted(deleted):
        text = f"{topic} was deleted after a batch had been planned that Spark now repeats"
        if options.fail_on_data_loss:
            raise DataLossError(f"{text}; option failOnDataLoss=false continues without the deleted records")
        _log.warning("%s; continuing without the deleted records", text)
    return [one for one in ranges if one.topic not in deleted]


def present_identities(zk: BlockingZk, topics: Sequence[str]) -> dict[str, str]:
    """Return topic -> its incarnation, of those that exist; raises RebalancerError as `still_there`."""
    replies = zk.perform_all([Get(paths.topic(topic)) for topic in topics], ABSENT)
    return {
        topic: decode_topic(reply.content, reply.stat.created_zxid).incarnation
        for topic, reply in zip(topics, replies, strict=True)
        if isinstance(reply, Content)
    }
