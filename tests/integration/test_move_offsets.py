"""A group of plain Kafka consumers moves here and back, by the commands of the docs: every record is read once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from consumer_agent import Consumer, GroupInUseError, OffsetsElsewhereError
from tests.integration.commands import run
from tests.integration.scenario import Scenario
from tests.support.deadlines import WITHIN_S
from zkrebalancer.observe.inspection import UnknownGroupError
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.operations.move_offsets import in_zookeeper
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Done, Multi
from zkrebalancer.runtime.zk import BlockingZk

PARTITIONS = 3
RECORDS = 300


class Moving:
    """A topic with numbered records, and the records that were read so far."""

    def __init__(self, scenario: Scenario) -> None:
        self.cluster = scenario.lab.cluster
        self.group, self.topic = f"g{scenario.number}-moving", scenario.topic("moving")
        scenario.lab.create_topic(self.topic, PARTITIONS)
        self.read: list[int] = []
        self.written = 0

    def produce(self, records: int = RECORDS) -> None:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap})
        for number in range(self.written, self.written + records):
            producer.produce(self.topic, str(number).encode(), partition=number % PARTITIONS)
        self.written += records
        assert producer.flush(WITHIN_S) == 0

    def read_by_kafka(self, count: int) -> KafkaConsumer:
        """Read and commit at least this many records; the consumer stays a member."""
        consumer = KafkaConsumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([self.topic])
        end = len(self.read) + count
        while len(self.read) < end:
            for message in consumer.consume(10, WITHIN_S):
                assert message.error() is None
                self.read.append(int(message.value() or b""))
                consumer.commit(message=message, asynchronous=False)
        return consumer

    def read_here(self, count: int, **settings: Any) -> None:
        end = len(self.read) + count
        cluster = self.cluster
        with Consumer(
            zookeeper=cluster.zookeeper, bootstrap=cluster.bootstrap, group=self.group, **settings
        ) as consumer:
            consumer.subscribe([self.topic])
            while len(self.read) < end:
                self.read += [int(record.value or b"") for record in consumer.poll(WITHIN_S)]
            consumer.commit()

    def offsets(self, *arguments: object, code: int = 0) -> Any:
        """Run `groups offsets`; return its document, or its error."""
        servers = ("--zookeeper", self.cluster.zookeeper, "--bootstrap", self.cluster.bootstrap)
        result = run("zkrebalancer", "groups", "offsets", *arguments, *servers, "--json")
        assert result.returncode == code, result.stderr
        return json.loads(result.stdout) if code == 0 and result.stdout else result.stderr


@pytest.fixture
def moving(scenario: Scenario) -> Iterator[Moving]:
    scenario.add_coordinator()
    moving = Moving(scenario)
    yield moving
    scenario.require_quiet_logs()


def test_a_group_moves_here_and_back_with_every_record_once(moving: Moving, tmp_path: Path) -> None:
    moving.produce()
    with closing(moving.read_by_kafka(RECORDS // PARTITIONS + 1)):  # one partition or more is read in part
        refused = moving.offsets("import", moving.group, "--from", "kafka", code=1)
        assert f"group {moving.group} has members in Kafka" in refused
    shown = moving.offsets("import", moving.group, "--from", "kafka", "--dry-run")
    moved = moving.offsets("import", moving.group, "--from", "kafka")
    assert shown["offsets"] == moved["offsets"]
    assert sum(row["after"] for row in moved["offsets"]) == len(moving.read)

    moving.read_here(RECORDS - len(moving.read))
    file = tmp_path / "offsets.csv"
    out = ("--out", file, "--zookeeper", moving.cluster.zookeeper)
    run("zkrebalancer", "groups", "offsets", "export", moving.group, *out)
    all_read = [f"{moving.topic},{number},{RECORDS // PARTITIONS}" for number in range(PARTITIONS)]
    assert file.read_text().splitlines()[1:] == all_read
    assert "confirm with --yes" in moving.offsets("import", moving.group, file, "--to", "kafka", code=2)
    moving.offsets("import", moving.group, file, "--to", "kafka", "--yes")

    moving.produce()
    moving.read_by_kafka(RECORDS).close()
    assert sorted(moving.read) == list(range(2 * RECORDS))

    with pytest.raises(OffsetsElsewhereError, match=r"newer offsets in Kafka, .* than in ZooKeeper \(100\)"):
        moving.read_here(1)  # the group was not deleted here, and has older offsets
    moving.offsets("import", moving.group, "--from", "kafka", "--yes")
    moving.produce(30)
    with closing(moving.read_by_kafka(15)), pytest.raises(GroupInUseError):
        moving.read_here(1)
    moving.offsets("import", moving.group, "--from", "kafka", "--yes")
    moving.read_here(2 * RECORDS + 30 - len(moving.read))
    assert sorted(moving.read) == list(range(2 * RECORDS + 30))


def test_no_agent_reads_again_what_plain_consumers_have_read(moving: Moving) -> None:
    """600 of 1,000 records are committed in Kafka. Agents that store offsets in ZooKeeper know nothing of them."""
    moving.produce(1_000)
    with closing(moving.read_by_kafka(600)):
        with pytest.raises(GroupInUseError, match=f"group {moving.group} has members of Kafka's own protocol"):
            moving.read_here(1)
        with pytest.raises(GroupInUseError):
            moving.read_here(1, offsets_storage="dual")
    in_kafka = StoredInKafka({"bootstrap.servers": moving.cluster.bootstrap}, moving.group).read()
    assert sum(in_kafka.values()) == 600
    with pytest.raises(OffsetsElsewhereError) as raised:
        moving.read_here(1)
    told = str(raised.value)
    assert all(way in told for way in ("dual", "groups offsets import", "ignore_kafka_offsets")), told
    servers = ("--zookeeper", moving.cluster.zookeeper, "--bootstrap", moving.cluster.bootstrap)
    command = run("consumer-agent", "run", *servers, "--group", moving.group, "--topic", moving.topic, "--quiet")
    assert (command.returncode, command.stderr.splitlines()[-1]) == (1, f"Error: {told}")
    assert command.stderr.count(told) == 1
    assert len(moving.read) == 600

    moving.read_here(200, offsets_storage="dual", max_poll_records=100)  # the first way on
    assert sorted(moving.read) == sorted(set(moving.read))
    moving.read_here(1_000 - len(moving.read))  # offsets are in ZooKeeper, too: nothing is looked at any more
    assert sorted(moving.read) == list(range(1_000))


def test_a_group_begins_anew_if_that_is_wanted(moving: Moving) -> None:
    moving.produce()
    moving.read_by_kafka(RECORDS // 2).close()
    moving.read.clear()
    moving.read_here(RECORDS, ignore_kafka_offsets=True)
    assert sorted(moving.read) == list(range(RECORDS))


def test_the_offsets_of_old_consumers_are_imported(moving: Moving) -> None:
    root = f"{paths.CONSUMERS}/{moving.group}"
    nodes = [Create(root), Create(f"{root}/offsets"), Create(f"{root}/offsets/{moving.topic}")]
    nodes += [Create(f"{root}/offsets/{moving.topic}/{number}", b"40") for number in range(PARTITIONS)]
    with BlockingZk(moving.cluster.zookeeper) as zk:
        assert isinstance(zk.perform(Multi(tuple(nodes))), Done)
    moving.produce()
    moving.offsets("import", moving.group, "--from", "old-consumers")
    moving.read_here(RECORDS - 40 * PARTITIONS)
    assert sorted(moving.read) == list(range(40 * PARTITIONS, RECORDS))
    back = moving.offsets("import", moving.group, "--from", "zookeeper", "--to", "old-consumers", "--yes")
    assert [(row["before"], row["after"]) for row in back["offsets"]] == [(40, RECORDS // PARTITIONS)] * PARTITIONS
    again = moving.offsets("import", moving.group, "--from", "old-consumers", "--dry-run")
    assert {row["after"] for row in again["offsets"]} == {RECORDS // PARTITIONS}


def test_offsets_that_kafka_does_not_have_are_refused(moving: Moving, tmp_path: Path) -> None:
    """An agent would find them out of range, and begin as `auto_offset_reset` says."""
    moving.produce()
    end = RECORDS // PARTITIONS
    admin = AdminClient({"bootstrap.servers": moving.cluster.bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(moving.topic, 1, 40)]).values()
    deleted.result(WITHIN_S)
    file = tmp_path / "offsets.csv"
    for offset, wrong in ((0, f"0 for {moving.topic}/1, which has 40 to {end}"), (end + 1, f"{end + 1} for")):
        file.write_text(f"{moving.topic},0,{end}\n{moving.topic},1,{offset}\n")
        for more in (("--dry-run",), (), ("--to", "kafka")):
            told = moving.offsets("import", moving.group, file, *more, code=1)
            assert f"1 offsets are outside of Kafka's log, for example {wrong}" in told
    with BlockingZk(moving.cluster.zookeeper) as zk, pytest.raises(UnknownGroupError):
        in_zookeeper(zk, moving.group)
    file.write_text(f"{moving.topic},0,{end}\n{moving.topic},1,40\n")
    assert len(moving.offsets("import", moving.group, file)["offsets"]) == 2
