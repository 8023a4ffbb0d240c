"""The source without Spark: the test makes Spark's calls on real servers and plays the coordinator."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from consumer_agent.errors import OffsetsElsewhereError
from tests.integration.fake_coordinator import WAIT_S, Stage, assert_stays
from tests.support.waiting import wait_until
from zkrebalancer.pipeline.source import pace, reading, stream
from zkrebalancer.pipeline.source.batch import ConsumerGroupReader
from zkrebalancer.pipeline.source.kafka import DataLossError
from zkrebalancer.pipeline.source.offsets import Document
from zkrebalancer.pipeline.source.options import Options, parse
from zkrebalancer.pipeline.source.stream import ConsumerGroupStreamReader, RangesPartition
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Multi, Refusal
from zkrebalancer.protocol.errors import ConfigurationError

Place = tuple[int, int]  # partition and offset
EXISTS = {Refusal.NODE_EXISTS}


class Query:
    """A query as Spark runs it: batch after batch, each starting at the end of the one before."""

    def __init__(self, stage: Stage, **given: str) -> None:
        self.options = options(stage, **given)
        self.reader = ConsumerGroupStreamReader(self.options)
        self.start: Document = {}

    def plan(self) -> Document:
        """Plan a batch if there is something to read; return its end."""
        return self.reader.latestOffset(self.start, self.reader.getDefaultReadLimit())

    def wait_batch(self) -> Document:
        wait_until(lambda: self.plan() != self.start, "a batch")
        return self.plan()

    def read(self, end: Document) -> list[Place]:
        """Read the batch as its tasks do."""
        rows: list[Place] = []
        for task in self.reader.partitions(self.start, end):
            for batch in self.reader.read(task):
                rows += [(row["partition"], row["offset"]) for row in batch.to_pylist()]
        return rows

    def finish(self, end: Document) -> Document:
        """Complete the batch, and ask for the next one."""
        self.start = end
        return self.plan()


def options(stage: Stage, **given: str) -> Options:
    required = {"zookeeper": stage.cluster.zookeeper, "bootstrap": stage.cluster.bootstrap, "group": stage.group}
    return parse({**required, "topics": stage.topic, "sessionTimeoutMs": "2000", **given})


@pytest.fixture
def query(stage: Stage) -> Iterator[Query]:
    query = Query(stage)
    query.plan()
    yield query
    query.reader.stop()


def numbers(partition: int, begin: int, end: int) -> list[Place]:
    return [(partition, offset) for offset in range(begin, end)]


def test_a_batch_is_what_is_owned_and_is_committed_when_spark_asks_for_the_next_one(stage: Stage, query: Query) -> None:
    stage.produce([0, 1, 2], 10)
    stage.wait_ack(stage.start(stage.wait_member(), 0, 2))
    end = query.wait_batch()
    assert end == {stage.topic: {p: {"from": 0, "to": 10, "generation": 1} for p in ("0", "2")}}
    assert sorted(query.read(end)) == numbers(0, 0, 10) + numbers(2, 0, 10)
    assert stage.offset(0) is None
    assert query.finish(end) == end  # nothing new
    assert [stage.offset(0), stage.offset(2)] == [10, 10]
    stage.start(stage.wait_member(), 1)  # comes with the next batch
    second = query.wait_batch()
    assert second == {stage.topic: {"1": {"from": 0, "to": 10, "generation": 2}}}
    query.reader.commit(second)
    assert stage.offset(1) == 10


def test_ranges_are_one_task_and_are_committed_like_records(stage: Stage) -> None:
    query = Query(stage, rows="ranges")
    query.plan()
    stage.produce([0, 1], 10)
    stage.wait_ack(stage.start(stage.wait_member(), 0, 1))
    end = query.wait_batch()
    (task,) = query.reader.partitions(query.start, end)
    (batch,) = query.reader.read(task)
    row = {"topic": stage.topic, "begin": 0, "end": 10, "generation": 1, "identity": ""}
    assert batch.to_pylist() == [{**row, "partition": 0}, {**row, "partition": 1}]
    assert query.reader.partitions(end, end) == []
    query.finish(end)
    assert stage.offset(0) == 10
    query.reader.stop()


def test_without_a_limit_batches_begin_small_and_grow(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a first batch of months of records is planned, which takes longer than the group waits."""
    monkeypatch.setattr(stream, "FIRST_OFFSETS", 3)
    monkeypatch.setattr(pace, "FEWEST_OFFSETS", 1)
    query = Query(stage)
    query.plan()
    stage.produce([0], 30)
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    sizes = []
    for _ in range(3):
        end = query.wait_batch()
        sizes.append(len(query.read(end)))
        query.start = end
    assert sizes == [3, 6, 12]
    query.reader.stop()


