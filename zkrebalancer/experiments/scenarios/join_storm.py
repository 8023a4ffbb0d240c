"""join-storm: half as many new members as the group has join at once."""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Cast, Join, Scenario, Step


def _steps(cast: Cast) -> Sequence[Step]:
    newcomers = cast.newcomers(max(1, cast.members // 2))
    return [Step("join-storm", f"{len(newcomers)} members", tuple(Join(name) for name in newcomers))]


SCENARIO = Scenario(name="join-storm", about="half as many new members as the group has join at once", steps=_steps)
