"""partition-growth: the topic grows by half its partitions."""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import DISCOVERY_DEADLINE_S, TOPIC, Cast, Resize, Scenario, Step


def _steps(cast: Cast) -> Sequence[Step]:
    grown = Resize(TOPIC, cast.partitions + max(1, cast.partitions // 2))
    return [Step("grow-topic", TOPIC, (grown,), deadline_s=DISCOVERY_DEADLINE_S)]


SCENARIO = Scenario(name="partition-growth", about="the topic grows by half its partitions", steps=_steps)
