"""many-groups-failover: as coordinator-failover, with many small groups, each of which gets a member."""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.coordinator_failover import AT_LEAST_S
from zkrebalancer.experiments.scenarios.many_groups import GROUP_MEMBERS
from zkrebalancer.experiments.scenarios.model import (
    Action,
    Cast,
    FailCoordinator,
    Join,
    RestartGateway,
    Scenario,
    Step,
)


def _steps(cast: Cast) -> Sequence[Step]:
    joins = [Join(cast.newcomers(1, group)[0]) for group in cast.group_names]
    actions: tuple[Action, ...] = (FailCoordinator(), *joins, RestartGateway())
    return [Step("fail-coordinator", f"{len(joins)} members", actions, at_least_s=AT_LEAST_S)]


SCENARIO = Scenario(
    name="many-groups-failover",
    about="groups of three members: what coordinates them is killed, and each gets a member",
    steps=_steps,
    servers=3,
    group_members=GROUP_MEMBERS,
)
