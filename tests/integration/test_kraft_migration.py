"""Brokers move from ZooKeeper to KRaft while groups go on, as `docs/how-to/kraft-migration.md` says."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import TICK_MS, play
from tests.integration.scenario import Scenario
from tests.support.kraft_migration import Migration
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Content, Get


@pytest.fixture
def own(folder: Path) -> Iterator[Scenario]:
    """Open a scenario on a broker of its own that keeps its metadata in ZooKeeper."""
    with LocalCluster(chroot="/kafka", tick_ms=TICK_MS) as cluster:
        yield from play(Lab(cluster, folder / "events"), folder)


def topic_node(scenario: Scenario, topic: str) -> tuple[int, object]:
    """Return the zxid that created a topic's node, and its content."""
    node = scenario.lab.zk.perform(Get(paths.topic(topic)))
    assert isinstance(node, Content)
    return node.stat.created_zxid, json.loads(node.content)


def begin_mirror(scenario: Scenario) -> None:
    """Begin the mirror as the page says, and wait until it has written a broker."""
    cluster = scenario.lab.cluster
    command = [sys.executable, "-m", "zkrebalancer.cli.main", "topics", "mirror"]
    servers = ["--bootstrap", cluster.bootstrap, "--zookeeper", cluster.zookeeper]
    mirror = cluster.program("mirror", [*command, *servers, "--log-level", "info"])
    mirror.spawn()
    broker = Get(f"{paths.BROKER_IDS}/1")
    scenario.lab.wait_for("a broker's node", lambda: isinstance(scenario.lab.zk.perform(broker, ABSENT), Content))


@pytest.mark.long
def test_groups_go_on_while_brokers_move_to_kraft(own: Scenario) -> None:
    """Each record is read once, no offset is lost, and the groups change only when the page says so.

    In the mirror, write another topic id: the topics count as created anew, and the offsets of both groups are deleted.
    In `carry_out`, delete nothing below a topic's node: a topic made anew is read from the former offsets.
    """
    own.pattern = f"^t{own.number}-"
    own.begin(coordinators=2)
    topic = own.topic("t")
    before = topic_node(own, topic)
    migration = Migration(own.lab.cluster)
    migration.begin_controller()
    own.lab.fault("restart-broker", "for migration")
    migration.restart_broker_for_migration()
    own.join_all()
    own.settle()
    during = own.add_topic("during")  # the KRaft controller writes its node
    own.lab.fault("restart-broker", "with KRaft")
    migration.restart_broker_with_kraft()
    own.settle()
    migration.finish()
    assert topic_node(own, topic) == before
    owned = {group: own.report(group).owned() for group in own.groups}
    begin_mirror(own)
    assert {group: own.report(group).owned() for group in own.groups} == owned
    assert topic_node(own, topic) == before
    own.add_topic("after")  # the mirror writes its node
    own.grow_topic(during, 8)
    own.join_all()
    own.settle()
    own.delete_topic(topic)  # the brokers have made nodes below its node
    own.settle()
    own.add_topic("t")
    own.settle()
    own.verify()
