"""Reading loads from nodes that any program may have written."""

from __future__ import annotations

from typing import cast

import pytest

from tests.support.zk_model import ZkModel
from zkrebalancer.assignment.loads import UNKNOWN
from zkrebalancer.operations import kafka_offsets, loads
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Create, Done, Multi, Reply
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.zk import BlockingZk

FAR_TOO_LONG = "9" * 5_000


class Client:
    """The part of `BlockingZk` that reading loads uses, on a model of ZooKeeper."""

    def __init__(self) -> None:
        self.model = ZkModel()

    def perform(self, call: Call) -> Reply:
        return self.model.perform(call)

    def perform_all(self, many: list[Call]) -> list[Reply]:
        return [self.perform(call) for call in many]


@pytest.fixture(autouse=True)
def kafka_has_no_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(_kafka: object, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 10)

    monkeypatch.setattr(kafka_offsets, "known_log_ends", ends)
    monkeypatch.setattr(kafka_offsets.StoredInKafka, "read", lambda _self: {})


def test_invalid_numbers_do_not_affect_valid_ones() -> None:
    client, offsets = Client(), paths.offsets("g")
    created = [Create(path) for path in (paths.CONSUMERS, paths.GROUPS, paths.group("g"), offsets, f"{offsets}/t")]
    created += [Create(f"{offsets}/t/0", b"7"), Create(f"{offsets}/t/1", FAR_TOO_LONG.encode())]
    created += [Create(f"{offsets}/t/{FAR_TOO_LONG}", b"1")]
    created += [Create(path) for path in ("/brokers", paths.BROKER_IDS, f"{paths.BROKER_IDS}/{FAR_TOO_LONG}")]
    created += [Create(f"{paths.BROKER_IDS}/1", b'{"rack":"r1"}'), Create(paths.BROKER_TOPICS)]
    created += [Create(paths.topic("t"), b'{"partitions":{"0":[1],"1":[1]}}')]
    assert isinstance(client.perform(Multi(tuple(created))), Done)
    read = loads.read_loads(cast("BlockingZk", client), {}, "g", {"t": 2})
    assert read.committed["t"].tolist() == [7, UNKNOWN]
    assert read.racks.sets
