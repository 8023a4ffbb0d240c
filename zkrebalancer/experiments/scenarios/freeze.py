"""freeze: a member's process is suspended until the others own its partitions, then resumes."""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Cast, Freeze, Scenario, Step, Thaw


def _steps(cast: Cast) -> Sequence[Step]:
    (name,) = cast.chosen(1)
    return [Step("freeze-member", name, (Freeze(name),)), Step("thaw-member", name, (Thaw(name),))]


SCENARIO = Scenario(
    name="freeze", about="a member is suspended for longer than its session, then resumes", steps=_steps
)
