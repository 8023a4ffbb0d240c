"""A real ZooKeeper with logins and TLS: what is accepted, and that rogues can do nothing in a tree that was secured.

Kafka is that of the other tests; the secured tree has only a copy of the topic's node.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from gevent.queue import Queue
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NotEmptyError
from kazoo.security import ACL, Id, Permissions

from tests.integration.commands import Result, begin, end, run, run_all
from tests.integration.fake_coordinator import wait_until
from tests.support.deadlines import WITHIN_S
from tests.support.secured_zookeeper import CA, CERTIFICATE, PASSWORDS, TLS, over_tls, secured_zookeeper, security_of
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import (
    ABSENT,
    Children,
    Connected,
    Content,
    Create,
    Delete,
    Done,
    Get,
    ListChildren,
    Multi,
    ZooKeeperEvent,
)
from zkrebalancer.protocol.zookeeper_security import ZooKeeperSecurity
from zkrebalancer.runtime import zk
from zkrebalancer.runtime.zk import BlockingZk, ZkClient

WRONG = "not-the-word"
AGENT = ("--bootstrap", "127.0.0.1:1", "--group", "g", "--topic", "t")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Start the only ZooKeeper of these tests."""
    with secured_zookeeper("/secured") as started:
        yield started


@pytest.mark.parametrize(
    "security",
    [
        ZooKeeperSecurity(),
        security_of("operator"),
        security_of(None, tls=True),
        security_of("operator", tls=True),
        ZooKeeperSecurity(tls_ca=CA, tls_certificate=CERTIFICATE),
        ZooKeeperSecurity(user="somebody", password="their-word", auth="digest"),  # noqa: S106  # anybody may be that
    ],
    ids=["plain", "sasl", "tls", "tls and sasl", "certificate", "digest"],
)
def test_what_is_accepted(cluster: LocalCluster, security: ZooKeeperSecurity) -> None:
    with BlockingZk(over_tls(cluster.zookeeper), security=security) as connected:
        assert isinstance(connected.perform(Get("/")), Content)


def test_a_refusal_is_one_line_without_the_password(cluster: LocalCluster, tmp_path: Path) -> None:
    word = tmp_path / "word"
    word.write_text(WRONG)
    login = ["--zookeeper-user", "operator", "--zookeeper-password-file", str(word), "--log-level", "error"]
    authority = ["--zookeeper-tls-ca", str(TLS / "other-ca.pem"), "--log-level", "error"]
    commands: list[tuple[object, ...]] = []
    for options in (login, authority):
        place = ["--zookeeper", over_tls(cluster.zookeeper), *options]
        commands += [
            ("zkrebalancer", "groups", "list", *place),
            ("zkrebalancer", "coordinator", *place, "--broker-id", "1"),
            ("zkrebalancer", "group-coordinator", *place, "--listen", "127.0.0.1:1", "--upstream", "127.0.0.1:1"),
            ("consumer-agent", "run", *place, *AGENT),
        ]
    results = run_all(commands)
    assert [result.returncode for result in results] == [1] * len(results), results
    for result in results[:4]:
        assert lines(result) == [f"Error: ZooKeeper at {over_tls(cluster.zookeeper)} refuses the login of operator"]
    for result in results[4:]:
        (line,) = lines(result)
        assert "CERTIFICATE_VERIFY_FAILED" in line


