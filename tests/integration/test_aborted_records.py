"""Records that a transaction has aborted: Kafka's client skips them and says nothing, but it is not stuck."""

from __future__ import annotations

from contextlib import closing
from unittest import mock

from confluent_kafka import Consumer, Producer, TopicPartition

from consumer_agent.kafka.progress import Progress
from tests.integration.fake_coordinator import WAIT_S, Application, Stage
from tests.support.waiting import wait_until

COUNT = 50


def transaction(producer: Producer, topic: str, count: int) -> None:
    """Begin a transaction with so many records."""
    producer.begin_transaction()
    for _ in range(count):
        producer.produce(topic, b"", partition=0)
    assert producer.flush(WAIT_S) == 0


def test_position_and_statistics_pass_what_was_aborted(stage: Stage) -> None:
    """Each by itself: `idle` has no position. No record is handed over meanwhile."""
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap, "transactional.id": stage.topic})
    producer.init_transactions(WAIT_S)
    for _ in range(2):
        transaction(producer, stage.topic, COUNT)
        producer.abort_transaction(WAIT_S)
    end, where, reports = 2 * (COUNT + 1), (stage.topic, 0), list[str]()
    settings = {"bootstrap.servers": stage.cluster.bootstrap, "group.id": stage.group}
    client = Consumer({**settings, "statistics.interval.ms": 10, "stats_cb": reports.append})
    idle = Consumer(settings)
    with closing(client), closing(idle):
        client.assign([TopicPartition(*where, 0)])

        def passed(progress: Progress, by: Consumer) -> int:
            assert client.poll(0.01) is None
            for report in reports[-1:]:
                progress.note(report)
            return progress.of(by, [where])[where]

        by_position, by_statistics = Progress(), Progress()
        with mock.patch.object(by_position, "note"):
            wait_until(lambda: passed(by_position, client) == end, "the position behind the second marker")
        wait_until(lambda: passed(by_statistics, idle) == end, "statistics that say so")


def test_an_open_transaction_is_the_end_until_it_is_over(stage: Stage) -> None:
    """The high watermark is behind it. The lag is measured to its first record, and no stall is seen."""
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap, "transactional.id": stage.topic})
    producer.init_transactions(WAIT_S)
    stage.produce([0], 5)
    transaction(producer, stage.topic, COUNT)
    stage.produce([0], 5)
    with Application(stage).start() as application:
        stage.wait_ack(stage.start(stage.wait_member(), 0))
        wait_until(lambda: application.offsets(0) == list(range(5)), "the records before the transaction")
        consumer = application.consumer
        wait_until(lambda: set(consumer.known_lag().values()) == {0}, "the lag to the open transaction")
        assert consumer.end_offsets() == {(stage.topic, 0): 5}
        producer.abort_transaction(WAIT_S)
        stage.produce([0], 1)
        wait_until(lambda: len(application.records) == 11, "the records behind it")
        *before, last = application.offsets(0)
        assert before == [*range(5), *range(5 + COUNT, 10 + COUNT)]
        assert last in {10 + COUNT, 11 + COUNT}  # the broker writes the transaction's marker before it or after it
    assert stage.offset(0) in {last + 1, 12 + COUNT}  # behind the record, or behind the marker after it
