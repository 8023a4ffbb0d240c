"""Scenarios: what happens to a group, one scenario per file, as plain data for every protocol."""

from __future__ import annotations

from collections.abc import Mapping

from zkrebalancer.experiments.scenarios import (
    backlog,
    broker_failover,
    churn,
    coordinator_failover,
    crash,
    far_1ms,
    far_10ms,
    freeze,
    join_storm,
    many_groups,
    many_groups_failover,
    new_topic,
    partition_growth,
    pause,
    rolling_deploy,
    rolling_deploy_static,
    scale_in,
    scale_out,
    scale_out_three,
    skewed_load,
    skewed_load_weights,
    slow_consumer,
    slow_disk_5ms,
    steady,
    upgrade,
    zookeeper_failover,
)
from zkrebalancer.experiments.scenarios.model import Scenario

SCENARIOS: Mapping[str, Scenario] = {
    module.SCENARIO.name: module.SCENARIO
    for module in (
        steady,
        scale_out,
        scale_out_three,
        far_1ms,
        far_10ms,
        slow_disk_5ms,
        scale_in,
        join_storm,
        churn,
        crash,
        freeze,
        pause,
        rolling_deploy,
        rolling_deploy_static,
        partition_growth,
        new_topic,
        coordinator_failover,
        broker_failover,
        zookeeper_failover,
        slow_consumer,
        skewed_load,
        skewed_load_weights,
        backlog,
        many_groups,
        many_groups_failover,
        upgrade,
    )
}
