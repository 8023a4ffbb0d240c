"""A real ZooKeeper with logins and TLS: what is accepted, and that rogues can do nothing in a tree that was secured.

Kafka is that of the other tests; the secured tree has only a copy of the topic's node.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from gevent.queue import Queue

from tests.integration.commands import run_all
from tests.integration.kafka_clients import Reader
from tests.integration.secured_company import (
    CLIENT,
    CREATES_BELOW,
    GROUP,
    PATIENT_MS,
    SETS,
    TOPIC,
    WRONG,
    Company,
    Forwarder,
    attempts,
    begun,
    commands_at,
    is_ready,
    lines,
    page,
    require_flow,
    require_no_secret,
)
from tests.support.deadlines import WITHIN_S
from tests.support.secured_zookeeper import (
    CA,
    CERTIFICATE,
    PASSWORDS,
    RENEWED,
    TLS,
    over_tls,
    secured_zookeeper,
    security_of,
    write_users,
)
from tests.support.waiting import wait_until
from zkrebalancer.localcluster import faults
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import HOST, free_ports
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    ABSENT,
    Connected,
    Content,
    Get,
    ZooKeeperEvent,
)
from zkrebalancer.protocol.zookeeper_security import ZooKeeperSecurity
from zkrebalancer.runtime import zk
from zkrebalancer.runtime.zk import BlockingZk, ZkClient


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


CLIENTS = ("coordinator", "group-coordinator", "mirror", "check")  # and the agent


def test_a_refusal_is_one_line_without_the_password(cluster: LocalCluster, tmp_path: Path) -> None:
    """Of a wrong password by every command; of an authority, and of a host name, by each kind of client."""
    word = tmp_path / "word"
    word.write_text(WRONG)
    login = ["--zookeeper-user", "operator", "--zookeeper-password-file", str(word)]
    here = over_tls(cluster.zookeeper)
    address, slash, chroot = cluster.zookeeper.partition("/")
    forwarder = Forwarder(address, "127.0.0.2")
    elsewhere = f"127.0.0.2:{forwarder.port}{slash}{chroot}"
    other, own = ["--zookeeper-tls-ca", str(TLS / "other-ca.pem")], ["--zookeeper-tls-ca", CA]
    attempts = {
        "refuses the login of operator": commands_at(["--zookeeper", here, *login], tmp_path),
        "CERTIFICATE_VERIFY_FAILED": commands_at(["--zookeeper", here, *other], tmp_path, CLIENTS),
        "certificate is not valid for '127.0.0.2'": commands_at(["--zookeeper", elsewhere, *own], tmp_path, CLIENTS),
    }
    every, *kinds = (len(commands) for commands in attempts.values())
    assert every > 20
    assert kinds == [5, 5]
    results = iter(run_all([one for commands in attempts.values() for one in commands]))
    forwarder.close()
    for text, commands in attempts.items():
        for command in commands:
            result = next(results)
            assert result.returncode == 1, (command, result)
            (line,) = lines(result)
            assert line.startswith("Error: ZooKeeper at "), command
            assert text in line, command


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


# ---- a tree that is secured while it is used


@pytest.fixture
def company(cluster: LocalCluster, shared_cluster: LocalCluster, tmp_path: Path) -> Iterator[Company]:
    """Start a coordinator in an open tree with one topic."""
    http = f"{HOST}:{free_ports(1)[0]}"
    with begun(over_tls(cluster.zookeeper), shared_cluster.bootstrap, tmp_path, TOPIC, "--http", http) as one:
        one.http = http
        yield one


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
        "--gateway",
        "sasl:gateway",
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
    gateway = f"{HOST}:{free_ports(1)[0]}"
    reader = Reader("confluent", company.begin_gateway("--http", gateway, "--metrics-per-group"), GROUP, TOPIC)
    company.wait_for("first", "second", CLIENT)
    assert f'zkrebalancer_gateway_group_members{{group="{GROUP}"}} 1.0' in page(gateway, "metrics")
    require_flow(company, reader)
    assert company.security("operator", "check")[0] == 0

    before = company.owned()
    for user in (None, "payments", "orders"):
        done_by_rogue = attempts(company, user, company.zookeeper)
        allowed = set() if user != "orders" else CREATES_BELOW
        sets = SETS if user == GROUP else set()
        assert done_by_rogue == {("create", kind) for kind in allowed} | {("set", kind) for kind in sets}
    assert company.owned() == before
    assert company.departures() == ["closed"]
    require_flow(company, reader)
    reader.close()
    company.wait_for("first", "second")
    company.stop(second)
    company.wait_for("first")
    company.printed += [page(gateway, path) for path in ("metrics", "readiness", "leader")]
    _look(company)
    for process in [*company.running]:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGUSR1)
        company.stop(process)
    assert {*company.departures()} == {"closed"}
    _mirror(company)
    require_no_secret(company)


def _look(company: Company) -> None:
    """Let an operator look at the group and keep the tree."""
    kept = company.folder / "kept.backup"
    place, kafka = company.login("operator"), ("--bootstrap", company.bootstrap)
    looks: list[tuple[object, ...]] = [(name, GROUP) for name in ("describe", "plan")]
    looks += [("list",), ("explain", GROUP, TOPIC, "0"), ("describe", GROUP, "--offsets", *kafka)]
    commands = [*(("groups", *one) for one in looks), ("backup", kept)]
    for result in run_all([("zkrebalancer", *one, *place, "--log-level", "debug") for one in commands]):
        assert result.returncode == 0, result
        company.printed += [result.stdout, result.stderr]
    company.printed.append(kept.read_text())
    _look_at_pages(company)


def _look_at_pages(company: Company) -> None:
    """The leader and the process that makes its plans are logged in, with TLS; a reader needs nothing."""
    assert GROUP in [one["group"] for one in json.loads(page(company.http, "page/groups"))["groups"]]
    shown = json.loads(page(company.http, f"page/group?name={GROUP}"))
    assert shown["history"][0]["outcome"] == "finished"
    assert (shown["problems"], shown["obstacles"]) == ([], [])
    planned = page(company.http, f"page/live/plan?name={GROUP}")
    assert '"moves":[]' in planned, planned
    company.printed += [page(company.http, "metrics"), json.dumps(shown), planned]


def _mirror(company: Company) -> None:
    """Let the mirror replace the topic's node, which nobody needs any more."""
    place, kafka = company.login("operator"), ("--bootstrap", company.bootstrap)
    before = company.zk.perform(Get(paths.topic(TOPIC)))
    mirror = company.begin("zkrebalancer", "topics", "mirror", *place, *kafka, events=False)
    wait_until(lambda: company.zk.perform(Get(paths.topic(TOPIC)), ABSENT) != before, "the mirror to write the topic")
    company.stop(mirror)


