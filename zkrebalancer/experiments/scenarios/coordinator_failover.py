"""coordinator-failover: whoever coordinates the group dies, and while it is away a member joins."""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Cast, FailCoordinator, Join, RestartBroker, Scenario, Step


def _steps(cast: Cast) -> Sequence[Step]:
    (name,) = cast.newcomers(1)
    return [Step("fail-coordinator", name, (FailCoordinator(), Join(name), RestartBroker()))]


SCENARIO = Scenario(
    name="coordinator-failover",
    about="the leading coordinator is killed, or else the broker, and while it is away a member joins",
    steps=_steps,
)