def test_a_query_says_who_and_where_it_is_and_how_much_it_can_read(stage: Stage) -> None:
    query = Query(stage, instanceId="report", rack="r1", capacity="6")
    query.plan()
    registered = json.loads(stage.content(paths.ids(stage.group, stage.wait_member())) or b"")
    query.reader.stop()
    assert (registered["instance_id"], registered["rack"], registered["capacity"]) == ("report", "r1", 6.0)


def test_a_stop_waits_for_the_batch_in_flight_and_is_acknowledged_with_its_commit(stage: Stage, query: Query) -> None:
    stage.produce([0, 1], 10)
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0, 1))
    end = query.wait_batch()
    stop = stage.stop(member, 0)
    assert_stays(lambda: stage.is_pending(stop), 0.5)
    assert query.read(end)
    stage.produce([0, 1], 5)
    following = query.finish(end)
    assert following == {stage.topic: {"1": {"from": 10, "to": 15, "generation": 1}}}
    stage.wait_ack(stop)
    assert stage.offset(0) == 10


def test_with_nothing_in_flight_a_stop_is_acknowledged_while_spark_sleeps(stage: Stage, query: Query) -> None:
    stage.produce([0], 10)
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    end = query.wait_batch()
    assert query.finish(end) == end
    stage.wait_ack(stage.stop(member, 0))
    assert stage.offset(0) == 10


def test_a_batch_whose_partitions_were_lost_commits_nothing(stage: Stage, query: Query) -> None:
    stage.produce([0], 10)
    member = stage.wait_member()
    stage.wait_ack(stage.start(member, 0))
    end = query.wait_batch()
    stage.evict(member)
    query.finish(end)
    wait_until(lambda: [query.plan(), stage.members()][1] not in {(), (member,)}, "the member to come back")
    stage.wait_ack(stage.start(stage.wait_member(member), 0))
    again = query.wait_batch()  # only the sink knows whether it stored this batch, so the next owner reads it again
    assert again == {stage.topic: {"0": {"from": 0, "to": 10, "generation": 2}}}
    assert stage.offset(0) is None


def test_a_planned_batch_is_read_again_after_a_restart_and_does_not_count_for_the_group(stage: Stage) -> None:
    stage.produce([0, 1], 10)
    before, after = Query(stage), Query(stage)
    before.plan()
    stage.wait_ack(stage.start(stage.wait_member(), 0, 1))
    planned = before.wait_batch()
    rows = before.read(planned)
    before.reader.stop()
    wait_until(lambda: not stage.members(), "the end of the first member")
    assert stage.offset(0) == 0  # it left nothing of the batch in flight
    stage.produce([0], 3)
    assert after.read(planned) == rows
    after.finish(planned)
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    assert after.wait_batch()[stage.topic]["0"] == {"from": 0, "to": 13, "generation": 2}
    after.reader.stop()


def test_a_limit_and_a_number_of_tasks(stage: Stage) -> None:
    stage.produce([0, 1], 10)
    query = Query(stage, maxOffsetsPerTrigger="6", minPartitions="3")
    query.plan()
    stage.wait_ack(stage.start(stage.wait_member(), 0, 1))
    end = query.wait_batch()
    assert [len(task.ranges) for task in query.reader.partitions({}, end)] == [1, 2, 1]
    assert sorted(query.read(end)) == numbers(0, 0, 3) + numbers(1, 0, 3)
    query.reader.stop()


def test_available_now_ends_where_the_logs_ended(stage: Stage) -> None:
    stage.produce([0, 1], 10)
    query = Query(stage, maxOffsetsPerTrigger="8")
    query.plan()
    stage.start(stage.wait_member(), 0, 1)
    query.reader.prepareForTriggerAvailableNow()
    stage.produce([0, 1], 10)
    rows = []
    while (end := query.plan()) != query.start:
        rows += query.read(end)
        query.start = end
    assert sorted(rows) == numbers(0, 0, 10) + numbers(1, 0, 10)
    assert [stage.offset(0), stage.offset(1)] == [10, 10]
    query.reader.stop()


def test_available_now_goes_on_after_an_eviction(stage: Stage) -> None:
    """Fails if the query ends because the member has yet to get its partitions back."""
    stage.produce([0], 10)
    query = Query(stage)
    query.plan()
    member = stage.wait_member()
    stage.start(member, 0)
    query.reader.prepareForTriggerAvailableNow()
    end = query.wait_batch()
    stage.evict(member)
    planned = list[Document]()
    planning = threading.Thread(target=lambda: planned.append(query.finish(end)))
    planning.start()
    stage.start(stage.wait_member(member), 0)
    planning.join(WAIT_S)
    assert planned == [{stage.topic: {"0": {"from": 0, "to": 10, "generation": 2}}}]
    query.reader.stop()


