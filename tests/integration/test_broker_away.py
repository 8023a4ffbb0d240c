"""If one of two real brokers does not answer, only its partitions are affected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from consumer_agent.kafka import offset_queries
from tests.integration.conftest import TICK_MS
from tests.integration.fake_coordinator import WAIT_S, Application, Stage
from tests.support.waiting import wait_until
from zkrebalancer.localcluster import faults
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.kafka import BrokerProbe
from zkrebalancer.localcluster.ports import HOST, reserve_ports
from zkrebalancer.localcluster.server import Program

FIRST_ID, SECOND_ID = 1, 2
ANSWER_TIMEOUT_S = 2 * WAIT_S  # longer than the test's waits, so that no query to the broker ends


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(chroot="/two", tick_ms=TICK_MS) as cluster:
        yield cluster


@pytest.fixture
def second(cluster: LocalCluster) -> Program:
    """Start another broker, configured like the first."""
    (reserved,) = reserve_ports(1, ())
    port = reserved.getsockname()[1]
    reserved.close()
    *command, config = cluster.broker._command
    own = {"broker.id": str(SECOND_ID), "listeners": f"PLAINTEXT://{HOST}:{port}"}
    own["log.dirs"] = str(cluster.directory / "second-data")
    lines = [line for line in Path(config).read_text().splitlines() if line.partition("=")[0] not in own]
    path = cluster.directory / "second.properties"
    path.write_text("\n".join([*lines, *(f"{key}={value}" for key, value in own.items())]))
    broker = cluster.program("second", [*command, str(path)])
    broker.spawn()
    broker.wait_until(BrokerProbe(f"{HOST}:{port}"))
    return broker


def led_by(stage: Stage, broker: int) -> list[int]:
    topics = AdminClient({"bootstrap.servers": stage.cluster.bootstrap}).list_topics(stage.topic, timeout=WAIT_S).topics
    return [number for number, found in topics[stage.topic].partitions.items() if found.leader == broker]


def test_partitions_of_the_other_broker_are_served_while_one_is_away(
    cluster: LocalCluster, second: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if `Fetcher.resolve` waits in the fetcher's thread, which then delivers nothing."""
    monkeypatch.setattr(offset_queries, "TIMEOUT_S", ANSWER_TIMEOUT_S)
    monkeypatch.setattr(offset_queries, "OVERDUE_S", 2 * ANSWER_TIMEOUT_S)
    stage = Stage(cluster)
    wait_until(lambda: [len(led_by(stage, broker)) for broker in (FIRST_ID, SECOND_ID)] == [2, 2], "leaders")
    here, later = led_by(stage, FIRST_ID)
    away = led_by(stage, SECOND_ID)
    stage.produce([here, *away], 10)
    answers: list[object] = []
    with Application(stage).start() as application:
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, here, *away))
        wait_until(lambda: len(application.records) == 30, "the first records")
        faults.freeze(second.pid)
        fetcher = application.consumer._frontend._fetcher
        assert fetcher is not None
        fetcher.current.resolve(stage.of(*away), answers.append)
        stage.produce([here, later], 10)
        wait_until(lambda: len(application.offsets(here)) == 20, "the other broker's records")
        stage.wait_ack(stage.start(member, later))
        wait_until(lambda: len(application.offsets(later)) == 10, "those of a partition that begins now")
        assert answers == []
        faults.thaw(second.pid)
        stage.produce(away, 10)
        wait_until(lambda: len(application.records) == 70, "what came while it was away")
        wait_until(lambda: answers, "the answer")
        assert all(application.offsets(partition) == list(range(20)) for partition in away)
    stage.close()
