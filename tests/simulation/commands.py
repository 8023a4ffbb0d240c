"""Operators' commands as faults: each is a process that may end, or lose its connection, between any two calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from tests.simulation import shards
from tests.simulation.cluster import SETTINGS, Cluster
from tests.simulation.operator_invariants import check_written
from tests.simulation.operators import Command, OperatorHost
from tests.simulation.strangers import Do, Target
from zkrebalancer.observe import inspection
from zkrebalancer.operations import (
    approval,
    change_shards,
    configure,
    drain,
    evict,
    group_lifecycle,
    move_offsets,
    reset_offsets,
)
from zkrebalancer.operations import weights as weights_operation
from zkrebalancer.operations.configure import Altered
from zkrebalancer.operations.group_lifecycle import GroupChangedError, GroupInUseError
from zkrebalancer.operations.starts_pause import OffsetsRefusedError
from zkrebalancer.protocol import settings, weights
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.runtime.zk import BlockingZk

BEGIN_US = 1_500_000  # within which a command begins after its group's consumers are stopped
EMPTY_US = (500_000, 9_000_000)  # how long others are kept from starting
PATIENCE_US = 400_000  # then consumers are killed that have not stopped
RETURN_US = 2_000_000  # within which consumers return
RUSHING, RUSH_US = 0.3, 80_000  # how often a consumer starts while a command runs, and within which time
MAX_TRIES, PAUSE_S = 12, 0.5  # of an operator
FREEZE_MS = 2_000
PAIRS = ("rebalance_timeout_ms=900", "max_rebalance_retries=2", "strategy=range", "rebalance_debounce_ms=0")


def stop_consumers(cluster: Cluster, draw: Random, group: str, empty_us: int | None = None) -> None:
    """Stop a group's consumers for a while; mostly no other starts meanwhile."""
    now_us = cluster.schedule.now_us
    cluster.empty_until_us[group] = now_us + (draw.randrange(*EMPTY_US) if empty_us is None else empty_us)
    stop(cluster, group)
    cluster.schedule.after(PATIENCE_US, kill, cluster, group)
    for _ in range(draw.randint(1, 2)):
        cluster.schedule.at(cluster.empty_until_us[group] + draw.randrange(RETURN_US), cluster.add_agent, group)


def stop(cluster: Cluster, group: str) -> None:
    """Ask a group's consumers to end."""
    for agent in cluster.living_agents(group):
        cluster.applications[agent.name].close()


def kill(cluster: Cluster, group: str) -> None:
    """End a group's consumers."""
    for agent in cluster.living_agents(group):
        agent.kill()


def _trying_again(
    cluster: Cluster, draw: Random, group: str, host: Callable[[], OperatorHost], try_once: Command
) -> Command:
    """Return a command that is repeated while the group has consumers; some consumer may start while it runs."""

    def command(zk: BlockingZk) -> None:
        for _ in range(MAX_TRIES):
            if draw.random() < RUSHING:
                cluster.schedule.after(draw.randrange(RUSH_US), partial(cluster.add_agent, group, whenever=True))
            with suppress(OffsetsRefusedError, GroupInUseError, GroupChangedError):
                try_once(zk)
                return
            stop(cluster, group)
            host().sleep(PAUSE_S)

    return command


def later(cluster: Cluster, delay_us: int, start: Callable[..., None], *arguments: object, **more: object) -> None:
    """Start a command after a while; the end of the run waits for it."""

    def go_on() -> None:
        cluster.commands_to_come -= 1
        start(*arguments, **more)

    cluster.commands_to_come += 1
    cluster.schedule.after(delay_us, go_on)


def begin(cluster: Cluster, command: Command) -> OperatorHost:
    """Start a command."""
    host = cluster.add_operator(command)
    cluster.schedule.tell("FAULT", f"{host.name} begins")
    return host


def _reset_offsets(cluster: Cluster, draw: Random, target: Target) -> None:
    stop_consumers(cluster, draw, target.group)
    later(cluster, draw.randrange(BEGIN_US), _begin_reset, cluster, draw, target.group)


