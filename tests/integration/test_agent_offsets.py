"""Stored offsets and start positions, on a real ZooKeeper and a real Kafka, without a coordinator."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from consumer_agent import CommitFailedError, ConsumerStateError, NoOffsetError
from consumer_agent.kafka import elsewhere
from tests.integration.fake_coordinator import WAIT_S, Application, Stage
from tests.support.waiting import wait_until
from zkrebalancer.experiments.java_programs import OPTIONS
from zkrebalancer.localcluster import jars
from zkrebalancer.localcluster.java import find_java
from zkrebalancer.protocol import calls, paths


def in_kafka(stage: Stage, partition: int) -> tuple[int, str] | None:
    """Return the offsets in Kafka's store, as Kafka's tools see them."""
    admin = AdminClient({"bootstrap.servers": stage.cluster.bootstrap})
    wanted = ConsumerGroupTopicPartitions(stage.group, [KafkaPartition(stage.topic, partition)])
    (found,) = admin.list_consumer_group_offsets([wanted])[stage.group].result(WAIT_S).topic_partitions
    return None if found.offset < 0 else (found.offset, found.metadata or "")


def put_into_kafka(stage: Stage, partition: int, offset: int, text: str = "") -> None:
    admin = AdminClient({"bootstrap.servers": stage.cluster.bootstrap})
    wanted = ConsumerGroupTopicPartitions(stage.group, [KafkaPartition(stage.topic, partition, offset, text)])
    admin.alter_consumer_group_offsets([wanted])[stage.group].result(WAIT_S)


def put_into_zookeeper(stage: Stage, partition: int, offset: int, mark: str = "") -> None:
    topic = calls.Create(paths.offsets(stage.group, stage.topic), mark.encode())
    node = calls.Create(paths.offsets(stage.group, stage.topic, partition), str(offset).encode())
    assert isinstance(stage.zk.perform(calls.Multi((topic, node))), calls.Done)


def has_read(count: int, *applications: Application) -> bool:
    return sum(len(application.records) for application in applications) >= count


@pytest.mark.parametrize("storage", ["zookeeper", "kafka", "dual"])
def test_the_final_offset_is_where_the_next_owner_looks(stage: Stage, storage: str) -> None:
    stage.produce([0], 100)
    with (
        Application(stage, client_id="one", offsets_storage=storage).start() as one,
        Application(stage, client_id="two", offsets_storage=storage).start() as two,
    ):
        wait_until(lambda: len(stage.members()) == 2, "both consumers")
        first, second = sorted(stage.members())
        for turn in range(4):
            stage.wait_ack(stage.start(first, 0))
            count = 100 + 50 * turn
            wait_until(partial(has_read, count, one, two), "all records")
            stage.wait_ack(stage.stop(first, 0))
            assert (stage.offset(0) == count) == (storage != "kafka")
            assert (in_kafka(stage, 0) == (count, "zkrebalancer:")) == (storage != "zookeeper")
            stage.produce([0], 50)
            first, second = second, first
    assert sorted(one.offsets(0) + two.offsets(0)) == list(range(250))


def test_kafkas_own_tool_shows_the_offsets_and_the_lag(stage: Stage) -> None:
    stage.produce([0, 1], 40)
    with Application(stage, offsets_storage="kafka").start() as application:
        stage.wait_ack(stage.start(stage.wait_member(), 0, 1))
        wait_until(lambda: len(application.records) == 80, "the records")
        application.hold()
        application.consumer.commit()
        stage.produce([1], 7)
        rows = described(stage)
        application.release()
    assert rows == {0: ("40", "40", "0"), 1: ("40", "47", "7")}


def described(stage: Stage) -> dict[int, tuple[str, ...]]:
    """Return partition -> offset, log end and lag, as `kafka-consumer-groups.sh --describe` prints them."""
    java = find_java()
    class_path = jars.class_path(jars.OLD_CLIENT, java, jars.JarSource.of(None, None, lambda _line: None))
    command = [java, *OPTIONS, "-cp", class_path, "kafka.admin.ConsumerGroupCommand"]
    command += ["--describe", "--group", stage.group, "--bootstrap-server", stage.cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(stage.topic)]
    return {int(row[1]): tuple(row[2:5]) for row in rows}


def test_in_dual_the_higher_offset_wins_and_both_are_brought_up_to_it(stage: Stage) -> None:
    stage.produce([0, 1], 30)
    put_into_kafka(stage, 0, 20)
    put_into_kafka(stage, 1, 5)
    with Application(stage, offsets_storage="dual").start() as application:
        member = stage.wait_member()
        put_into_zookeeper(stage, 0, 10)
        stage.wait_ack(stage.start(member, 0, 1))
        wait_until(lambda: len(application.records) == 10 + 25, "the rest")
        assert application.offsets(0)[0] == 20
        assert application.offsets(1)[0] == 5
    assert [stage.offset(0), stage.offset(1)] == [30, 30]
    assert in_kafka(stage, 0) == (30, "zkrebalancer:")


def test_an_offset_in_kafka_of_a_topic_that_was_created_again_does_not_count(stage: Stage) -> None:
    stage.produce([0, 1], 10)
    put_into_kafka(stage, 0, 7, "zkrebalancer:old-topic")
    put_into_kafka(stage, 1, 7, "what another program wrote")
    with Application(stage, offsets_storage="kafka").start() as application:
        member = stage.wait_member()
        put_into_zookeeper(stage, 3, 0, mark="new-topic")
        stage.wait_ack(stage.start(member, 0, 1))
        wait_until(lambda: len(application.records) == 10 + 3, "the records")
    assert in_kafka(stage, 0) == (10, "zkrebalancer:new-topic")


def test_an_offset_that_kafka_has_forgotten_since_the_start_does_not_end_a_consumer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the topic had been made anew: both stores have deleted its offsets, of which only the first look knew."""
    monkeypatch.setattr(elsewhere, "FRESH_S", 0.0)
    stage.produce([0], 10)
    put_into_kafka(stage, 0, 5)
    with Application(stage).start() as application:
        member = stage.wait_member()
        put_into_zookeeper(stage, 0, 8)
        stage.wait_ack(stage.start(member, 0))
        wait_until(lambda: len(application.records) == 2, "the records from the stored offset on")
        stage.wait_ack(stage.stop(member, 0))
        admin = AdminClient({"bootstrap.servers": stage.cluster.bootstrap})
        admin.delete_consumer_groups([stage.group])[stage.group].result(WAIT_S)
        deleted = stage.zk.perform(calls.Multi((calls.Delete(paths.offsets(stage.group, stage.topic, 0)),)))
        assert isinstance(deleted, calls.Done)
        stage.wait_ack(stage.start(member, 0))
        wait_until(lambda: len(application.records) == 2 + 10, "the records from the beginning on")


