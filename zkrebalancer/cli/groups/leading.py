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
    return f"coordinator: broker {leader.brokerid} on {leader.host}, epoch {leader.epoch}"


def _of_each(leaders: Leaders) -> list[str]:
    found: dict[str, list[str]] = {}
    for shard, leader in enumerate(leaders):
        who = "none leads" if leader is None else f"broker {leader.brokerid} on {leader.host} leads"
        found.setdefault(who, []).append(str(shard))
    return [f"{who} {', '.join(numbers)}" for who, numbers in sorted(found.items())]


def document(leaders: Leaders) -> dict[str, Any]:
    """Return the leader, or with several shards the leader of each."""
    addresses = [None if leader is None else asdict(leader) for leader in leaders]
    if len(addresses) == 1:
        return {"coordinator": addresses[0]}
    return {"coordinator": None, "shards": [{"shard": n, "coordinator": one} for n, one in enumerate(addresses)]}
