"""scale-in: members leave, one after the other."""

from __future__ import annotations

from zkrebalancer.experiments.scenarios.model import Leave, Scenario, Step

COUNT = 3

SCENARIO = Scenario(
    name="scale-in",
    about="three members leave, one after the other",
    steps=lambda cast: [Step("remove-member", name, (Leave(name),)) for name in cast.chosen(COUNT)],
)
