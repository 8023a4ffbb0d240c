"""crash: a member's process is killed; it returns when the others own its partitions."""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Cast, Join, Kill, Scenario, Step


def _steps(cast: Cast) -> Sequence[Step]:
    (name,) = cast.chosen(1)
    return [Step("kill-member", name, (Kill(name),)), Step("restart-member", name, (Join(name),))]


SCENARIO = Scenario(name="crash", about="a member is killed (kill -9); later it comes back", steps=_steps)
