"""Assignment strategies: pure functions from a group (as columns) to the member and thread of each partition."""

from __future__ import annotations

from collections.abc import Mapping

from zkrebalancer.assignment.balanced import place_balanced
from zkrebalancer.assignment.columns import Strategy, to_columns
from zkrebalancer.assignment.cooperative_sticky import place_cooperative_sticky
from zkrebalancer.assignment.model import Assignment, Problem
from zkrebalancer.assignment.placement import to_assignment
from zkrebalancer.assignment.range import cut_ranges
from zkrebalancer.assignment.round_robin import deal
from zkrebalancer.assignment.sticky import place_sticky
from zkrebalancer.protocol.errors import UnknownStrategyError

STRATEGIES: Mapping[str, Strategy] = {
    "range": lambda columns, _options: cut_ranges(columns),
    "round_robin": lambda columns, _options: deal(columns),
    "sticky": lambda columns, _options: place_sticky(columns),
    "cooperative_sticky": lambda columns, _options: place_cooperative_sticky(columns),
    "balanced": place_balanced,
}

WEIGHING = frozenset({"balanced"})  # strategies that use lag and rates
WITH_OPTIONS = frozenset({"balanced"})  # strategies that have options; others ignore them


def strategy(name: str) -> Strategy:
    """Return the strategy with this name.

    Raises:
        UnknownStrategyError: there is none; the message lists the known names.

    """
    if name not in STRATEGIES:
        raise UnknownStrategyError(f"strategy {name!r:.80} is unknown; known are {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def decide(name: str, problem: Problem) -> Assignment:
    """Run the strategy with this name on a problem.

    Raises:
        UnknownStrategyError: there is no such strategy.
        OptionError: one of the problem's options is invalid.

    """
    columns = to_columns(problem)
    return to_assignment(columns, *strategy(name)(columns, problem.options))
