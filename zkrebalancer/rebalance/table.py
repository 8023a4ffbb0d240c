"""Which coordinator should lead which shard. Pure.

The table says who stands for election and who resigns; each shard's own election decides who leads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from zkrebalancer.protocol.places import rank


def shares(shards: int, capacities: Mapping[str, int]) -> dict[str, int]:
    """Return how many shards each host should lead, by capacity; the largest remainders are rounded up.

    Raises:
        ValueError: there is no host, or a capacity is not positive.

    """
    if not capacities or min(capacities.values()) <= 0:
        raise ValueError("shards need hosts with positive capacities")
    total = sum(capacities.values())
    exact = {name: Fraction(shards * capacity, total) for name, capacity in capacities.items()}
    whole = {name: int(share) for name, share in exact.items()}
    left = shards - sum(whole.values())
    for name in sorted(exact, key=lambda name: (whole[name] - exact[name], name))[:left]:
        whole[name] += 1
    return whole


def table(shards: int, capacities: Mapping[str, int]) -> dict[int, list[str]]:
    """Return for each shard its hosts in the order in which they should lead it.

    The first one has the highest hash of shard and host among those that have not reached their share. The others
    follow by their hashes. Every host computes the same table from the same list.
    """
    room = shares(shards, capacities)
    found: dict[int, list[str]] = {}
    for shard in range(shards):
        order = sorted(capacities, key=lambda name: rank(shard, name), reverse=True)  # used at once
        first = next(name for name in order if room[name])
        room[first] -= 1
        found[shard] = [first, *(name for name in order if name != first)]
    return found
