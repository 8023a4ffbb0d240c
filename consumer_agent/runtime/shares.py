"""How a limit is divided between partitions."""

from __future__ import annotations

from collections.abc import Sequence


def equal_shares(counts: Sequence[int], limit: int) -> list[int]:
    """Divide `limit` between partitions with these numbers of records; what one can't fill goes to the others.

    If there are at most `limit` partitions, each gets at least one record. Shares below a partition's number of records
    differ by at most one.
    """
    shares = [0] * len(counts)
    ascending = sorted(range(len(counts)), key=counts.__getitem__)
    for settled, index in enumerate(ascending):
        shares[index] = min(counts[index], limit // (len(counts) - settled))
        limit -= shares[index]
    return shares
