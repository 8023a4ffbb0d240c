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


def test_a_shard_whose_nodes_were_deleted_does_not_keep_the_number_from_becoming_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `_raised`, take its node for present: nothing can be made below it, and the command blames elections."""
    monkeypatch.setattr(ModelClient, "principal", COORDINATOR)
    client = ModelClient()
    assert change(cast("BlockingZk", client), 4) == 1
    deleted = sorted((path for path in client.model.nodes if f"{path}/".startswith(f"{paths.shard(0)}/")), reverse=True)
    client.model.perform(Multi(tuple(map(Delete, deleted))))
    assert change(cast("BlockingZk", client), 1) == 4
