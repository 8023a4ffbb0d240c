"""Error messages for invalid addresses."""

from __future__ import annotations

import pytest

from zkrebalancer.protocol.addresses import server_fault, servers_fault, zookeeper_fault


@pytest.mark.parametrize("text", ["host:1", "[::1]:65535"])
def test_one_server_is_valid_wherever_servers_are(text: str) -> None:
    assert server_fault(text) is servers_fault(text) is zookeeper_fault(text) is zookeeper_fault(f"{text}/a") is None


def test_what_is_wrong_is_said_with_the_form_that_is_expected() -> None:
    assert server_fault("a:1,b:2") == "expected one HOST:PORT, but 'a:1,b:2' names several"
    assert server_fault("a") == "expected HOST:PORT, but 'a' is not HOST:PORT"
    assert servers_fault("a:1,b") == "expected HOST:PORT[,…], but 'b' is not HOST:PORT"
    assert zookeeper_fault("a") == "expected HOST:PORT[,…][/CHROOT], but 'a' is not HOST:PORT"
    for chroot in ("/..", "/./a", "/a/..", "/a\u0001"):  # the client would resolve or refuse them
        assert str(zookeeper_fault(f"a:1{chroot}")).endswith(f"but {chroot!r} is not a path")
    assert zookeeper_fault("a:1/..a/.b") is None
    assert zookeeper_fault("a:1//") == "expected HOST:PORT[,…][/CHROOT], but '//' is not a path"
