"""rolling-deploy: members are restarted one after the other, each when the group is at rest again."""

from __future__ import annotations

from zkrebalancer.experiments.scenarios.model import Join, Leave, Scenario, Step

COUNT = 3

SCENARIO = Scenario(
    name="rolling-deploy",
    about="three members are restarted, one after the other",
    steps=lambda cast: [Step("restart-member", name, (Leave(name), Join(name))) for name in cast.chosen(COUNT)],
)
