"""Unmodified clients behind a gateway, and an agent, in one group whose partitions the coordinator decides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.commands import run
from tests.integration.gateway_process import GatewayProcess, group_of
from tests.integration.kafka_clients import KIP_848, Reader, committed, produce
from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.observe import checker, inspection
from zkrebalancer.protocol.settings import GroupSettings

PARTITIONS = 6
TOPIC = GROUP = "central"
KINDS = (KIP_848, "confluent", "kafka-python")
AGENT = "agent"
AGENTS_STORAGE = {"zookeeper": "zookeeper", "upstream": "kafka"}


@pytest.fixture
def lab(shared_cluster: LocalCluster, folder: Path) -> Iterator[Lab]:
    """Open a lab with a coordinator and a topic."""
    with Lab(shared_cluster, folder / "events") as one:
        one.start_coordinator(1)
        one.wait_leader()
        one.create_topic(TOPIC, PARTITIONS)
        yield one
        one.delete_topic(TOPIC)


@pytest.fixture(params=["zookeeper", pytest.param("upstream", marks=pytest.mark.long)])
def offsets(request: pytest.FixtureRequest) -> str:
    """Say where the gateway keeps offsets."""
    return str(request.param)


@pytest.fixture
def gateway(lab: Lab, folder: Path, offsets: str) -> Iterator[GatewayProcess]:
    """Start a gateway; its log may show nothing unexpected."""
    one = GatewayProcess(lab.cluster, folder, "--assign", "central", "--offsets", offsets, "--events", lab.events)
    one.start()
    yield one
    one.end()
    assert one.troubles() == []


def agents_share(lab: Lab) -> list[int]:
    return [
        number
        for member in lab.group(GROUP).members
        if member.registration is not None and member.registration.client_id == AGENT and member.owners is not None
        for _topic, number in member.owners.partitions
    ]


def are_shared(lab: Lab, readers: list[Reader]) -> bool:
    """Whether the readers, and the agent if it is there, have all partitions, and each of them its share."""
    shares = [sorted(reader.assigned) for reader in readers]
    if AGENT in lab.programs and lab.programs[AGENT].is_running:
        shares.append(agents_share(lab))
    sizes = {len(share) for share in shares}
    return (
        sorted(number for share in shares for number in share) == list(range(PARTITIONS))
        and max(sizes) - min(sizes) <= 1
    )


def settled(lab: Lab, readers: list[Reader], what: str) -> None:
    lab.wait_for(f"{what}: all partitions are shared", lambda: are_shared(lab, readers), WITHIN_S)


def test_clients_and_an_agent_share_a_group(lab: Lab, gateway: GatewayProcess, offsets: str) -> None:
    readers: list[Reader] = []
    for kind in KINDS:
        readers.append(Reader(kind, gateway.bootstrap, GROUP, TOPIC))
        settled(lab, readers, f"{kind} joins")
    lab.start_agent(AGENT, GROUP, (TOPIC,), options={"--offsets-storage": AGENTS_STORAGE[offsets]})
    settled(lab, readers, "an agent joins")

    zookeeper = ("--zookeeper", lab.cluster.zookeeper)
    described = json.loads(run("zkrebalancer", "groups", "describe", GROUP, "--members", "--json", *zookeeper).stdout)
    assert [consumer["registration"]["client_id"] for consumer in described["consumers"]].count("rdkafka") == 2
    assert len(described["consumers"]) == len(readers) + 1
    assert GROUP in run("zkrebalancer", "groups", "list", *zookeeper).stdout
    (owner,) = (one.consumer for one in lab.group(GROUP).members if one.owners and (TOPIC, 0) in one.owners.partitions)
    assert owner in run("zkrebalancer", "groups", "explain", GROUP, TOPIC, "0", *zookeeper).stdout
    lab.configure(GROUP, GroupSettings(frozen=True))
    assert run("zkrebalancer", "groups", "plan", GROUP, *zookeeper).returncode == 0
    produce(gateway.bootstrap, TOPIC, [f"{number}" for number in range(300)])
    frozen = [set(reader.assigned) for reader in readers]
    newcomer = Reader(KIP_848, gateway.bootstrap, GROUP, TOPIC)
    lab.wait_for("the newcomer registered", lambda: len(lab.group(GROUP).members) == len(readers) + 2, WITHIN_S)
    assert [reader.assigned for reader in readers] == frozen
    lab.configure(GROUP, GroupSettings())
    readers.append(newcomer)
    settled(lab, readers, "unfrozen")

    gateway.kill()
    gateway.start()
    produce(gateway.bootstrap, TOPIC, [f"{number}" for number in range(300, 600)])
    settled(lab, readers, "a gateway restarts")

    lab.start_coordinator(2)
    lab.kill("coordinator-1")
    lab.kill(AGENT)
    assert lab.wait_leader(other_than=1) == 2
    settled(lab, readers, "the leader and the agent are killed")
    while len(readers) > 1:
        readers.pop(0).close()
        settled(lab, readers, "a reader leaves")
    wait_until(lambda: committed(gateway.bootstrap, GROUP) == 600, "not every record is read")
    readers.pop().close()
    if offsets == "zookeeper":
        report = lab.group(GROUP)
        inspection.read_offsets(lab.zk, report)
        assert sum(report.offsets.values()) == 600
    assert committed(lab.cluster.bootstrap, GROUP) == (0 if offsets == "zookeeper" else 600)
    verdict = checker.check(lab.events)
    assert verdict.overlaps == 0, verdict


def test_another_gateway_goes_on_with_what_clients_have(lab: Lab, folder: Path) -> None:
    options = ("--assign", "central", "--events", lab.events, "--session-timeout-ms", 3_000)
    both = [GatewayProcess(lab.cluster, folder, *options) for _ in range(2)]
    readers: list[Reader] = []
    try:
        for gateway in both:
            gateway.start()
        heir, served = both
        group = group_of(lab.cluster, both, served, "inherited")
        bootstrap = ",".join(gateway.bootstrap for gateway in both)
        for kind in KINDS:
            readers.append(Reader(kind, bootstrap, group, TOPIC))
            settled(lab, readers, f"{kind} joins")
        had = [(set(reader.assigned), reader.revocations) for reader in readers]
        served.kill()
        produce(lab.cluster.bootstrap, TOPIC, [f"{number}" for number in range(300)])
        wait_until(lambda: committed(heir.bootstrap, group) == 300, "not every record is read")
        lab.wait_for("all are registered again", lambda: owned(lab, group) == list(range(PARTITIONS)), WITHIN_S)
        assert [(reader.assigned, reader.revocations) for reader in readers] == had
        readers.append(Reader(KIP_848, bootstrap, group, TOPIC))
        settled(lab, readers, "a newcomer at the other gateway")
    finally:
        for reader in readers:
            reader.close()
        for gateway in both:
            gateway.kill()
            assert gateway.troubles() == []
    assert sorted(value for reader in readers for value in reader.values) == sorted(map(str, range(300)))
    verdict = checker.check(lab.events)
    assert verdict.overlaps == 0, verdict


def owned(lab: Lab, group: str) -> list[int]:
    members = lab.group(group).members
    return sorted(number for one in members if one.owners is not None for _topic, number in one.owners.partitions)
