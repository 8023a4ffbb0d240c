"""rolling-deploy: members are restarted one after the other, each when the group is at rest again."""

from __future__ import annotations

from zkrebalancer.experiments.scenarios.model import Join, Leave, Pause, Scenario, Step

COUNT = 3
AWAY_S = 2.0  # as long as a small application takes to start

SCENARIO = Scenario(
    name="rolling-deploy",
    about="three members leave in good order and are back 2 s later, one after the other",
    steps=lambda cast: [
        Step("restart-member", name, (Leave(name), Pause(AWAY_S), Join(name))) for name in cast.chosen(COUNT)
    ],
)