def test_once_is_refused(stage: Stage) -> None:
    reader = ConsumerGroupStreamReader(options(stage))
    with pytest.raises(ConfigurationError, match="availableNow"):
        reader.latestOffset({}, ReadAllAvailable())


def test_a_query_that_stops_leaves_the_group(stage: Stage, query: Query) -> None:
    stage.wait_member()
    query.reader.stop()
    wait_until(lambda: not stage.members(), "the member to leave")


@pytest.mark.parametrize("storage", ["kafka", "dual"])
def test_a_batch_query_knows_what_the_group_stores_in_kafka(stage: Stage, storage: str) -> None:
    stage.produce([0, 1], 10)
    consumer = Consumer({"bootstrap.servers": stage.cluster.bootstrap, "group.id": stage.group})
    consumer.commit(offsets=[TopicPartition(stage.topic, 0, 7)], asynchronous=False)
    consumer.close()
    tasks = ConsumerGroupReader(options(stage, offsetsStorage=storage, minPartitions="1")).partitions()
    ranges = [each for task in tasks if isinstance(task, RangesPartition) for each in task.ranges]
    assert [(each.partition, each.begin, each.end) for each in ranges] == [(0, 7, 10), (1, 0, 10)]


@pytest.mark.parametrize("given", [{}, {"ignoreKafkaOffsets": "true"}])
def test_a_batch_query_fails_where_a_streaming_one_does(stage: Stage, given: dict[str, str]) -> None:
    """As it was: it silently read what plain consumers of its group had read."""
    stage.produce([0], 10)
    consumer = Consumer({"bootstrap.servers": stage.cluster.bootstrap, "group.id": stage.group})
    consumer.commit(offsets=[TopicPartition(stage.topic, 0, 7)], asynchronous=False)
    consumer.close()
    reader = ConsumerGroupReader(options(stage, minPartitions="1", **given))
    with nullcontext() if given else pytest.raises(OffsetsElsewhereError, match="ignore_kafka_offsets"):
        assert len(reader.partitions()) == 1


@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
def test_a_batch_query_reads_a_topic_that_was_made_anew_from_its_beginning(stage: Stage, storage: str) -> None:
    """In `ConsumerGroupReader._stored`, look at no mark: the first records would be left out, without a word."""
    stage.produce([0], 10)
    if storage == "kafka":
        consumer = Consumer({"bootstrap.servers": stage.cluster.bootstrap, "group.id": stage.group})
        former = TopicPartition(stage.topic, 0, 7, metadata="zkrebalancer:id-of-the-former czxid-1")
        consumer.commit(offsets=[former], asynchronous=False)
        consumer.close()
    else:
        path = paths.offsets(stage.group, stage.topic)
        parts = path.split("/")
        for depth in range(2, len(parts)):
            stage.zk.perform(Multi((Create("/".join(parts[:depth])),)), EXISTS)
        stage.zk.perform(Multi((Create(path, b"id-of-the-former czxid-1"), Create(f"{path}/0", b"7"))))
    tasks = ConsumerGroupReader(options(stage, offsetsStorage=storage, minPartitions="1")).partitions()
    ranges = [each for task in tasks if isinstance(task, RangesPartition) for each in task.ranges]
    assert [(each.partition, each.begin, each.end) for each in ranges] == [(0, 0, 10)]


# ---- offsets that are no records


def of_range(stage: Stage, partition: int, begin: int, end: int, **given: str) -> list[int]:
    """Read one range and return its offsets."""
    query = Query(stage, **given)
    document = {stage.topic: {str(partition): {"from": begin, "to": end, "generation": 1}}}
    return [offset for _, offset in query.read(document)]


def test_aborted_transactions_and_their_markers_do_not_hold_a_batch_up(stage: Stage, query: Query) -> None:
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap, "transactional.id": stage.topic})
    producer.init_transactions(WAIT_S)
    for is_kept in (True, False, True, False):  # offsets 0-3 (the marker is 3), 4-7, 8-11, 12-15
        producer.begin_transaction()
        for number in range(3):
            producer.produce(stage.topic, f"{number}".encode(), partition=0)
        producer.flush(WAIT_S)  # otherwise an abort drops unsent records
        (producer.commit_transaction if is_kept else producer.abort_transaction)(WAIT_S)
    assert of_range(stage, 0, 0, 16) == [0, 1, 2, 8, 9, 10]
    assert of_range(stage, 0, 4, 8) == []  # more offsets without records follow, then records
    assert of_range(stage, 0, 12, 16) == []  # nothing follows
    assert of_range(stage, 0, 3, 4) == []
    producer.begin_transaction()
    producer.produce(stage.topic, b"open", partition=0)
    producer.flush(WAIT_S)
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    end = query.wait_batch()
    assert end[stage.topic]["0"]["to"] == 16  # open transactions are not part of a batch
    assert [offset for _, offset in query.read(end)] == [0, 1, 2, 8, 9, 10]
    producer.abort_transaction(WAIT_S)


