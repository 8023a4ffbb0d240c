"""The rebalances of a run, each joined from its request, plan, starts and end."""

from __future__ import annotations

from dataclasses import dataclass, field

from zkrebalancer.observe.reading import Event, text_of

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
class Phases:
    """When the phases of a plan ended."""

    sent_us: int | None = None  # the first command
    acked_us: int | None = None  # the last acknowledgement
    finished_us: int | None = None
    outcome: str | None = None
    settled_ms: float | None = None
    measured_ms: float | None = None  # the longest pause as the coordinator saw it


@dataclass(frozen=True, slots=True)
class Plan:
    """One `rebalance_planned`, with what followed from it."""

    rebalance: Rebalance
    cause_id: str
    planned_us: int
    phases: Phases


@dataclass(slots=True)
class RebalanceLog:
    """Every rebalance, in the order of the plans."""

    rebalances: list[Rebalance] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    requested_us: dict[str, int] = field(default_factory=dict)  # by cause id
    _triggers: dict[str, str] = field(default_factory=dict)  # cause id -> trigger
    _by_cause: dict[tuple[str, int, str], Rebalance] = field(default_factory=dict)
    _last: dict[str, Rebalance] = field(default_factory=dict)
    _phases: dict[tuple[str, int, str], Phases] = field(default_factory=dict)

    def requested(self, event: Event) -> None:
        """Handle `rebalance_requested`."""
        self._triggers[event["cause_id"]] = event["trigger"]
        self.requested_us.setdefault(event["cause_id"], event["mono_us"])

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
        self.plans.append(Plan(rebalance, cause_id, event["mono_us"], self._phases_of(event)))

    def commanded(self, event: Event) -> None:
        """Handle `command_sent` and `command_acked`."""
        phases = self._phases_of(event)
        if event["kind"] == "command_acked":
            phases.acked_us = event["mono_us"]
        elif phases.sent_us is None:
            phases.sent_us = event["mono_us"]

    def finished(self, event: Event) -> None:
        """Handle `rebalance_finished`."""
        phases, pause_us = self._phases_of(event), event.get("pause_us_max")
        phases.finished_us, phases.outcome = event["mono_us"], event["outcome"]
        phases.settled_ms = event["settled_us"] / 1_000
        phases.measured_ms = pause_us / 1_000 if type(pause_us) is int else None
        rebalance = self._by_cause.get((event["group"], event["generation"], event["cause_id"]))
        if rebalance is not None:
            rebalance.outcome = event["outcome"]
            rebalance.settled_ms = event["settled_us"] / 1_000
            rebalance.pause_ms_max = rebalance.pause_ms_max or 0.0

    def started(self, event: Event, pause_us: int) -> None:
        """Handle `fetcher_started` for one of its partitions, which had no owner for `pause_us`."""
        key = (event["group"], event.get("generation", 0), text_of(event, "cause_id"))
        rebalance = self._by_cause.get(key)
        if rebalance is not None:
            rebalance.pause_ms_max = max(rebalance.pause_ms_max or 0.0, pause_us / 1_000)

    def cause_of(self, plan: Plan) -> str:
        """Return what caused a plan, by the requests so far: one may also come after its plan."""
        return self._triggers.get(plan.cause_id, UNKNOWN_CAUSE)

    def planned_partitions(self, group: str) -> int | None:
        """Return how many partitions the group's last plan assigns, None if there was no plan."""
        last = self._last.get(group)
        return None if last is None else last.partitions

    def _phases_of(self, event: Event) -> Phases:
        return self._phases.setdefault((event["group"], event["generation"], event["cause_id"]), Phases())
