"""`zkrebalancer groups` on a model of ZooKeeper."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.world import World
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.cli.groups import groups
from zkrebalancer.protocol.errors import RebalancerError


def on(monkeypatch: pytest.MonkeyPatch, world: World) -> ModelClient:
    """Let every command use the ZooKeeper of a world, by a client that is returned."""
    client = ModelClient(world.zk)
    for name, module in list(sys.modules.items()):
        if name.startswith("zkrebalancer.cli.groups.") and hasattr(module, "BlockingZk"):
            monkeypatch.setattr(module, "BlockingZk", lambda _hosts: nullcontext(client))
    return client


def run(*arguments: str, answer: str | None = None) -> Result:
    result = CliRunner().invoke(groups, [*arguments, "--zookeeper", "model:1"], input=answer)
    assert result.exception is None or isinstance(result.exception, SystemExit | RebalancerError), result.output
    return result


def document(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return found