def test_a_client_logs_in_again_once_the_password_in_its_file_is_right(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a refused login, kazoo itself does not connect again."""
    monkeypatch.setattr(zk, "LOGIN_PAUSE_S", 0.05)
    word = tmp_path / "word"
    word.write_text(WRONG)
    events: Queue[ZooKeeperEvent] = Queue()
    refused: Queue[str] = Queue()
    security = ZooKeeperSecurity(user="operator", password_file=str(word))
    client = ZkClient(cluster.zookeeper, 6_000, events.put, security, refused.put)
    client.start()
    try:
        refused.get(timeout=WITHIN_S)
        refused.get(timeout=WITHIN_S)
        word.write_text(PASSWORDS["operator"])
        assert isinstance(events.get(timeout=WITHIN_S), Connected)  # nobody has heard of the sessions before
    finally:
        client.close()


def lines(result: Result) -> list[str]:
    text = result.stdout + result.stderr
    assert WRONG not in text
    assert not [word for word in PASSWORDS.values() if word in text]
    return text.splitlines()


# ---- a tree that is secured while it is used

GROUP = TOPIC = "orders"
PARTITIONS = 4
OPEN = [ACL(Permissions.ALL, Id("world", "anyone"))]
CREATES_BELOW = {"ids", "owners", "channel", "quarantine"}  # what any consumer of the group may do
Attempt = Callable[[KazooClient, str], object]
ATTEMPTS: dict[str, Attempt] = {
    "set_acls": lambda client, path: client.set_acls(path, OPEN),
    "create": lambda client, path: client.create(f"{path}/by-a-rogue"),
    "set": lambda client, path: client.set(path, b""),
    "delete": lambda client, path: client.delete(path),
}


@dataclass
class Company:
    """A coordinator and agents, as processes with logins; everything that they print and write is kept."""

    zookeeper: str
    bootstrap: str
    folder: Path
    zk: BlockingZk  # logged in as a coordinator
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)

    def login(self, user: str) -> list[str]:
        word = self.folder / f"{user}.password"
        word.write_text(PASSWORDS[user])
        place = ["--zookeeper", self.zookeeper, "--zookeeper-tls-ca", CA]
        return [*place, "--zookeeper-user", user, "--zookeeper-password-file", str(word)]

    def begin(self, program: str, *arguments: object) -> subprocess.Popen[str]:
        common = ("--log-level", "debug", "--events", self.folder / "events")
        self.running.append(begin(program, *arguments, *common))
        return self.running[-1]

    def begin_agent(self, name: str) -> subprocess.Popen[str]:
        options = ("--bootstrap", self.bootstrap, "--group", GROUP, "--topic", TOPIC, "--client-id", name)
        return self.begin("consumer-agent", "run", *self.login(GROUP), *options)

    def security(self, user: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        result = run("zkrebalancer", "security", *arguments, *self.login(user), "--json")
        self.printed += [result.stdout, result.stderr]
        assert result.stdout, result.stderr
        return result.returncode, json.loads(result.stdout)

    def stop(self, process: subprocess.Popen[str]) -> None:
        process.terminate()
        result = end(process)
        self.running.remove(process)
        self.printed += [result.stdout, result.stderr]
        assert result.returncode == 0, result.stderr

    def children(self, path: str) -> tuple[str, ...]:
        reply = self.zk.perform(ListChildren(path), ABSENT)
        return reply.names if isinstance(reply, Children) else ()

    def owned(self) -> dict[str, list[int]]:
        """Return which partitions each consumer of the group owns."""
        found = {}
        for name in self.children(paths.owners(GROUP)):
            node = self.zk.perform(Get(paths.owners(GROUP, name)), ABSENT)
            if isinstance(node, Content):
                record = ownership.decode_owners(node.content)
                found[name.partition("-")[0]] = sorted(number for _, number in record.partitions)
        return found

    def wait_for(self, *agents: str) -> None:
        """Wait until these agents own all partitions, each some."""

        def is_shared() -> bool:
            owned = self.owned()
            numbers = sorted(itertools.chain(*owned.values()))
            return {*owned} == {*agents} and all(owned.values()) and numbers == [*range(PARTITIONS)]

        wait_until(is_shared, f"the partitions to be shared by {agents}")

    def nodes(self, path: str = paths.CONSUMERS) -> list[str]:
        return [path, *itertools.chain(*(self.nodes(f"{path}/{name}") for name in self.children(path)))]

    def departures(self) -> list[str]:
        """Return why members left, by the coordinator's events."""
        lines = [line for file in (self.folder / "events").glob("*.jsonl") for line in file.read_text().splitlines()]
        events = map(json.loads, lines)
        return [event["reason"] for event in events if event["kind"] == "member_left" and "member" in event]


@pytest.fixture
def company(cluster: LocalCluster, shared_cluster: LocalCluster, tmp_path: Path) -> Iterator[Company]:
    """Start a coordinator in an open tree with one topic."""
    admin = AdminClient({"bootstrap.servers": shared_cluster.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
    topic = json.dumps({"version": 3, "partitions": {str(number): [1] for number in range(PARTITIONS)}}).encode()
    brokers = (Create("/brokers"), Create("/brokers/topics"), Create("/brokers/ids"), Create(paths.topic(TOPIC), topic))
    with BlockingZk(over_tls(cluster.zookeeper), security=security_of("coordinator", tls=True)) as connected:
        assert isinstance(connected.perform(Multi(brokers)), Done)
        one = Company(over_tls(cluster.zookeeper), shared_cluster.bootstrap, tmp_path, connected)
        one.begin("zkrebalancer", "coordinator", *one.login("coordinator"), "--broker-id", 1)
        try:
            yield one
        finally:
            for process in one.running:
                process.kill()
                process.communicate()
            admin.delete_topics([TOPIC])[TOPIC].result(60)


def test_a_tree_is_secured_while_it_is_used_and_rogues_can_do_nothing(company: Company) -> None:
    """From an open tree to one in which rogues try each node; what was printed and written shows no secret."""
    first = company.begin_agent("first")
    company.wait_for("first")
    code, seen = company.security("operator", "check")
    assert (code, seen["secured"]) == (1, False)
    secure = (
        "init",
        "--operator",
        "sasl:operator",
        "--group",
        "orders=sasl:orders",
        "--group",
        "payments=sasl:payments",
    )
    for expected in (True, False):
        code, done = company.security("coordinator", *secure)
        assert (code, bool(done["changed"]), done["left"], done["unreadable"]) == (0, expected, [], [])
    assert len(done["of_group"]) == 3  # what the first agent made when the tree was open
    second = company.begin_agent("second")
    company.wait_for("first", "second")
    company.stop(first)
    company.wait_for("second")
    first = company.begin_agent("first")
    company.wait_for("first", "second")
    assert company.security("operator", "check")[0] == 0

    before = company.owned()
    for user in (None, "payments", "orders"):
        done_by_rogue = attempts(company, user)
        allowed = set() if user != "orders" else CREATES_BELOW
        assert done_by_rogue == {("create", kind) for kind in allowed}
    assert company.owned() == before
    assert company.departures() == ["closed"]
    company.stop(second)
    company.wait_for("first")
    for process in [first, *company.running[:1]]:
        company.stop(process)
    assert {*company.departures()} == {"closed"}
    texts = [*company.printed, *(file.read_text() for file in (company.folder / "events").iterdir())]
    assert any("orders" in text for text in texts)
    for text in texts:
        assert not [word for word in PASSWORDS.values() if word in text]
        assert re.search("member:[0-9a-f]{40}", text) is None


def attempts(company: Company, user: str | None) -> set[tuple[str, str]]:
    """Try everything at every node; return what succeeded, as the attempt and the last part of the node's path."""
    options = {"mechanism": "DIGEST-MD5", "username": user, "password": PASSWORDS[user]} if user is not None else None
    client = KazooClient(company.zookeeper, sasl_options=options)
    client.start()
    client.add_auth("digest", "member:of-a-rogue")
    succeeded = set()
    try:
        for path in company.nodes():
            if path.startswith(paths.group("payments")) or (user == GROUP and "/offsets" in path):
                continue  # nobody's victims; and offsets are trusted to the group
            for name, attempt in ATTEMPTS.items():
                try:
                    attempt(client, path)
                except (NoAuthError, NotEmptyError):
                    continue
                succeeded.add((name, path.rpartition("/")[2]))
                if name == "create":
                    company.zk.perform(Multi((Delete(f"{path}/by-a-rogue"),)))
    finally:
        client.stop()
        client.close()
    return succeeded
