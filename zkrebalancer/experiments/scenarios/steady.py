"""steady: what a settled group costs while nothing happens."""

from __future__ import annotations

from zkrebalancer.experiments.scenarios.model import Scenario, Step

REST_S = 15.0

SCENARIO = Scenario(
    name="steady",
    about="nothing happens for 15 s: what a group at rest costs",
    steps=lambda _cast: [Step("rest", at_least_s=REST_S)],
)
