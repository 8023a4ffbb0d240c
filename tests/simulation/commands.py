"""Operators' commands as faults: each is a process that may end, or lose its connection, between any two calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from tests.simulation import shards
from tests.simulation.cluster import SETTINGS, Cluster
from tests.simulation.operator_invariants import check_reset
from tests.simulation.operators import Command, OperatorHost
from tests.simulation.strangers import Do, Target
from zkrebalancer.observe import inspection
from zkrebalancer.operations import change_shards, configure, drain, evict, group_lifecycle, reset_offsets
from zkrebalancer.operations import weights as weights_operation
from zkrebalancer.operations.configure import Altered
from zkrebalancer.protocol import settings, weights
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.zk import BlockingZk

BEGIN_US = 2_500_000  # within which a command begins after its group's consumers are stopped
RETURN_US = 4_000_000  # within which consumers return
FREEZE_MS = 2_000
PAIRS = ("rebalance_timeout_ms=900", "max_rebalance_retries=2", "strategy=range", "rebalance_debounce_ms=0")


def _stop_consumers(cluster: Cluster, draw: Random, group: str) -> None:
    """Stop a group's consumers, mostly all, and start others later."""
    for agent in cluster.living_agents(group):
        if draw.random() < 0.7:
            cluster.applications[agent.name].close()
        elif draw.random() < 0.9:
            agent.kill()
    for _ in range(draw.randint(1, 2)):
        cluster.schedule.after(draw.randrange(RETURN_US), cluster.add_agent, group)


def _begin(cluster: Cluster, draw: Random, command: Command) -> OperatorHost:
    host = cluster.add_operator(command)
    cluster.schedule.tell("FAULT", f"{host.name} begins")
    return host


def _reset_offsets(cluster: Cluster, draw: Random, target: Target) -> None:
    _stop_consumers(cluster, draw, target.group)
    cluster.schedule.after(draw.randrange(BEGIN_US), _begin_reset, cluster, draw, target.group)


def _begin_reset(cluster: Cluster, draw: Random, group: str) -> None:
    def new_offsets(partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        finished = cluster.emission.finished
        known = {tp: finished.get((group, tp, cluster.stored_life(group, tp)), 0) for tp in partitions}
        return {tp: draw.randint(0, end) for tp, end in known.items()}

    def command(zk: BlockingZk) -> None:
        check_reset(host, group, reset_offsets.reset_offsets(zk, group, new_offsets, dry_run=False))

    host = _begin(cluster, draw, command)


def _delete_group(cluster: Cluster, draw: Random, target: Target) -> None:
    """Delete a group without consumers, and mostly create it again."""
    _stop_consumers(cluster, draw, target.group)
    cluster.schedule.after(draw.randrange(BEGIN_US), _begin_deletion, cluster, draw, target.group)


def _begin_deletion(cluster: Cluster, draw: Random, group: str) -> None:
    def command(zk: BlockingZk) -> None:
        group_lifecycle.delete_group(zk, group, group_lifecycle.read_nodes(zk, group))
        if is_created_again:
            group_lifecycle.create_group(zk, group, settings.decode(cluster.settings(group, SETTINGS[0])))

    is_created_again = draw.random() < 0.8
    _begin(cluster, draw, command)


def _operate(cluster: Cluster, draw: Random, target: Target) -> None:
    """Change a group while it is in use."""
    member = target.agent.consumer if target.agent is not None else None
    group = target.group
    rates = {"t": [[float(draw.randint(1, 9))] for _ in range(4)]}
    content = weights.encode(weights.Weights(weights.ALWAYS, rates))
    commands: list[Command] = [
        lambda zk: weights_operation.write_weights(zk, group, content),
        *(_altering(group, altered) for altered in _changes(cluster, draw, target)),
    ]
    if member is not None:
        commands += [_evicting(group, member)] * 4
    for command in draw.sample(commands, 2):  # at the same time
        _begin(cluster, draw, command)


def _altering(group: str, altered: Altered) -> Command:
    """Return what `zkrebalancer groups` does to change settings."""

    def command(zk: BlockingZk) -> None:
        _before, node = configure.read_settings(zk, group)
        after = configure.checked(altered(inspection.read_group(zk, group)))
        configure.write_settings(zk, group, node, after, "changed")

    return command


def _evicting(group: str, member: str) -> Command:
    def command(zk: BlockingZk) -> None:
        evict.read_consumer(zk, group, member)
        evict.evict(zk, group, member)

    return command


def _changes(cluster: Cluster, draw: Random, target: Target) -> list[Altered]:
    until_ms = cluster.living_coordinators()[0].wall_ms() + FREEZE_MS
    pair = draw.choice(PAIRS)
    frozen: dict[str, Any] = {"frozen": True, "frozen_until_ms": until_ms}
    found: list[Altered] = [
        lambda report: configure.changed(report.settings, [pair]),
        lambda report: replace(report.settings, **frozen),
        drain.undraining([]),
    ]
    if target.agent is not None and target.agent.consumer is not None:
        found += [drain.draining([target.agent.consumer]), drain.draining_host(target.agent.name)]
    return found


def _run_change_shards(cluster: Cluster, draw: Random, _target: Target) -> None:
    count = draw.randint(1, shards.MAX_COUNT)
    _begin(cluster, draw, lambda zk: change_shards.change(zk, count))


COMMANDS: dict[str, Do] = {
    "reset_offsets": _reset_offsets,
    "delete_group": _delete_group,
    "operate": _operate,
    "run_change_shards": _run_change_shards,
}
