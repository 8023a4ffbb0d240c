"""slow-consumer: one application is busy with its records for 20 s, and meanwhile a member joins."""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Block, Cast, Join, Pause, Scenario, Step

BLOCK_MS = 20_000
BEFORE_JOIN_S = 1.0  # by then the application is busy


def _steps(cast: Cast) -> Sequence[Step]:
    (blocked,), (newcomer,) = cast.chosen(1), cast.newcomers(1)
    actions = (Block(blocked, BLOCK_MS), Pause(BEFORE_JOIN_S), Join(newcomer))
    return [Step("block-member", blocked, actions, at_least_s=BLOCK_MS / 1_000)]


SCENARIO = Scenario(
    name="slow-consumer", about="an application is busy for 20 s, and meanwhile a member joins", steps=_steps
)
