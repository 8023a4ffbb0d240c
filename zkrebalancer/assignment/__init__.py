"""Assignment strategies: pure functions from a Problem (who is there, who holds what) to an Assignment."""

from __future__ import annotations

from collections.abc import Mapping

from zkrebalancer.assignment.balanced import assign_balanced
from zkrebalancer.assignment.cooperative_sticky import assign_cooperative_sticky
from zkrebalancer.assignment.model import Strategy
from zkrebalancer.assignment.range import assign_range
from zkrebalancer.assignment.round_robin import assign_round_robin
from zkrebalancer.assignment.sticky import assign_sticky
from zkrebalancer.protocol.errors import RebalancerError

STRATEGIES: Mapping[str, Strategy] = {
    "range": assign_range,
    "round_robin": assign_round_robin,
    "sticky": assign_sticky,
    "cooperative_sticky": assign_cooperative_sticky,
    "balanced": assign_balanced,
}


class UnknownStrategyError(RebalancerError, ValueError):
    """A strategy name that is not in `STRATEGIES`."""

    exit_code = 2


def strategy(name: str) -> Strategy:
    """Return the strategy of that name.

    Raises:
        UnknownStrategyError: listing the known names.

    """
    if name not in STRATEGIES:
        raise UnknownStrategyError(f"strategy {name!r:.80} is unknown; known are {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
