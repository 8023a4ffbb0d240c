"""The last events in the groups of a leader: which rebalances ended or are carried out, and which groups changed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from zkrebalancer.protocol.shards import concerns
from zkrebalancer.rebalance.effects import Emit

MAX_ENDED = 50
MAX_GROUPS = 20_000  # with more, groups that are gone are forgotten, and all others count anew
MAX_LATE = 5


@dataclass(frozen=True, slots=True)
class Ended:
    """A rebalance that has ended; times in milliseconds, `at_ms` since the epoch."""

    at_ms: int
    group: str
    generation: int | None
    cause: str
    outcome: str
    moved: int
    settled_ms: float
    pause_ms_max: float
    late: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan that is carried out."""

    at_ms: int
    generation: int | None
    cause: str
    mode: str
    moved: int
    partitions: int
    members: int


class Recent:
    """Follows the events of telemetry."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.ended: deque[Ended] = deque(maxlen=MAX_ENDED)
        self.planned: dict[str, Planned] = {}  # by group
        self.versions: dict[str, int] = {}  # group -> how many events it had

    def _forget(self, effect: Emit) -> None:
        """Forget the groups of a shard whose leadership has begun or ended."""
        kept = [one for one in self.ended if not concerns(effect.fields, one.group)]
        self.ended.clear()
        self.ended.extend(kept)
        self.planned = {name: one for name, one in self.planned.items() if not concerns(effect.fields, name)}
        self.versions = {name: one for name, one in self.versions.items() if not concerns(effect.fields, name)}

    def note(self, effect: Emit, cause: str, now_ms: int) -> None:
        """Note an event; `cause`: of its rebalance."""
        if effect.kind in {"leader_elected", "leader_resigned"}:
            self._forget(effect)
        if effect.group is None:
            return
        if len(self.versions) >= MAX_GROUPS and effect.group not in self.versions:
            self.planned, self.versions = {}, {}
        self.versions[effect.group] = self.versions.get(effect.group, 0) + 1
        if effect.kind == "rebalance_planned":
            self.planned[effect.group] = Planned(
                now_ms,
                effect.generation,
                cause,
                str(effect.fields["mode"]),
                _number(effect, "moved_count"),
                _number(effect, "partition_count"),
                _number(effect, "member_count"),
            )
        elif effect.kind in {"rebalance_finished", "group_quarantined", "group_deleted"}:
            self.planned.pop(effect.group, None)
        if effect.kind == "rebalance_finished":
            self.ended.append(_ended(effect, effect.group, cause, now_ms))


def _ended(effect: Emit, group: str, cause: str, now_ms: int) -> Ended:
    late = effect.fields["late_members"]
    return Ended(
        now_ms,
        group,
        effect.generation,
        cause,
        str(effect.fields["outcome"]),
        _number(effect, "moved_count"),
        _number(effect, "settled_us") / 1_000,
        _number(effect, "pause_us_max") / 1_000,
        tuple(late[:MAX_LATE]) if isinstance(late, list) else (),
    )


def _number(effect: Emit, name: str) -> int:
    return int(str(effect.fields[name]))