def test_who_is_evicted_commits_nothing_to_kafka(stage: Stage) -> None:
    stage.produce([0], 10)
    with Application(stage, offsets_storage="kafka", enable_auto_commit=False).start() as application:
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, 0))
        wait_until(lambda: len(application.records) == 10, "the records")
        application.hold()
        stage.evict(member)
        with pytest.raises(CommitFailedError):
            application.consumer.commit()
        application.release()
    assert in_kafka(stage, 0) is None


def test_beside_members_of_kafkas_own_protocol_a_commit_says_so(stage: Stage) -> None:
    stage.produce([0], 10)
    member = KafkaConsumer({"bootstrap.servers": stage.cluster.bootstrap, "group.id": stage.group})
    with Application(stage, offsets_storage="kafka", enable_auto_commit=False).start() as application:
        stage.wait_ack(stage.start(stage.wait_member(), 0))
        wait_until(lambda: len(application.records) == 10, "the records")
        application.hold()
        member.subscribe([stage.topic])  # before, the agent would not begin
        wait_until(lambda: member.poll(0.1) is None and member.assignment(), "the group of Kafka")
        with pytest.raises(
            CommitFailedError, match=f"^.*{stage.topic}/0: .*the group has members of Kafka's own protocol"
        ):
            application.consumer.commit()
        member.close()
        application.consumer.commit()
        application.release()
    assert in_kafka(stage, 0) == (10, "zkrebalancer:")