# ---- secrets that change, and a server that falls silent, while everything runs

SLOW_S = 0.2  # each way
SESSION = ("--session-timeout-ms", 60_000)  # only what a change has caused may end one


@dataclass
class Changing:
    """A secured company behind a forwarder, with a server whose secrets are in files of its own."""

    server: LocalCluster
    forwarder: Forwarder
    company: Company
    pages: dict[str, str]  # program -> where it serves pages
    folder: Path
    listen: str = ""

    def change_secrets(self) -> None:
        """Replace what clients read, then what the server reads, which it does when it starts."""
        company = self.company
        authorities = self.folder / "ca.pem"
        authorities.write_text(
            Path(CA).read_text() + Path(RENEWED).read_text().partition("-----END PRIVATE KEY-----")[2]
        )
        company.passwords = {user: f"new-{word}" for user, word in PASSWORDS.items()}
        for user in ("coordinator", "gateway", GROUP):
            company.login(user)
        shutil.copy(RENEWED, self.folder / "server.pem")
        write_users(self.folder / "jaas.conf", company.passwords)
        (server,) = self.server.zookeeper_servers
        faults.restart_zookeeper(server)

    def wait_ready(self, *programs: str) -> None:
        for program in programs:
            wait_until(partial(is_ready, self.pages[program]), f"{program} to be ready")


