"""The exact size at which a real ZooKeeper drops the connection, and that no client of ours comes near it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol.calls import Check, Create, Delete, Done, Multi, Operation, SetContent
from zkrebalancer.protocol.errors import RequestTooLargeError, ZooKeeperUnavailableError
from zkrebalancer.protocol.requests import JUTE_MAXBUFFER, MAX_REQUEST_BYTES
from zkrebalancer.runtime.zk import REQUEST_VARIABLE, BlockingZk, request_limit


def transaction(hosts: str, size: int) -> Multi:
    """Return a transaction of every kind of operation that takes exactly `size` bytes."""
    many: list[Operation] = [Create(f"/size/{'ü' * 50}-{number}", sequence=True) for number in range(200)]
    many += [Check("/size") for _ in range(200)]
    many += [Create("/size/gone"), Delete("/size/gone"), SetContent("/size", b"")]
    room = size - request_limit(hosts).size(many)
    return Multi((*many[:-1], SetContent("/size", b"x" * room)))


@pytest.fixture
def zk(shared_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[BlockingZk]:
    monkeypatch.setenv(REQUEST_VARIABLE, str(2 * JUTE_MAXBUFFER))
    with BlockingZk(shared_cluster.zookeeper) as client:
        assert isinstance(client.perform(Multi((Create("/size"),))), Done)
        yield client


def test_the_server_drops_the_connection_one_byte_above_its_limit(
    shared_cluster: LocalCluster, zk: BlockingZk, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = shared_cluster.zookeeper
    assert isinstance(zk.perform(transaction(hosts, JUTE_MAXBUFFER)), Done)
    with pytest.raises(ZooKeeperUnavailableError):
        zk.perform(transaction(hosts, JUTE_MAXBUFFER + 1))
    monkeypatch.delenv(REQUEST_VARIABLE)
    with BlockingZk(hosts) as client:
        with pytest.raises(RequestTooLargeError, match="more than 1000000 bytes"):
            client.perform(transaction(hosts, MAX_REQUEST_BYTES + 1))
        assert isinstance(client.perform(transaction(hosts, MAX_REQUEST_BYTES)), Done)