def test_a_compacted_topic(stage: Stage) -> None:
    settings = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.001",
        "max.compaction.lag.ms": "100",
        "delete.retention.ms": "0",
    }
    topic = stage.topic = f"{stage.topic}-compacted"
    admin = AdminClient({"bootstrap.servers": stage.cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(WAIT_S)
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap, "linger.ms": 0})

    def compacted() -> bool:
        producer.produce(topic, b"new", key=b"other")  # rolls the segment
        producer.flush(WAIT_S)
        return set(range(8)).isdisjoint(of_range(stage, 0, 0, 10))

    for _ in range(10):
        producer.produce(topic, b"x", key=b"same")
    producer.flush(WAIT_S)
    wait_until(compacted, "compaction")
    assert of_range(stage, 0, 2, 7) == []


@pytest.mark.parametrize("fails", ["true", "false"])
def test_records_that_kafka_has_deleted(stage: Stage, fails: str) -> None:
    stage.produce([0], 10)
    delete_records(stage, 6)
    if fails == "true":
        with pytest.raises(DataLossError, match="offset 2 should be read, but Kafka has 6 to 10"):
            of_range(stage, 0, 2, 8)
    else:
        assert of_range(stage, 0, 2, 8, failOnDataLoss=fails) == [6, 7]
        assert of_range(stage, 0, 2, 5, failOnDataLoss=fails) == []


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_log_that_ends_before_the_range(stage: Stage, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SHORT_LOG_S", 0.0)  # the topic is a new one by now, so no more records will come
    stage.produce([0], 10)
    if fails == "true":
        with pytest.raises(DataLossError, match="offsets up to 20 should be read, but Kafka's log ends at 10"):
            of_range(stage, 0, 5, 20, minPartitions="1")
    else:
        assert of_range(stage, 0, 5, 20, failOnDataLoss=fails) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_batch_that_spark_repeats_after_its_topic_was_created_again(stage: Stage, fails: str) -> None:
    """Fails if records of the new topic are read in place of the deleted ones, and again from its beginning."""
    stage.produce([0], 10)
    ranges = {"0": {"from": 2, "to": 8, "generation": 1, "identity": "czxid-1"}}
    reader = ConsumerGroupStreamReader(options(stage, failOnDataLoss=fails))
    for topic in (stage.topic, "deleted"):
        if fails == "true":
            with pytest.raises(DataLossError, match=f"{topic} was deleted after a batch had been planned"):
                reader.partitions({}, {topic: ranges})
        else:
            assert reader.partitions({}, {topic: ranges}) == []


def delete_records(stage: Stage, below: int) -> None:
    admin: Any = AdminClient({"bootstrap.servers": stage.cluster.bootstrap})
    for future in admin.delete_records([TopicPartition(stage.topic, 0, below)]).values():
        future.result(WAIT_S)


def test_events_tell_of_each_batch_its_ranges_its_lag_and_the_generation(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 10)
    query = Query(stage, maxOffsetsPerTrigger="6", events=str(tmp_path / "events"), clientId="etl")
    query.plan()
    stage.wait_ack(stage.start(stage.wait_member(), 0))
    query.finish(query.wait_batch())
    assert query.reader.reportLatestOffset() == {stage.topic: {"0": 10}}
    query.reader.stop()
    (file,) = (tmp_path / "events").glob("etl-batches-*.jsonl")
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert {(event["group"], event["topic"], event["generation"]) for event in told} == {(stage.group, stage.topic, 1)}
    keys = ("kind", "partitions", "positions", "ends", "lags")
    assert [[event[key] for key in keys] for event in told] == [
        ["batch_planned", [0], [0], [6], [4]],
        ["batch_finished", [0], [0], [6], [4]],
        ["batch_planned", [0], [6], [10], [0]],
    ]


def test_what_spark_is_asked_for_at_most(stage: Stage) -> None:
    assert ConsumerGroupStreamReader(options(stage)).getDefaultReadLimit() == ReadMaxRows(2**63 - 1)
