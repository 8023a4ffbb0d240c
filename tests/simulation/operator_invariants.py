"""What operators' commands may write, and when."""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.agent import AgentHost
from tests.simulation.coordinator import CoordinatorHost
from tests.simulation.ensemble import Ensemble
from tests.simulation.host import Host
from tests.simulation.invariants import TreeInvariants
from tests.simulation.operators import OperatorHost
from tests.simulation.promises import BrokenPromiseError
from tests.support.zk_model import Change
from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import Operation
from zkrebalancer.protocol.fields import TopicPartition


class OperatorInvariants:
    """Checks the transactions of commands; `tree` has to be the first to follow a transaction."""

    def __init__(self, ensemble: Ensemble, tree: TreeInvariants) -> None:
        self._ensemble = ensemble
        self._tree = tree
        self._is_partial = False  # a restore has written to groups, and is not complete
        ensemble.watchers.append(self.committed)

    def committed(self, session_id: int, _operations: tuple[Operation, ...], changes: tuple[Change, ...]) -> None:
        host = self._ensemble.hosts.get(session_id)
        is_restore = isinstance(host, OperatorHost) and host.is_restoring
        self._is_partial = paths.RESTORE in self._ensemble.zk.nodes and (
            self._is_partial or (is_restore and any(change.path.startswith(paths.GROUPS) for change in changes))
        )
        if not isinstance(host, OperatorHost):
            self._check_barrier(host, changes)
            return
        for change in changes:
            group, kind, *rest = [*change.path.removeprefix(paths.GROUPS + "/").split("/"), ""]
            if not change.path.startswith(paths.GROUPS + "/"):
                continue
            if kind == "offsets" and len(rest) > 1 and rest[1].isdigit():
                self._check_offset(host, group, (rest[0], int(rest[1])))
            elif not kind and change.before is not None and change.after is not None:
                self._check_settings(host, change)
            if change.after is not None:
                host.versions[change.path], host.written[change.path] = change.after.version, change.after.content

    def _check_barrier(self, host: Host | None, changes: tuple[Change, ...]) -> None:
        """Check that no coordinator leads, and no agent stores offsets or joins, while a restore is not complete.

        An agent that looked before the restore began may still join. Without a leader, it gets no partitions. One that
        owns some may store offsets until the restore writes: it finds the agent first, and withdraws.
        """
        if paths.RESTORE not in self._ensemble.zk.nodes:
            return
        knows = isinstance(host, AgentHost) and host.machine.joining is not None and host.machine.joining.is_restoring
        for change in changes:
            is_barred = isinstance(host, CoordinatorHost) or (
                isinstance(host, AgentHost) and "/offsets/" in change.path and self._is_partial
            )
            if change.path.startswith(f"{paths.GROUPS}/") and (is_barred or knows):
                raise BrokenPromiseError("restore", f"{host and host.name} wrote {change.path} in a part of a tree")

    def _check_offset(self, host: OperatorHost, group: str, partition: TopicPartition) -> None:
        holders = self._tree.holders.get((group, partition), set())
        if host.is_restoring:  # an evicted consumer stores nothing, and its lease is waited for before the next start
            known = self._tree.consumers
            holders = {name for name in holders if partition not in known[group, name].evicted}
        if holders:
            raise BrokenPromiseError("reset", f"{host.name} wrote the offset of {partition}, which {holders} may read")

    def _check_settings(self, host: OperatorHost, change: Change) -> None:
        known = host.versions.get(change.path)
        if change.before is not None and known != change.before.version:
            text = f"{host.name} replaced version {change.before.version} of {change.path}, and knew {known}"
            raise BrokenPromiseError("lost change", text)


def check_written(host: OperatorHost, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Check that a command that reports success has written every offset."""
    for partition, offset in offsets.items():
        found = host.written.get(paths.offsets(group, *partition))
        if found != cluster_nodes.encode_counter(offset):
            raise BrokenPromiseError("reset", f"{host.name} is done, and has written {found!r} for {partition}")
