"""freeze: a member's process stands still until others have its partitions, and then goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Cast, Freeze, Scenario, Step, Thaw


def _steps(cast: Cast) -> Sequence[Step]:
    (name,) = cast.chosen(1)
    return [Step("freeze-member", name, (Freeze(name),)), Step("thaw-member", name, (Thaw(name),))]


SCENARIO = Scenario(name="freeze", about="a member stands still beyond its session, then goes on", steps=_steps)
