"""rolling-deploy: members are restarted one after the other, each when the group is at rest."""

from __future__ import annotations

from zkrebalancer.experiments.scenarios.model import Join, Leave, Pause, Scenario, Step

COUNT = 3
AWAY_S = 2.0  # the start time of a small application

SCENARIO = Scenario(
    name="rolling-deploy",
    about="three members leave and return 2 s later, one after the other",
    steps=lambda cast: [
        Step("restart-member", name, (Leave(name), Pause(AWAY_S), Join(name))) for name in cast.chosen(COUNT)
    ],
)
