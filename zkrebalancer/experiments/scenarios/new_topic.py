"""new-topic: the members subscribe to a pattern, and a matching topic is created."""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import DISCOVERY_DEADLINE_S, NEW_TOPIC, Cast, Resize, Scenario, Step


def _steps(cast: Cast) -> Sequence[Step]:
    created = Resize(NEW_TOPIC, max(1, cast.partitions // 2))
    return [Step("create-topic", NEW_TOPIC, (created,), deadline_s=DISCOVERY_DEADLINE_S)]


SCENARIO = Scenario(
    name="new-topic",
    about="a topic is created that matches the members' pattern",
    steps=_steps,
    is_wildcard=True,
    before_s=12.0,  # brokers resolve the patterns of a group again 10 s after the last time at the earliest (KIP-848)
)
