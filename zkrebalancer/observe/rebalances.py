"""The rebalances of a run, each joined from its request, plan, starts and end."""

from __future__ import annotations

from dataclasses import dataclass, field

from zkrebalancer.observe.reading import Event

UNDER_WAY = "under way"
SUPERSEDED = "superseded"
UNKNOWN_CAUSE = "unknown"


@dataclass(slots=True)
class Rebalance:
    """One rebalance of one group; the times are None until it has ended.

    `settled_ms` runs from the request to the last acknowledgement. `pause_ms_max` is the longest time that a started
    partition had no owner before; in eager mode this includes partitions that return to the same consumer.
    """

    group: str
    generation: int
    mode: str
    cause: str
    members: int
    partitions: int
    moved: int
    settled_ms: float | None = None
    pause_ms_max: float | None = None
    outcome: str = UNDER_WAY


@dataclass(slots=True)
class RebalanceLog:
    """Every rebalance, in the order of the plans."""

    rebalances: list[Rebalance] = field(default_factory=list)
    _triggers: dict[str, str] = field(default_factory=dict)  # cause id -> trigger
    _by_cause: dict[tuple[str, int, str], Rebalance] = field(default_factory=dict)
    _last: dict[str, Rebalance] = field(default_factory=dict)

    def requested(self, event: Event) -> None:
        """Handle `rebalance_requested`."""
        self._triggers[event["cause_id"]] = event["trigger"]

    def planned(self, event: Event) -> None:
        """Handle `rebalance_planned`; an earlier plan that is still under way (its leader died) is superseded."""
        group, generation, cause_id = event["group"], event["generation"], event["cause_id"]
        before = self._last.get(group)
        if before is not None and before.outcome == UNDER_WAY:
            before.outcome = SUPERSEDED
        rebalance = Rebalance(
            group,
            generation,
            event["mode"],
            self._triggers.get(cause_id, UNKNOWN_CAUSE),
            event["member_count"],
            event["partition_count"],
            event["moved_count"],
        )
        self.rebalances.append(rebalance)
        self._by_cause[group, generation, cause_id] = self._last[group] = rebalance

    def finished(self, event: Event) -> None:
        """Handle `rebalance_finished`."""
        rebalance = self._by_cause.get((event["group"], event["generation"], event["cause_id"]))
        if rebalance is not None:
            rebalance.outcome = event["outcome"]
            rebalance.settled_ms = event["settled_us"] / 1_000
            rebalance.pause_ms_max = rebalance.pause_ms_max or 0.0

    def started(self, event: Event, pause_us: int) -> None:
        """Handle `fetcher_started` for one of its partitions, which had no owner for `pause_us`."""
        rebalance = self._by_cause.get((event["group"], event.get("generation", 0), event.get("cause_id", "")))
        if rebalance is not None:
            rebalance.pause_ms_max = max(rebalance.pause_ms_max or 0.0, pause_us / 1_000)

    def planned_partitions(self, group: str) -> int | None:
        """Return how many partitions the group's last plan assigns, None if there was no plan."""
        last = self._last.get(group)
        return None if last is None else last.partitions