def test_none_tells_in_every_poll_that_no_offset_is_stored(stage: Stage) -> None:
    stage.produce([0, 1], 10)
    application = Application(stage, auto_offset_reset="none", on_error=NoOffsetError)
    with application.start():
        member = stage.wait_member()
        put_into_zookeeper(stage, 1, 5)
        stage.wait_ack(stage.start(member, 0, 1))
        wait_until(lambda: len(application.errors) > 2, "errors")
        text = f"{stage.topic}/0: no offset of group {stage.group} is stored, and auto_offset_reset is none"
        assert {str(error) for error in application.errors} == {text}
        application.hold()
        application.consumer.seek({(stage.topic, 0): 8})
        application.release()
        wait_until(lambda: application.offsets(0) == [8, 9], "the records from where the application wants them")
        wait_until(lambda: application.offsets(1) == [5, 6, 7, 8, 9], "the records of the other partition")
    assert stage.offset(0) == 10


def test_none_is_told_again_when_a_stop_is_taken_back_and_nothing_is_read_from_the_end(stage: Stage) -> None:
    stage.produce([0], 10)
    application = Application(stage, auto_offset_reset="none", on_error=NoOffsetError)
    with application.start(ask=True):
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, 0))
        wait_until(lambda: application.errors, "an error")
        application.hold()
        stop = stage.stop(member, 0)
        wait_until(lambda: application.consumer.assignment() == [], "the emission to end")
        assert isinstance(stage.zk.perform(calls.Multi((calls.Delete(stop),))), calls.Done)
        wait_until(lambda: application.consumer.assignment() == sorted(stage.of(0)), "the emission to go on")
        application.errors.clear()
        application.release()
        wait_until(lambda: application.errors, "the error again")
        stage.produce([0], 5)
        application.hold()
        application.consumer.seek({(stage.topic, 0): 8})
        application.release()
        wait_until(lambda: len(application.records) >= 7, "the records")
    assert application.offsets(0) == list(range(8, 15))
    assert [what for what, _ in application.told] == ["assign", "revoke", "assign", "revoke"]


def test_none_tells_that_kafka_does_not_have_the_stored_offset(stage: Stage, tmp_path: Path) -> None:
    stage.produce([0], 10)
    application = Application(stage, auto_offset_reset="none", on_error=NoOffsetError, events_directory=tmp_path)
    with application.start():
        member = stage.wait_member()
        put_into_zookeeper(stage, 0, 4_711)
        stage.wait_ack(stage.start(member, 0))
        wait_until(lambda: application.errors, "an error")
        text = f"{stage.topic}/0: Kafka has offsets 0 to 10, not 4711; auto_offset_reset is none"
        error = application.errors[0]
        assert str(error) == text
        assert isinstance(error, NoOffsetError)
        assert (error.partition, error.offset) == ((stage.topic, 0), 4_711)
        assert (error.earliest, error.latest) == (0, 10)
        assert application.consumer.metrics()["unpositioned_partitions"] == 1
        application.hold()
        application.consumer.seek({error.partition: 8})
        application.release()
        wait_until(lambda: application.offsets(0) == [8, 9], "the records from where the application wants them")
        assert application.consumer.metrics()["unpositioned_partitions"] == 0
    assert stage.offset(0) == 10
    (told,) = events_of(tmp_path, "offset_out_of_range")
    assert (told["offset"], told["earliest"], told["latest"]) == (4_711, 0, 10)
    (moved,) = events_of(tmp_path, "repositioned")
    assert (moved["positions"], moved["reason"]) == ([8], "seek")


