"""The measured costs of real servers and processes."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from zkrebalancer.experiments.costs import Costs
from zkrebalancer.experiments.java_programs import broker_counts_command
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.observe.events import EventLog
from zkrebalancer.observe.reading import Event
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Get

QUESTIONS = 200
TICK_US = 100_000  # processes and processors are weighed in steps of 10 ms each
PINGS_MEANWHILE = 150  # of all other clients of this cluster


@pytest.fixture
def compiled_programs() -> None:
    """Compile before the test's clock begins."""
    broker_counts_command()


def read(directory: Path, kind: str, role: str) -> list[Event]:
    return [event for event in read_all(directory) if event["kind"] == kind and event["role"] == role]


def count(lab: Lab, costs: Costs, directory: Path) -> Event:
    """Return a new count of ZooKeeper's; a single measurement skips a server that does not answer in time."""
    before = len(read(directory, "counted", "zookeeper"))

    def is_counted() -> bool:
        costs.measure()
        return len(read(directory, "counted", "zookeeper")) > before

    lab.wait_for("a count of ZooKeeper's requests", is_counted)
    return read(directory, "counted", "zookeeper")[-1]


def read_all(directory: Path) -> list[Event]:
    return [json.loads(line) for path in directory.glob("costs-*.jsonl") for line in path.open()]


@pytest.mark.usefixtures("compiled_programs")
def test_requests_are_counted_where_they_arrive(shared_cluster: LocalCluster, folder: Path) -> None:
    log = EventLog(folder, "costs")
    with (
        Lab(shared_cluster, folder / "events") as lab,
        Costs(log, shared_cluster, lambda: {"me": ("member", os.getpid())}) as costs,
    ):
        lab.create_topic("costs", 1)
        before = count(lab, costs, folder)
        for _ in range(QUESTIONS):
            lab.zk.perform(Get(paths.topic("costs")))
        after = count(lab, costs, folder)
        earlier = read(folder, "counted", "broker")[-1]["kinds"]  # of every test on this cluster
        consumer = Consumer({"bootstrap.servers": shared_cluster.bootstrap, "group.id": "costs"})
        consumer.subscribe(["costs"])
        lab.wait_for("an assignment", lambda: consumer.poll(0.1) is None and bool(consumer.assignment()))
        consumer.close()
        admin = AdminClient({"bootstrap.servers": shared_cluster.bootstrap})
        admin.describe_consumer_groups(["costs"])["costs"].result()
        costs.measure()
    log.close()
    asked = after["requests"] - before["requests"]
    assert QUESTIONS <= asked <= QUESTIONS + PINGS_MEANWHILE
    assert (after["bytes_in"] - before["bytes_in"]) / asked > len(paths.topic("costs"))
    assert after["bytes_out"] > before["bytes_out"]
    kinds: Counter[str] = Counter(read(folder, "counted", "broker")[-1]["kinds"]) - Counter(earlier)
    assert {"FindCoordinator", "JoinGroup", "SyncGroup", "LeaveGroup"} <= kinds.keys()
    assert "DescribeGroups" in kinds, "an agent that starts sends one"
    spent = read(folder, "sampled", "member")
    assert {event["target"] for event in spent} == {"me"}
    assert 0 < spent[0]["cpu_us"] <= spent[-1]["cpu_us"]
    assert min(event["rss_bytes"] for event in spent) > 1_000_000
    assert read(folder, "sampled", "zookeeper")
    loads = [event for event in read_all(folder) if event["kind"] == "busy"]
    spent_us = {name: loads[-1][name] - loads[0][name] for name in ("mono_us", "busy_us", "own_us")}
    # Linux weighs processes exactly, and processors by where a tick finds them: in so short a time they do not compare.
    for name in ("own_us", "busy_us"):
        assert 0 < spent_us[name] <= loads[0]["processors"] * (spent_us["mono_us"] + TICK_US)
    assert read(folder, "sampled", "broker")
