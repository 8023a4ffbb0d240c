"""Checks rule 17: no other member gets the partitions of a static member during the grace that it registered."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.coordinator import CoordinatorHost
from tests.simulation.ensemble import Ensemble
from tests.simulation.host import MAX_DRIFT_PPM
from tests.simulation.promises import BrokenPromiseError
from tests.support.zk_model import Change
from zkrebalancer.protocol import command, ownership, paths, registration
from zkrebalancer.protocol.calls import Operation
from zkrebalancer.protocol.command import StartFetcher
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition


@dataclass(frozen=True, slots=True)
class Kept:
    """The instance for which a partition is kept, and the earliest end of that."""

    instance: str
    until_us: int


class GraceInvariants:
    """Follows every transaction."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._instances: dict[tuple[str, str], tuple[str, int | None]] = {}  # group, consumer -> its instance and grace
        self._kept: dict[tuple[str, TopicPartition], Kept] = {}
        ensemble.watchers.append(self.committed)

    def committed(self, session_id: int, operations: tuple[Operation, ...], changes: tuple[Change, ...]) -> None:
        is_leader = isinstance(self._ensemble.hosts.get(session_id), CoordinatorHost)
        for change in changes:
            group, kind, name, *rest = [*change.path.removeprefix(paths.GROUPS + "/").split("/"), "", ""][:4]
            if not change.path.startswith(paths.GROUPS + "/") or not name:
                continue
            if kind == "ids" and change.after is not None:
                self._registered((group, name), change.after.content)
            elif kind == "owners" and change.before is not None and change.after is None and not operations:
                self._session_over((group, name), change.before.content)
            elif kind == "static":
                self._static_changed(group, name, change, is_leader)
            elif kind == "channel" and rest[0] and change.before is None and change.after is not None:
                self._commanded((group, name), change.after.content)

    def _registered(self, key: tuple[str, str], content: bytes) -> None:
        try:
            known = registration.decode(content)
        except NodeContentError:
            return
        if known.instance_id is not None:
            self._instances[key] = known.instance_id, known.static_grace_ms

    def _session_over(self, key: tuple[str, str], content: bytes) -> None:
        instance, grace_ms = self._instances.get(key, ("", None))
        node = self._ensemble.zk.nodes.get(paths.static(key[0], instance)) if grace_ms else None
        if node is None or grace_ms is None:
            return
        try:
            static, record = ownership.decode_static(node.content), ownership.decode_owners(content)
        except NodeContentError:
            return
        grace_us = grace_ms * 1_000 - grace_ms * 2 * MAX_DRIFT_PPM // 1_000
        kept = Kept(instance, self._ensemble.schedule.now_us + grace_us)
        self._kept.update(((key[0], tp), kept) for tp in static.partitions & record.partitions.keys())

    def _static_changed(self, group: str, instance: str, change: Change, is_leader: bool) -> None:
        """Stop expecting the grace if the member deletes its node to leave for good, or another program damages it."""
        try:
            is_kept = change.after is not None and bool(ownership.decode_static(change.after.content))
        except NodeContentError:
            is_kept = False
        for key in [key for key, kept in self._kept.items() if key[0] == group and kept.instance == instance]:
            if not is_kept and not (is_leader and self._ensemble.schedule.now_us < self._kept[key].until_us):
                del self._kept[key]  # if the leader changed it within the grace, a start of the partition is an error

    def _commanded(self, key: tuple[str, str], content: bytes) -> None:
        try:
            sent = command.decode(content)
        except NodeContentError:
            return
        for tp in sent.partitions or () if isinstance(sent, StartFetcher) else ():
            kept = self._kept.get((key[0], tp))
            if kept is not None and self._instances.get(key, ("", None))[0] == kept.instance:
                del self._kept[key[0], tp]
            elif kept is not None and self._ensemble.schedule.now_us < kept.until_us:
                raise BrokenPromiseError("grace", f"{key} was told to start {tp}, which is kept for {kept.instance}")