@pytest.mark.parametrize("reset", ["earliest", "latest", "2023-11-14T22:13:21+00:00"])
def test_an_offset_that_kafka_does_not_have_is_told_in_the_log_the_events_and_the_metrics(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture, reset: str
) -> None:
    stage.produce([0], 5, timestamp_ms=1_700_000_000_000)
    stage.produce([0], 5, timestamp_ms=1_700_000_002_000)
    goes_on_at = {"earliest": 0, "latest": 10}.get(reset, 5)
    with Application(stage, auto_offset_reset=reset, events_directory=tmp_path).start() as application:
        member = stage.wait_member()
        put_into_zookeeper(stage, 0, 4_711)
        stage.wait_ack(stage.start(member, 0))
        numbers = application.consumer.metrics
        wait_until(lambda: numbers()["offsets_out_of_range_total"] == 1, "the offset to be found out of range")
        stage.produce([0], 5)
        wait_until(lambda: application.offsets(0) == list(range(goes_on_at, 15)), "the records from there on")
        assert numbers()["offsets_out_of_range_total"] == 1
    text = f"{stage.topic}/0: Kafka has offsets 0 to 10, not 4711; continuing at {goes_on_at}"
    text += f", which reads {10 - goes_on_at} offsets again" if goes_on_at < 10 else ""
    assert text in [record.message for record in caplog.records]
    (told,) = events_of(tmp_path, "offset_out_of_range")
    assert [told[key] for key in ("member", "offset", "earliest", "latest")] == [member, 4_711, 0, 10]
    (moved,) = events_of(tmp_path, "repositioned")
    assert [moved[key] for key in ("partitions", "positions", "reason")] == [[0], [goes_on_at], "reset"]


def events_of(directory: Path, kind: str) -> list[dict[str, Any]]:
    lines = [line for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def test_a_time_is_where_a_partition_begins(stage: Stage) -> None:
    stage.produce([0, 1], 5, timestamp_ms=1_700_000_000_000)
    stage.produce([0], 3, timestamp_ms=1_700_000_002_000)
    moment = datetime.fromtimestamp(1_700_000_001, UTC)
    with Application(stage, auto_offset_reset=moment.isoformat()).start() as application:
        stage.wait_ack(stage.start(stage.wait_member(), 0, 1))
        wait_until(lambda: application.offsets(0) == [5, 6, 7], "the records since then")
        stage.produce([1], 2)
        wait_until(lambda: application.offsets(1) == [5, 6], "what comes after the end")


# ---- what an application commits


@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
def test_a_record_given_offsets_and_a_commit_that_is_not_waited_for(stage: Stage, storage: str) -> None:
    stage.produce([0, 1], 20)
    told: list[tuple[str, bool]] = []

    def note(name: str, error: Exception | None) -> None:
        told.append((name, error is None))

    with Application(stage, offsets_storage=storage, enable_auto_commit=False).start() as application:
        stage.wait_ack(stage.start(stage.wait_member(), 0, 1))
        wait_until(lambda: len(application.records) == 40, "the records")
        application.hold()
        consumer, topic = application.consumer, stage.topic
        consumer.commit(next(record for record in application.records if record[1:3] == (0, 4)))
        assert consumer.committed() == {(topic, 0): 5, (topic, 1): 0}
        consumer.commit({(topic, 0): 9, (topic, 1): 3})
        consumer.commit({(topic, 0): 7})
        assert consumer.committed([(topic, 0)]) == {(topic, 0): 7}
        for number in range(10, 15):
            consumer.commit_async({(topic, 0): number}, partial(note, str(number)))
        with pytest.raises(ConsumerStateError, match="returned up to 20"):
            consumer.commit({(topic, 0): 21})
        with pytest.raises(CommitFailedError, match="no longer belongs to this consumer"):
            consumer.commit({(topic, 3): 0})
        application.release()
        wait_until(lambda: len(told) == 5, "the callbacks")
        application.hold()
        consumer.commit_async({(topic, 1): 4}, partial(note, "last"))
        application.release()
    assert told == [*((str(number), True) for number in range(10, 15)), ("last", True)]
    if storage == "kafka":
        assert [in_kafka(stage, 0), in_kafka(stage, 1)] == [(14, "zkrebalancer:"), (4, "zkrebalancer:")]
    else:
        assert [stage.offset(0), stage.offset(1)] == [14, 4]
