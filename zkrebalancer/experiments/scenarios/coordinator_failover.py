"""coordinator-failover: the group's coordinator dies, and a member joins while it is away."""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Cast, FailCoordinator, Join, RestartBroker, Scenario, Step


def _steps(cast: Cast) -> Sequence[Step]:
    (name,) = cast.newcomers(1)
    return [Step("fail-coordinator", name, (FailCoordinator(), Join(name), RestartBroker()))]


SCENARIO = Scenario(
    name="coordinator-failover",
    about="the leading coordinator (or else the broker) is killed, and a member joins while it is away",
    steps=_steps,
)
