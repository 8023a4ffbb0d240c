"""The leaders of all shards, as a line for people and as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from zkrebalancer.protocol.cluster_nodes import CoordinatorAddress

Leaders = Sequence[CoordinatorAddress | None]  # of each shard of groups


def heading(leaders: Leaders) -> str:
    """Return the line."""
    if len(leaders) > 1:
        return f"coordinators of {len(leaders)} shards: " + "; ".join(_of_each(leaders))
    leader = leaders[0]
    if leader is None:
        return "coordinator: none leads; no group is rebalanced until one does"
    return f"coordinator: {leader.name}" + (f", epoch {leader.epoch}" if leader.is_known else "")


def _of_each(leaders: Leaders) -> list[str]:
    found: dict[str, list[str]] = {}
    for shard, leader in enumerate(leaders):
        who = "none leads" if leader is None else f"{leader.name} leads"
        found.setdefault(who, []).append(str(shard))
    return [f"{who} {', '.join(numbers)}" for who, numbers in sorted(found.items())]


def address(leader: CoordinatorAddress | None) -> dict[str, Any] | None:
    """Return one leader for `--json`; its broker id is null if its node cannot be read."""
    return None if leader is None else {**asdict(leader), **({} if leader.is_known else {"brokerid": None})}


def document(leaders: Leaders) -> dict[str, Any]:
    """Return the leader, or with several shards the leader of each."""
    addresses = [address(leader) for leader in leaders]
    if len(addresses) == 1:
        return {"coordinator": addresses[0]}
    return {"coordinator": None, "shards": [{"shard": n, "coordinator": one} for n, one in enumerate(addresses)]}
