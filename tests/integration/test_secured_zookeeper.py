"""Logins and TLS at a real ZooKeeper: what is accepted, and that a refusal is one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.commands import Result, run_all
from tests.support.secured_zookeeper import CA, CERTIFICATE, PASSWORDS, TLS, over_tls, secured_zookeeper, security_of
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol.calls import Content, Get
from zkrebalancer.protocol.zookeeper_security import ZooKeeperSecurity
from zkrebalancer.runtime.zk import BlockingZk

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
    with BlockingZk(over_tls(cluster.zookeeper), security=security) as zk:
        assert isinstance(zk.perform(Get("/")), Content)


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


def lines(result: Result) -> list[str]:
    text = result.stdout + result.stderr
    assert WRONG not in text
    assert not [word for word in PASSWORDS.values() if word in text]
    return text.splitlines()
