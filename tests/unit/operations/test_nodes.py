"""Nodes that are missing, invalid, or may not be read."""

from __future__ import annotations

from typing import cast

import pytest

from tests.support.zk_model import Right
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.operations.nodes import create_missing, names_below, read_each
from zkrebalancer.protocol import cluster_nodes
from zkrebalancer.protocol.calls import Content
from zkrebalancer.protocol.errors import ZooKeeperRefusedError
from zkrebalancer.runtime.zk import BlockingZk


@pytest.fixture
def client() -> ModelClient:
    client = ModelClient()
    client.create("/consumers/a", b"1")
    client.create("/consumers/b", b"foreign")
    client.model.identity = str
    return client


def zk(client: ModelClient) -> BlockingZk:
    return cast("BlockingZk", client)


def test_a_node_that_does_not_exist_has_no_children(client: ModelClient) -> None:
    assert names_below(zk(client), "/consumers") == ("a", "b")
    assert names_below(zk(client), "/consumers/none") == ()


def test_only_missing_nodes_are_created_parents_first(client: ModelClient) -> None:
    create_missing(zk(client), "/consumers", "/consumers/a", "/consumers/c", "/consumers/c/d")
    assert client.model.children("/consumers/c") == ["d"]
    assert client.model.nodes["/consumers/a"].content == b"1"


def test_nodes_that_exist_need_no_right_at_their_parent(client: ModelClient) -> None:
    client.model.denied.add(("0", "/consumers", Right.CREATE))
    create_missing(zk(client), "/consumers", "/consumers/a")
    with pytest.raises(ZooKeeperRefusedError):
        create_missing(zk(client), "/consumers/c")


def test_invalid_and_missing_nodes_are_left_out(client: ModelClient) -> None:
    def decode(node: Content) -> int:
        return cluster_nodes.decode_counter("counter", node.content)

    nodes = {name: f"/consumers/{name}" for name in ("a", "b", "none")}
    assert read_each(zk(client), nodes, decode) == {"a": 1}
    client.model.denied.add(("0", "/consumers/b", Right.READ))
    with pytest.raises(ZooKeeperRefusedError):
        read_each(zk(client), nodes, decode)
