"""The objective that `balanced` minimises: the terms for one target, each in units of utilisation.

    peak        the highest utilisation (load / strength) of a member
    unevenness  the sum of strength * (utilisation - 1)^2, which also covers the members below the peak
    crossing    the load that is read across racks
    moving      the price of every partition that moves: one part proportional to its load, one part fixed
    crowding    the partitions above their topic's even share on a member, in loads of an average partition

The cost is `peak_cost * peak + uneven_cost * unevenness + rack_cost * crossing + moving + spread_cost * crowding`.
The first two terms include active members only; partitions that remain on drained members are reported, not weighed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zkrebalancer.assignment.balanced.case import Case
from zkrebalancer.assignment.columns import Rows


@dataclass(frozen=True, slots=True)
class Cost:
    """The terms of one target, and their weighted sum."""

    peak: float
    unevenness: float
    crossing: float
    moving: float
    crowding: float
    total: float


def cost_of(case: Case, target: Rows) -> Cost:
    """Return the cost of a target."""
    options = case.options
    strength = case.strength[case.active]
    utilisation = case.carried(target)[case.active] / strength
    peak = float(utilisation.max(initial=0.0))
    unevenness = float((strength * (utilisation - 1) ** 2).sum())
    crossing = float(case.load[case.is_across(np.arange(len(target)), target)].sum())
    moving = float(case.price[case.is_moved(target)].sum())
    crowding = crowded_count(case, target) * case.average_load
    total = (
        options.peak_cost * peak
        + options.uneven_cost * unevenness
        + options.rack_cost * crossing
        + moving
        + options.spread_cost * crowding
    )
    return Cost(peak, unevenness, crossing, moving, crowding, total)


def crowded_count(case: Case, target: Rows) -> int:
    """Return the number of partitions above their topic's even share, over all members."""
    given = target >= 0
    places = case.columns.topic[given].astype(np.int64) * len(case.strength) + target[given]
    places.sort()
    begins = np.flatnonzero(np.diff(places, prepend=-1))
    counts = np.diff(begins, append=len(places))
    share = case.even_share[places[begins] // max(len(case.strength), 1)]
    return int(np.maximum(counts - share, 0).sum())
