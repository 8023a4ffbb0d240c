"""churn: every second a member joins or leaves, without waiting for the group to settle."""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Action, Cast, Join, Leave, Pause, Scenario, Step

COUNT = 10  # of members that come and go
EVERY_S = 1.0


def _steps(cast: Cast) -> Sequence[Step]:
    actions: list[Action] = []
    for name in cast.newcomers(COUNT):  # three of them are in the group at a time
        actions += [Join(name), Pause(EVERY_S)]
        joined = [action.member for action in actions if isinstance(action, Join)]
        if len(joined) > 2:
            actions += [Leave(joined[-3]), Pause(EVERY_S)]
    return [Step("churn", actions=tuple(actions))]


SCENARIO = Scenario(
    name="churn", about="ten members join, and eight of them leave again, a change every second", steps=_steps
)
