"""scale-out: members join a group at rest, one after the other."""

from __future__ import annotations

from zkrebalancer.experiments.scenarios.model import Join, Scenario, Step

COUNT = 3

SCENARIO = Scenario(
    name="scale-out",
    about="three members join, one after the other",
    steps=lambda cast: [Step("add-member", name, (Join(name),)) for name in cast.newcomers(COUNT)],
)
