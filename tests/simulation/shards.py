"""Shards of groups in a run: the present ones, and an operator who changes their number."""

from __future__ import annotations

from random import Random
from typing import cast

from tests.simulation.ensemble import Ensemble
from tests.support.shard_world import Client
from zkrebalancer.operations import change_shards
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.shards import BARRIER, Number, Shard, decode_number
from zkrebalancer.runtime.zk import BlockingZk

MAX_COUNT = 4


def present(ensemble: Ensemble) -> tuple[Shard, ...]:
    """Return the shards that there are now: while their number cannot be read, those before."""
    found = _read(ensemble)
    if found is not None:
        ensemble.shards = found
    return ensemble.shards


def is_damaged(ensemble: Ensemble) -> bool:
    """Whether no coordinator can read how many shards there are."""
    return _read(ensemble) is None


def _read(ensemble: Ensemble) -> tuple[Shard, ...] | None:
    node = ensemble.zk.nodes.get(paths.SHARDS)
    if node is None:
        return Number().all(-1)
    try:
        number = decode_number(node.content)
    except NodeContentError:
        return None
    return None if number.shards == 1 and has_barrier(ensemble) else number.all(node.version)


def has_barrier(ensemble: Ensemble) -> bool:
    """Whether a node keeps coordinators from leading as if there were one shard."""
    return BARRIER in ensemble.zk.nodes


def of_group(ensemble: Ensemble, group: str) -> Shard:
    return next(shard for shard in present(ensemble) if shard.has(group))


def some(ensemble: Ensemble, draw: Random) -> Shard:
    """Return the only shard, or any of several."""
    shards = present(ensemble)
    return shards[0] if len(shards) == 1 else draw.choice(shards)


def mend(ensemble: Ensemble) -> None:
    """Set the number again, as an operator does, if it or what belongs to it is damaged."""
    count = len(present(ensemble))
    if is_damaged(ensemble) or has_barrier(ensemble) != (count > 1):
        set_number(ensemble, count)


def set_number(ensemble: Ensemble, count: int) -> None:
    change_shards.change(cast("BlockingZk", Client(ensemble.zk)), count)