def _begin_reset(cluster: Cluster, draw: Random, group: str) -> None:
    def reset(zk: BlockingZk) -> None:
        new_offsets = partial(_earlier, cluster, draw, group)
        changes = reset_offsets.reset_offsets(zk, group, new_offsets, dry_run=False)
        check_written(host, group, {tp: one.after for tp, one in changes.items() if one.in_zookeeper is not None})

    host = begin(cluster, _trying_again(cluster, draw, group, lambda: host, reset))


def _earlier(
    cluster: Cluster, draw: Random, group: str, partitions: Iterable[TopicPartition]
) -> Mapping[TopicPartition, int]:
    """Draw offsets up to which everything is processed."""
    finished = cluster.emission.finished
    known = {tp: finished.get((group, tp, cluster.stored_life(group, tp)), 0) for tp in partitions}
    return {tp: draw.randint(0, end) for tp, end in known.items()}


def _import_offsets(cluster: Cluster, draw: Random, target: Target) -> None:
    """Export the offsets of a group without consumers, and import earlier ones of the same partitions."""
    stop_consumers(cluster, draw, target.group)
    later(cluster, draw.randrange(BEGIN_US), _begin_import, cluster, draw, target.group)


def _begin_import(cluster: Cluster, draw: Random, group: str) -> None:
    def import_earlier(zk: BlockingZk) -> None:
        exported = move_offsets.in_zookeeper(zk, group)
        changes = move_offsets.import_offsets(zk, group, _earlier(cluster, draw, group, exported), dry_run=False)
        check_written(host, group, {tp: one.after for tp, one in changes.items()})

    host = begin(cluster, _trying_again(cluster, draw, group, lambda: host, import_earlier))


def _delete_group(cluster: Cluster, draw: Random, target: Target) -> None:
    """Delete a group without consumers, and mostly create it again."""
    stop_consumers(cluster, draw, target.group)
    later(cluster, draw.randrange(BEGIN_US), _begin_deletion, cluster, draw, target.group)


def _begin_deletion(cluster: Cluster, draw: Random, group: str) -> None:
    def delete(zk: BlockingZk) -> None:
        group_lifecycle.delete_group(zk, group, group_lifecycle.read_nodes(zk, group))
        if is_created_again:
            group_lifecycle.create_group(zk, group, settings.decode(cluster.settings(group, SETTINGS[0])))

    is_created_again = draw.random() < 0.8
    host = begin(cluster, _trying_again(cluster, draw, group, lambda: host, delete))


def _operate(cluster: Cluster, draw: Random, target: Target) -> None:
    """Change a group while it is in use."""
    member = target.agent.consumer if target.agent is not None else None
    group = target.group
    rates = {"t": [[float(draw.randint(1, 9))] for _ in range(4)]}
    content = weights.encode(weights.Weights(weights.ALWAYS, rates))
    commands: list[Command] = [
        lambda zk: weights_operation.write_weights(zk, group, content),
        *[_approving(group)] * 2,
        *(_altering(group, altered) for altered in _changes(cluster, draw, target)),
    ]
    if member is not None:
        commands += [_evicting(group, member)] * 4
    for command in draw.sample(commands, 2):  # at the same time
        begin(cluster, command)


def _altering(group: str, altered: Altered) -> Command:
    """Return what `zkrebalancer groups` does to change settings."""

    def command(zk: BlockingZk) -> None:
        _before, node = configure.read_settings(zk, group)
        after = configure.checked(altered(inspection.read_group(zk, group)))
        configure.write_settings(zk, group, node, after, "changed")

    return command


def _approving(group: str) -> Command:
    def command(zk: BlockingZk) -> None:
        _moves, approved = approval.approving(zk, group)
        _altering(group, approved)(zk)

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
        lambda report: replace(report.settings, approve_moves_above=0),
        drain.undraining([]),
    ]
    if target.agent is not None and target.agent.consumer is not None:
        found += [drain.draining([target.agent.consumer]), drain.draining_host(target.agent.name)]
    return found


def _run_change_shards(cluster: Cluster, draw: Random, _target: Target) -> None:
    count = draw.randint(1, shards.MAX_COUNT)
    begin(cluster, lambda zk: change_shards.change(zk, count))


COMMANDS: dict[str, Do] = {
    "reset_offsets": _reset_offsets,
    "import_offsets": _import_offsets,
    "delete_group": _delete_group,
    "operate": _operate,
    "run_change_shards": _run_change_shards,
}
