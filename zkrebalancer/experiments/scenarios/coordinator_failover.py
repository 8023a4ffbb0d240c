"""coordinator-failover: whoever coordinates the group dies, and a member joins while it is away.

There are three servers of each kind, so that a standby or another broker takes over. Only the gateway is alone: it is
started again at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Cast, FailCoordinator, Join, RestartGateway, Scenario, Step

AT_LEAST_S = 10.0  # records that waited for the partitions' new leaders are delivered by then, whoever settles sooner


def _steps(cast: Cast) -> Sequence[Step]:
    (name,) = cast.newcomers(1)
    return [Step("fail-coordinator", name, (FailCoordinator(), Join(name), RestartGateway()), at_least_s=AT_LEAST_S)]


SCENARIO = Scenario(
    name="coordinator-failover",
    about="the leading coordinator, the gateway or the coordinating broker is killed, and a member joins",
    steps=_steps,
    servers=3,
)
