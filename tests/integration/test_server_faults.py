"""ZooKeeper and Kafka stop and return under load; nothing is lost or duplicated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import TICK_MS, play
from tests.integration.scenario import Scenario
from tests.support.warm import WarmPrograms
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster import faults, zookeeper
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.server import Server
from zkrebalancer.protocol.settings import INCREMENTAL


@pytest.fixture
def ensemble(folder: Path) -> Iterator[Scenario]:
    """Open a scenario on an ensemble of three ZooKeeper servers with a broker."""
    with WarmPrograms(zookeepers=3, tick_ms=TICK_MS) as cluster:
        yield from play(Lab(cluster, folder / "events"), folder)


@pytest.fixture
def bare(folder: Path) -> Iterator[Scenario]:
    """Open a scenario on a ZooKeeper without a broker."""
    with WarmPrograms(broker="none", tick_ms=TICK_MS) as cluster:
        yield from play(Lab(cluster, folder / "events"), folder)


def leading_server(cluster: LocalCluster) -> Server:
    """Return the server that leads the ensemble."""
    return next(server for server in cluster.zookeeper_servers if zookeeper.leads(server.port))


def test_the_leading_zookeeper_of_three_is_killed(ensemble: Scenario) -> None:
    """The other two elect a leader; sessions and leadership survive, and a rebalance succeeds meanwhile."""
    ensemble.begin(coordinators=2)
    killed = leading_server(ensemble.lab.cluster)
    ensemble.lab.fault("kill-zookeeper", killed.name)
    faults.stop_zookeeper(killed)
    ensemble.join_all()
    ensemble.settle()
    killed.start()
    ensemble.verify()


def test_zookeeper_is_restarted(scenario: Scenario) -> None:
    """Every connection breaks while consumers join, and again when all is settled."""
    scenario.begin(coordinators=2)
    (server,) = scenario.lab.cluster.zookeeper_servers
    scenario.join_all()
    for group in scenario.groups:  # one that begins without ZooKeeper ends after 10 s, which its restart may take
        scenario.wait_group("a third member", group, lambda report: len(report.members) == 3)
    scenario.lab.fault("restart-zookeeper", server.name)
    faults.restart_zookeeper(server)
    scenario.settle()
    scenario.lab.fault("restart-zookeeper", server.name)
    faults.restart_zookeeper(server)
    scenario.join_all()
    scenario.verify()


@pytest.mark.long
def test_the_broker_is_restarted(scenario: Scenario) -> None:
    """Consumers keep their partitions and continue at their positions once the broker is back."""
    scenario.begin()
    broker = scenario.lab.cluster.broker
    scenario.lab.fault("restart-broker", broker.name)
    broker.kill()
    broker.start()
    scenario.join_all()
    scenario.verify()


def test_no_broker_has_ever_been_there(bare: Scenario) -> None:
    """A coordinator still leads, and warns of nothing."""
    group = bare.add_group(INCREMENTAL, members=0)
    name = bare.add_coordinator()
    bare.wait_event("rebalance_requested", group=group)
    assert bare.leads(name)
    bare.stop(name)
    lines = bare.log_lines(name)
    assert lines[0].endswith(" is running")
    assert " leads (epoch " in lines[1]
    assert all(" INFO " in line for line in lines[2:])
