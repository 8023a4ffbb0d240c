"""far-1ms: as scale-out, with a network between the hosts: every process is 1 ms away from every server."""

from __future__ import annotations

from zkrebalancer.experiments.scenarios import scale_out
from zkrebalancer.experiments.scenarios.model import Scenario

SCENARIO = Scenario(
    name="far-1ms",
    about="three members join, one after the other; round trips to servers take 1 ms",
    steps=scale_out.SCENARIO.steps,
    round_trip_ms=1.0,
)
