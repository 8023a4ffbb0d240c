"""Scenarios: what happens to a group, one scenario per file, as plain data for every protocol."""

from __future__ import annotations

from collections.abc import Mapping

from zkrebalancer.experiments.scenarios import (
    coordinator_failover,
    crash,
    freeze,
    join_storm,
    new_topic,
    partition_growth,
    rolling_deploy,
    rolling_deploy_static,
    scale_in,
    scale_out,
    skewed_load,
    skewed_load_weights,
    slow_consumer,
    steady,
)
from zkrebalancer.experiments.scenarios.model import Scenario

SCENARIOS: Mapping[str, Scenario] = {
    module.SCENARIO.name: module.SCENARIO
    for module in (
        steady,
        scale_out,
        scale_in,
        join_storm,
        crash,
        freeze,
        rolling_deploy,
        rolling_deploy_static,
        partition_growth,
        new_topic,
        coordinator_failover,
        slow_consumer,
        skewed_load,
        skewed_load_weights,
    )
}
