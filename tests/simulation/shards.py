"""Shards of groups in a run: the present ones, and an operator who changes their number."""

from __future__ import annotations

from random import Random
from typing import cast

from tests.simulation.ensemble import Ensemble
from tests.support.shard_world import Client
from zkrebalancer.operations import change_shards
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.shards import Number, Shard, decode_number
from zkrebalancer.runtime.zk import BlockingZk

MAX_COUNT = 4


def present(ensemble: Ensemble) -> tuple[Shard, ...]:
    """Return the shards that there are now."""
    node = ensemble.zk.nodes.get(paths.SHARDS)
    return Number().all(-1) if node is None else decode_number(node.content).all(node.version)


def of_group(ensemble: Ensemble, group: str) -> Shard:
    return next(shard for shard in present(ensemble) if shard.has(group))


def some(ensemble: Ensemble, draw: Random) -> Shard:
    """Return the only shard, or any of several."""
    shards = present(ensemble)
    return shards[0] if len(shards) == 1 else draw.choice(shards)


def set_number(ensemble: Ensemble, count: int) -> None:
    change_shards.change(cast("BlockingZk", Client(ensemble.zk)), count)
