"""Weights are written to existing groups only, and never overwritten unseen."""

from __future__ import annotations

from typing import cast

import pytest

from tests.unit.operations.model_client import ModelClient
from zkrebalancer.observe.inspection import UnknownGroupError
from zkrebalancer.operations.weights import WeightsNotWrittenError, write_weights
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.errors import InvalidNameError
from zkrebalancer.runtime.zk import BlockingZk


def write(client: ModelClient, group: str, content: bytes) -> None:
    write_weights(cast("BlockingZk", client), group, content)


def test_weights_are_written_and_then_replaced() -> None:
    client = ModelClient()
    client.create(paths.group("g"))
    for content in (b"one", b"two", b"three"):
        write(client, "g", content)
        assert client.model.nodes[paths.weights("g")].content == content


def test_only_a_group_that_exists_gets_weights() -> None:
    client = ModelClient()
    with pytest.raises(UnknownGroupError, match="there is no group g;"):
        write(client, "g", b"one")
    with pytest.raises(InvalidNameError):
        write(client, "a/b", b"one")
    assert len(client.model.nodes) == 1


@pytest.mark.parametrize("are_there", [False, True])
def test_weights_of_another_program_are_not_overwritten_unseen(are_there: bool) -> None:
    client, path = ModelClient(), paths.weights("g")
    client.create(paths.group("g"))
    if are_there:
        client.create(path, b"old")
    client.meanwhile = lambda: client.set(path, b"theirs") if are_there else client.create(path, b"theirs")

    with pytest.raises(WeightsNotWrittenError, match="group g") as raised:
        write(client, "g", b"ours")

    assert raised.value.retriable
    assert client.model.nodes[path].content == b"theirs"
