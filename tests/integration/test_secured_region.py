"""A region in a secured tree, on real servers: its members and operators may do their work, rogues may not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest
from confluent_kafka import Producer

from tests.integration.commands import communicate, run_all
from tests.integration.region_counts import RegionCounts, counts_of
from tests.integration.secured_company import (
    CREATES_BELOW,
    GROUP,
    PARTITIONS,
    SETS,
    Company,
    attempts,
    begun,
    require_no_secret,
)
from tests.support.deadlines import WITHIN_S
from tests.support.secured_zookeeper import over_tls, secured_zookeeper
from tests.support.waiting import wait_until
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol import paths

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TOPIC = "counted"
RECORDS = 50  # of each partition, in each portion
SESSION_MS = "4000"


class Members(RegionCounts):
    """A region of a secured company, with the example that recovers as a group."""

    def __init__(self, company: Company, folder: Path) -> None:
        super().__init__(company.zk, GROUP, folder)
        self.company = company
        self.written = 0

    def start(self, name: str) -> subprocess.Popen[str]:
        login = self.company.login(GROUP)
        security = {
            f"ZKREBALANCER_{flag.removeprefix('--').upper().replace('-', '_')}": value
            for flag, value in zip(login[2::2], login[3::2], strict=True)
        }
        settings = {"ZOOKEEPER": login[1], "BOOTSTRAP": self.company.bootstrap, "GROUP": GROUP, "TOPIC": TOPIC}
        own = {"MEMBER": name, "FOLDER": str(self.folder), "EVERY_S": "0.3", "SESSION_TIMEOUT_MS": SESSION_MS}
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "region_group.py")],
            env={**os.environ, **security, **settings, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.company.running.append(process)
        return process

    def end(self, process: subprocess.Popen[str], ending: signal.Signals) -> None:
        process.send_signal(ending)
        self.company.printed += communicate(process, WITHIN_S)
        self.company.running.remove(process)

    def produce(self) -> None:
        producer = Producer({"bootstrap.servers": self.company.bootstrap, "log_level": 0})
        for number in range(PARTITIONS * RECORDS):
            producer.produce(TOPIC, b"x", partition=number % PARTITIONS)
        assert gevent.get_hub().threadpool.apply(producer.flush, (WITHIN_S,)) == 0
        self.written += RECORDS

    def wait_all(self) -> None:
        wait_until(lambda: self.counts() == counts_of(PARTITIONS, self.written), "all records in a checkpoint")


@pytest.fixture
def members(shared_cluster: LocalCluster, tmp_path: Path) -> Iterator[Members]:
    """Secure a tree, of which `security init` names the group, before its region begins."""
    with (
        secured_zookeeper("/region") as server,
        begun(over_tls(server.zookeeper), shared_cluster.bootstrap, tmp_path, TOPIC) as company,
    ):
        secure = ("init", "--operator", "sasl:operator", "--group", "orders=sasl:orders")
        assert company.security("coordinator", *secure)[0] == 0
        folder = tmp_path / "copies"
        folder.mkdir()
        yield Members(company, folder)


@pytest.mark.long
def test_a_region_in_a_secured_tree_counts_each_record_once_and_rogues_can_do_nothing(members: Members) -> None:
    company = members.company
    members.produce()
    one, other = members.start("one"), members.start("other")
    members.wait_all()
    members.end(one, signal.SIGKILL)
    wait_until(lambda: members.order().reset > 0, "a reset")
    members.produce()
    one = members.start("one")
    members.wait_all()
    _operate(members)
    wait_until(lambda: len(members.order().members) == 2 and not members.order().is_resetting, "both members")
    code, seen = company.security("operator", "check")
    assert (code, seen["findings"]) == (0, [])

    for user in (None, "payments"):
        assert attempts(company, user, company.zookeeper) == set()
    members.produce()
    members.wait_all()
    resets = members.order().reset
    for process in (one, other):
        members.end(process, signal.SIGTERM)
        assert process.returncode == 0
    assert members.order().reset == resets
    _reset(members)
    created = {*CREATES_BELOW, TOPIC, *company.children(paths.region(GROUP, "contributions"))}
    changed = {*SETS, *company.children(paths.region(GROUP, "initial", TOPIC))}
    done = attempts(company, GROUP, company.zookeeper)
    assert done == {("create", kind) for kind in created} | {("set", kind) for kind in changed}
    for process in [*company.running]:
        company.stop(process)
    require_no_secret(company)


def _reset(members: Members) -> None:
    """Let an operator set the group's offsets."""
    login = members.company.login("operator")
    (result,) = run_all([("zkrebalancer", "groups", "reset-offsets", GROUP, "--to-offset", "7", *login)])
    assert result.returncode == 0, result


def _operate(members: Members) -> None:
    """Let an operator do with the group what the commands offer; to delete it takes a coordinator's login."""
    company = members.company
    consumer, kafka = company.children(paths.ids(GROUP))[0], ("--bootstrap", company.bootstrap)
    steps: list[tuple[object, ...]] = [
        ("groups", "create", "another"),
        ("groups", "describe", GROUP, "--state"),
        ("groups", "freeze", GROUP, "--for", "1h"),
        ("groups", "unfreeze", GROUP, "--yes"),
        ("groups", "configure", GROUP, "approve_moves_above=1", "strategy=balanced"),
        ("groups", "pin", GROUP, TOPIC, "0", "--yes"),
        ("groups", "unpin", GROUP, TOPIC, "0", "--yes"),
        ("groups", "drain", GROUP, consumer, "--yes"),
        ("groups", "undrain", GROUP, consumer, "--yes"),
        ("groups", "rebalance", GROUP),
        ("groups", "plan", GROUP),
        ("groups", "offsets", "export", GROUP, *kafka),
    ]
    for step in steps:
        (result,) = run_all([("zkrebalancer", *step, *company.login("operator"))])
        company.printed += [result.stdout, result.stderr]
        assert result.returncode == 0, (step, result)
    (evicted,) = run_all([("zkrebalancer", "groups", "evict", GROUP, consumer, "--yes", *company.login("operator"))])
    assert evicted.returncode == 0, evicted
    (refused,) = run_all([("zkrebalancer", "groups", "delete", "another", "--yes", *company.login("operator"))])
    assert (refused.returncode, "no permission" in refused.stderr) == (1, True), refused
