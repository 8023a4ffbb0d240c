"""Assignment strategies: pure functions from a Problem (who is there, who holds what) to an Assignment."""

from __future__ import annotations

from collections.abc import Mapping

from zkrebalancer.assignment.balanced import assign_balanced, place_balanced
from zkrebalancer.assignment.cooperative_sticky import assign_cooperative_sticky, place_cooperative_sticky
from zkrebalancer.assignment.model import Strategy
from zkrebalancer.assignment.range import assign_range, cut_ranges
from zkrebalancer.assignment.round_robin import assign_round_robin, deal
from zkrebalancer.assignment.sticky import assign_sticky, place_sticky
from zkrebalancer.assignment.transition import Placer
from zkrebalancer.protocol.errors import UnknownStrategyError

STRATEGIES: Mapping[str, Strategy] = {
    "range": assign_range,
    "round_robin": assign_round_robin,
    "sticky": assign_sticky,
    "cooperative_sticky": assign_cooperative_sticky,
    "balanced": assign_balanced,
}

PLACERS: Mapping[str, Placer] = {  # the same on columns, for groups whose columns are kept
    "range": lambda columns, _options: cut_ranges(columns),
    "round_robin": lambda columns, _options: deal(columns),
    "sticky": lambda columns, _options: place_sticky(columns),
    "cooperative_sticky": lambda columns, _options: place_cooperative_sticky(columns),
    "balanced": place_balanced,
}

WEIGHING = frozenset({"balanced"})  # strategies that look at lag and rates


def strategy(name: str) -> Strategy:
    """Return the strategy of that name.

    Raises:
        UnknownStrategyError: listing the known names.

    """
    if name not in STRATEGIES:
        raise UnknownStrategyError(f"strategy {name!r:.80} is unknown; known are {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
