"""TLS to ZooKeeper on a gevent hub: a silent server blocks nothing, and host names are checked."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import gevent
import pytest
from gevent import ssl as gevent_ssl
from gevent.event import AsyncResult, Event
from gevent.server import StreamServer
from gevent.socket import socket

from tests.support.deadlines import WITHIN_S
from tests.support.secured_zookeeper import CA, CERTIFICATE, TLS
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.zookeeper_security import ZooKeeperSecurity
from zkrebalancer.runtime import zk_login
from zkrebalancer.runtime.zk import ZkClient
from zkrebalancer.runtime.zk_login import Login, digest_identity, read_secret

SESSION_MS = 18_000
TURNS = 20


@contextmanager
def served(handle: Callable[[socket, object], None], host: str = "127.0.0.1") -> Iterator[str]:
    server = StreamServer((host, 0), handle)
    server.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.stop()


@contextmanager
def client(hosts: str, security: ZooKeeperSecurity) -> Iterator[AsyncResult[str]]:
    """Connect a client; the result is why it was refused."""
    refused: AsyncResult[str] = AsyncResult()
    zk = ZkClient(hosts, SESSION_MS, lambda _event: None, security, refused.set)
    zk.start()
    try:
        yield refused
    finally:
        zk.close()


def test_a_server_that_is_silent_in_the_handshake_blocks_no_hub() -> None:
    """With the standard library's ssl, nothing else runs until the handshake's time is over."""
    taken, end = Event(), Event()

    def hold(_connection: socket, _address: object) -> None:
        taken.set()
        end.wait()

    with served(hold) as hosts, client(hosts, ZooKeeperSecurity(tls_ca=CA)) as refused:
        assert taken.wait(WITHIN_S)
        for _ in range(TURNS):
            gevent.sleep(0.001)
        assert not refused.ready()  # the handshake is still under way
        end.set()


def test_the_name_of_the_server_is_checked() -> None:
    context = gevent_ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)

    def shake(connection: socket, _address: object) -> None:
        with suppress(OSError):  # the client ends the connection
            context.wrap_socket(connection, server_side=True).recv(1)

    with served(shake, "127.0.0.2") as hosts, client(hosts, ZooKeeperSecurity(tls_ca=CA)) as refused:
        assert "certificate is not valid for '127.0.0.2'" in str(refused.get(timeout=WITHIN_S))


def test_a_server_without_tls_is_told() -> None:
    def answer(connection: socket, _address: object) -> None:
        connection.sendall(b"this is no TLS")

    with served(answer) as hosts, client(hosts, ZooKeeperSecurity(tls_ca=CA)) as refused:
        assert "cannot be reached with TLS" in str(refused.get(timeout=WITHIN_S))


def test_there_is_one_context_until_a_file_changes(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(Path(CA).read_bytes())
    login = Login(ZooKeeperSecurity(tls_ca=str(ca)))
    first = login.tls_context()
    assert Login(ZooKeeperSecurity(tls_ca=str(ca))).tls_context() is first
    assert first.check_hostname
    assert first.verify_mode is ssl.CERT_REQUIRED
    os.utime(ca, ns=(1, 1))
    assert login.tls_context() is not first


@pytest.mark.parametrize(
    ("security", "text"),
    [
        (ZooKeeperSecurity(tls_ca="/no/ca.pem"), "/no/ca.pem: cannot be read"),
        (ZooKeeperSecurity(tls_ca=str(TLS)), "cannot be"),
        (ZooKeeperSecurity(tls_certificate=CA), "certificates for ZooKeeper cannot be used"),
        (ZooKeeperSecurity(user="u", password_file="/no/word"), "/no/word: cannot be read"),  # noqa: S106  # a path
    ],
)
def test_files_that_cannot_be_used(security: ZooKeeperSecurity, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Login(security)


@pytest.mark.parametrize(
    ("content", "text"), [(b"\n", "is empty"), (b"\xff", "is not UTF-8 text"), (b"x" * 10_001, "is too large")]
)
def test_secrets_that_cannot_be_used(tmp_path: Path, content: bytes, text: str) -> None:
    file = tmp_path / "word"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=text):
        read_secret(str(file))


def test_a_password_may_begin_and_end_with_spaces(tmp_path: Path) -> None:
    """In `read_secret`, remove more than the line break at the end."""
    (tmp_path / "word").write_bytes(b" a word \r\n")
    assert read_secret(str(tmp_path / "word")) == " a word "


def test_a_changed_password_is_used_at_the_next_connection(tmp_path: Path) -> None:
    file = tmp_path / "word"
    file.write_text("old\n")
    login = Login(ZooKeeperSecurity(user="u", password_file=str(file)))
    assert login.sasl_options is not None
    assert login.sasl_options["password"] == "old"  # noqa: S105  # of this test
    file.write_text("new")
    login.refresh()
    assert login.sasl_options["password"] == "new"  # noqa: S105  # as above


def test_names_in_access_control_lists() -> None:
    assert digest_identity("super:admin") == "super:xQJmxLMiHGwaqBvst5y6rkB6HQs="  # from ZooKeeper's documentation
    assert Login(ZooKeeperSecurity(user="u", password="p")).identity == "sasl:u"  # noqa: S106  # of this test
    digest = Login(ZooKeeperSecurity(user="super", password="admin", auth="digest"))  # noqa: S106  # as above
    assert digest.identity == "digest:super:xQJmxLMiHGwaqBvst5y6rkB6HQs="
    assert digest.credentials == [("digest", digest.own), ("digest", "super:admin")]
    assert digest.own != Login(ZooKeeperSecurity(tls_ca=CA)).own


def test_a_pipe_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `read_secret`, read it again: `<(pass show zookeeper)` has nothing for the second connection."""
    monkeypatch.setattr(zk_login, "_from_pipes", {})
    reading, writing = os.pipe()
    os.write(writing, b"word\n")
    os.close(writing)
    try:
        assert [read_secret(f"/dev/fd/{reading}") for _connection in range(2)] == ["word", "word"]
    finally:
        os.close(reading)
