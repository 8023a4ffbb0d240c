"""The number of shards where another program's node is in the way."""

from __future__ import annotations

from typing import cast

import pytest

from tests.support.secured_model import COORDINATOR
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.operations.change_shards import NodeInTheWayError, change
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Delete, Multi
from zkrebalancer.runtime.zk import BlockingZk


def test_a_node_below_that_of_the_leader_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `change`, ignore it: the command says that elections were faster, and that another try may help."""
    monkeypatch.setattr(ModelClient, "principal", COORDINATOR)
    client = ModelClient()
    foreign = f"{paths.COORDINATOR}/foreign"
    client.create(foreign)
    with pytest.raises(NodeInTheWayError, match=f"^{foreign} is in the way: delete it first"):
        change(cast("BlockingZk", client), 4)
    assert paths.SHARDS not in client.model.nodes
    client.model.perform(Multi((Delete(foreign),)))
    assert change(cast("BlockingZk", client), 4) == 1
    assert change(cast("BlockingZk", client), 1) == 4