@pytest.fixture
def changing(shared_cluster: LocalCluster, tmp_path: Path) -> Iterator[Changing]:
    """Secure the tree for a group and gateways; a coordinator runs."""
    shutil.copy(CERTIFICATE, tmp_path / "server.pem")
    shutil.copy(CA, tmp_path / "ca.pem")
    numbers = free_ports(3)
    pages = {
        name: f"{HOST}:{number}" for name, number in zip(("coordinator", "gateway", "agent"), numbers, strict=True)
    }
    more = {"ssl.keyStore.location": str(tmp_path / "server.pem")}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(secured_zookeeper("/changing", more, tmp_path / "jaas.conf"))
        address, slash, chroot = server.zookeeper.partition("/")
        forwarder = Forwarder(address)
        stack.callback(forwarder.close)
        place = f"localhost:{forwarder.port}{slash}{chroot}"
        options = (*SESSION, "--http", pages["coordinator"])
        one = begun(place, shared_cluster.bootstrap, tmp_path, "changing", *options, ca=str(tmp_path / "ca.pem"))
        company = stack.enter_context(one)
        secure = ("init", "--group", "orders=sasl:orders", "--gateway", "sasl:gateway", "--operator", "sasl:operator")
        assert company.security("coordinator", *secure)[0] == 0
        yield Changing(server, forwarder, company, pages, tmp_path)


@pytest.mark.long
def test_nobody_loses_a_partition_while_secrets_change_and_a_server_is_slow_or_silent(changing: Changing) -> None:
    """Coordinator, agent, gateway and its client; passwords change, and the certificate gets another authority."""
    company, pages = changing.company, changing.pages
    company.begin_agent("first", *SESSION, "--http", pages["agent"])
    reader = Reader("confluent", company.begin_gateway(*SESSION, "--http", pages["gateway"]), GROUP, company.topic)
    try:
        company.wait_for("first", CLIENT)
        require_flow(company, reader)
        changing.forwarder.slow_s = SLOW_S
        second = company.begin_agent("second", *SESSION)
        company.wait_for("first", "second", CLIENT)
        require_flow(company, reader)
        company.stop(second)
        company.wait_for("first", CLIENT)
        assert company.departures() == ["closed"]
        changing.forwarder.slow_s = 0.0
        before = company.owned()
        changing.change_secrets()
        changing.wait_ready(*pages)
        require_flow(company, reader)
        assert "session_losses_total 0.0" in page(pages["gateway"], "metrics")

        changing.forwarder.fall_silent()
        wait_until(lambda: changing.forwarder.held >= len(pages), "everybody to shake hands with a silent server")
        for program, http in pages.items():
            assert json.loads(page(http, "liveness"))["alive"], program
        changing.forwarder.speak()
        changing.wait_ready(*pages)
        for program in ("coordinator", "gateway"):
            shown = page(pages[program], "metrics")
            late = re.findall(r'loop_lag_seconds_(?:bucket\{le="1.0"\}|count) (\d+)', shown)
            assert late[0] == late[1], f"the loop of the {program} was blocked"
        with BlockingZk(over_tls(changing.server.zookeeper), PATIENT_MS, company.new_login()) as zk:
            company.zk = zk
            assert company.owned() == before
            assert company.departures() == ["closed"]
            require_flow(company, reader)
            reader.close()
            company.wait_for("first")
        for process in company.running[::-1]:
            company.stop(process)
    finally:
        reader.end()
    require_no_secret(company)
