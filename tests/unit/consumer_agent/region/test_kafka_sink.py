"""After an error of one partition, no transaction of another stays open or ends later; nobody waits for each."""

from __future__ import annotations

import itertools
import threading
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from consumer_agent.region import Advance, KafkaSink, kafka_sink
from consumer_agent.region.at_once import MAX_AT_ONCE
from consumer_agent.region.kafka_sink import TIMEOUT_S, Lane
from consumer_agent.region.sink import Row
from tests.support.deadlines import WITHIN_S
from tests.unit.consumer_agent.runtime.interrupts import Interrupt, Interrupted

PARTITIONS = [("t", number) for number in range(3 * MAX_AT_ONCE)]
REFUSED = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))


@pytest.fixture
def sink() -> Any:
    """Return a sink with an open transaction of each partition."""
    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    sink._lanes = {partition: Lane(mock.Mock(), Row("", 0, 1, 0)) for partition in PARTITIONS}
    sink._groups["g"] = mock.Mock()
    assert sink.begin("g", {partition: Advance(0, 5, 1) for partition in PARTITIONS}) == set()
    yield sink
    sink.close()


def test_after_a_commit_that_fails_for_one_partition_no_transaction_stays_open(sink: Any) -> None:
    producers = {partition: lane.producer for partition, lane in sink._lanes.items()}
    refused = threading.Event()

    def refuse(*_: object) -> None:
        refused.set()
        raise REFUSED

    for partition, producer in producers.items():
        producer.send_offsets_to_transaction.side_effect = lambda *_: refused.wait(WITHIN_S)
        if partition == PARTITIONS[0]:
            producer.send_offsets_to_transaction.side_effect = refuse
    with pytest.raises(KafkaException):
        sink.commit()
    ended = {tp for tp, one in producers.items() if one.commit_transaction.called or one.abort_transaction.called}
    assert ended >= set(PARTITIONS[1:])
    assert not any(lane.is_open for lane in sink._lanes.values())
    assert PARTITIONS[0] not in sink._lanes  # it is claimed anew


FOREIGN = ["", "x", "[]", '{"identity":"i","life":1}', '{"identity":"i","life":1,"generation":1e400}', "[" * 4_000]


@pytest.mark.parametrize("metadata", FOREIGN)
def test_what_another_program_has_stored_yields_to_every_claim(metadata: str) -> None:
    """In `kafka_sink._decoded`, leave out an error: no consumer could claim the partition any more."""
    assert kafka_sink._decoded(TopicPartition("t", 0, 5, metadata)) == Row("", 0, -1, 5)


@pytest.mark.parametrize("other", [Advance(0, 5, 2), Advance(0, 5, 0), Advance(1, 5, 1)])
def test_nothing_is_written_under_another_claim_than_the_one_that_is_stored(sink: Any, other: Advance) -> None:
    """In `KafkaSink._is_as_given`, compare the offsets only: it was given up and started again in between."""
    sink.rollback()
    assert sink.begin("g", {PARTITIONS[0]: other, PARTITIONS[1]: Advance(0, 5, 1)}) == {PARTITIONS[0]}
    assert not any(lane.is_open for lane in sink._lanes.values())


@pytest.mark.parametrize("again_after", [0, 5, 40])
def test_ctrl_c_during_a_commit_leaves_nothing_running(sink: Any, again_after: int) -> None:
    """The rollback would meet transactions that are being committed."""
    over, lock = dict[object, str](), threading.Lock()

    def note(partition: object, how: str) -> None:
        with lock:
            assert partition not in over, "it was ended twice"
            over[partition] = how

    for at in itertools.count(1, 7):
        sink._lanes = {partition: Lane(mock.Mock(), Row("", 0, 1, 0)) for partition in PARTITIONS}
        for partition, lane in sink._lanes.items():
            lane.producer.commit_transaction = lambda *_, which=partition: note(which, "committed")
            lane.producer.abort_transaction = lambda *_, which=partition: note(which, "rolled back")
        over.clear()
        sink.begin("g", {partition: Advance(0, 5, 1) for partition in PARTITIONS})
        interrupt = Interrupt(at, *[at + again_after] * bool(again_after))
        try:
            interrupt.during(sink.commit)
        except Interrupted:
            sink.rollback()  # as a region does
        else:  # Python drops what is raised in a deallocation
            assert set(over.values()) == {"committed"}
            if interrupt.points < at:
                return
        assert over.keys() == set(PARTITIONS)
        assert not any(lane.is_open for lane in sink._lanes.values())


def test_a_rollback_without_kafka_does_not_wait_for_each_partition_in_turn(
    sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    times_s, lock = itertools.count(1_000.0, TIMEOUT_S), threading.Lock()
    now_s, waited_s = next(times_s), list[float]()
    monkeypatch.setattr(kafka_sink, "time", mock.Mock(monotonic=lambda: now_s))

    def time_out(timeout_s: float) -> None:
        nonlocal now_s
        with lock:
            waited_s.append(timeout_s)
            now_s = next(times_s)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    for lane in sink._lanes.values():
        lane.producer.abort_transaction.side_effect = time_out
    sink.rollback()
    assert len(waited_s) == len(PARTITIONS)
    assert sum(timeout_s > 0 for timeout_s in waited_s) <= MAX_AT_ONCE
    assert sink._lanes == {}
