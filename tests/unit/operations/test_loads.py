"""Reading loads from nodes that any program may have written."""

from __future__ import annotations

from typing import cast

import pytest

from tests.unit.operations.model_client import ModelClient
from zkrebalancer.assignment.loads import UNKNOWN
from zkrebalancer.operations import kafka_offsets, loads
from zkrebalancer.protocol import paths, weights
from zkrebalancer.protocol.calls import Create, Done, Multi
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.zk import BlockingZk

KAFKA = {"bootstrap.servers": "b:1"}
FAR_TOO_LONG = "9" * 5_000


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[TopicPartition]]:
    """Kafka knows the end of each log, and has no offsets; returns what it was asked."""
    requests: list[list[TopicPartition]] = []

    def ends(kafka: object, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        assert kafka == KAFKA
        requests.append(partitions)
        return {(topic, number): 10 + number for topic, number in partitions}

    monkeypatch.setattr(kafka_offsets, "known_log_ends", ends)
    monkeypatch.setattr(kafka_offsets.StoredInKafka, "read", lambda _self: {})
    return requests


def read(client: ModelClient, topics: dict[str, int]) -> loads.StoredLoads:
    return loads.read_loads(cast("BlockingZk", client), KAFKA, "g", topics)


def test_invalid_numbers_do_not_affect_valid_ones() -> None:
    client, offsets = ModelClient(), paths.offsets("g")
    created = [Create(path) for path in (paths.CONSUMERS, paths.GROUPS, paths.group("g"), offsets, f"{offsets}/t")]
    created += [Create(f"{offsets}/t/0", b"7"), Create(f"{offsets}/t/1", FAR_TOO_LONG.encode())]
    created += [Create(f"{offsets}/t/{FAR_TOO_LONG}", b"1")]
    created += [Create(path) for path in ("/brokers", paths.BROKER_IDS, f"{paths.BROKER_IDS}/{FAR_TOO_LONG}")]
    created += [Create(f"{paths.BROKER_IDS}/1", b'{"rack":"r1"}'), Create(paths.BROKER_TOPICS)]
    created += [Create(paths.topic("t"), b'{"partitions":{"0":[1],"1":[1]}}')]
    assert isinstance(client.perform(Multi(tuple(created))), Done)
    found = read(client, {"t": 2})
    assert found.committed["t"].tolist() == [7, UNKNOWN]
    assert found.racks.sets == (frozenset(), frozenset({"r1"}))


def test_ends_are_asked_for_in_requests_of_limited_size(
    monkeypatch: pytest.MonkeyPatch, asked: list[list[TopicPartition]]
) -> None:
    monkeypatch.setattr(loads, "MAX_PARTITIONS_PER_REQUEST", 2)

    found = read(ModelClient(), {"t": 3, "u": 2})

    assert asked == [[("t", 0), ("t", 1)], [("t", 2), ("u", 0)], [("u", 1)]]
    assert {topic: ends.tolist() for topic, ends in found.ends.items()} == {"t": [10, 11, 12], "u": [10, 11]}


def test_the_higher_of_both_stores_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    in_kafka = {("t", 0): 5, ("t", 1): 7, ("t", 2): 4, ("other", 0): 9}
    monkeypatch.setattr(kafka_offsets.StoredInKafka, "read", lambda _self: dict(in_kafka))
    client = ModelClient()
    for number, offset in ((0, 6), (1, 3), (3, 0)):
        client.create(paths.offsets("g", "t", number), b"%d" % offset)

    assert read(client, {"t": 5}).committed["t"].tolist() == [6, 7, 4, 0, UNKNOWN]


def test_the_time_of_the_reading_is_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100, 200])
    monkeypatch.setattr(clock, "steady_us", lambda: next(times))
    assert read(ModelClient(), {"t": 1}).taken_us == 100


HOURLY = weights.Weights(weights.DAY, {"t": [[float(hour) for hour in range(24)]] * 3, "gone": [[1.0] * 24]})


def test_expected_rates_are_those_of_this_hour_for_partitions_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "epoch_ms", lambda: (17 * 3_600 + 1) * 1_000)
    client = ModelClient()
    client.create(paths.weights("g"), weights.encode(HOURLY))

    found = read(client, {"t": 2, "u": 1})

    assert (found.expected, found.refused) == ({"t": [17.0, 17.0]}, None)


@pytest.mark.parametrize(("content", "refused"), [(None, None), (b"", None), (b"[", "weights")])
def test_weights_that_are_not_there_or_invalid_are_not_used(content: bytes | None, refused: str | None) -> None:
    client = ModelClient()
    if content is not None:
        client.create(paths.weights("g"), content)

    found = read(client, {"t": 2})

    assert found.expected == {}
    assert (found.refused is None) == (refused is None)
    assert (refused or "") in (found.refused or "")
