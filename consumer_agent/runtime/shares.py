"""How a limit is divided between partitions."""

from __future__ import annotations

from collections.abc import Sequence


def equal_shares(counts: Sequence[int], limit: int) -> list[int]:
    """Divide `limit` between partitions that hold so many records; what one can't fill goes to the others.

    At least one for each of no more than `limit` partitions; those that could be larger differ by one at most.
    """
    shares = [0] * len(counts)
    ascending = sorted(range(len(counts)), key=counts.__getitem__)
    for settled, index in enumerate(ascending):
        shares[index] = min(counts[index], limit // (len(counts) - settled))
        limit -= shares[index]
    return shares
