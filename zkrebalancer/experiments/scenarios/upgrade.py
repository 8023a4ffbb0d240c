"""upgrade: the group comes to its protocol while it runs; its members are replaced one by one.

What a protocol is upgraded from, and how many times each member has to be replaced for it, is in `protocols.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Action, Cast, ConfigureGroup, Join, Leave, Pause, Scenario, Step
from zkrebalancer.experiments.scenarios.rolling_deploy import AWAY_S

MOST_RESTARTS = 2


def _steps(cast: Cast) -> Sequence[Step]:
    first: tuple[Action, ...] = (ConfigureGroup(),)
    steps = []
    for version in range(1, MOST_RESTARTS + 1):
        for name in cast.present:
            steps.append(Step("replace-member", name, (*first, Leave(name), Pause(AWAY_S), Join(name, version))))
            first = ()
    return steps


SCENARIO = Scenario(
    name="upgrade",
    about="members are replaced one by one by members of this protocol; before, the group had another one",
    steps=_steps,
    is_upgrade=True,
)
