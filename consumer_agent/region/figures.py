"""What a region measures: the figures of its member, by name."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Durations:
    """The last and the longest of some durations, in milliseconds."""

    last_ms: int = 0
    longest_ms: int = 0
    count: int = 0

    def note(self, elapsed_ms: int) -> None:
        """Count one more."""
        self.last_ms, self.longest_ms = elapsed_ms, max(elapsed_ms, self.longest_ms)
        self.count += 1


@dataclass(slots=True)
class Figures:
    """The figures of one member of a region."""

    drains: Durations = field(default_factory=Durations)  # from an order to the last record in hand
    checkpoints: Durations = field(default_factory=Durations)  # of storing the application's state
    resets: Durations = field(default_factory=Durations)  # from an order to the new positions
    rebalances: int = 0

    def by_name(self, partitions: int, topics: int) -> dict[str, float]:
        """Return the figures, the unit last; those with `_total` only grow."""
        return {
            "region_assigned_partitions": partitions,
            "region_consumed_topics": topics,
            "region_rebalances_total": self.rebalances,
            "region_drain_last_ms": self.drains.last_ms,
            "region_drain_longest_ms": self.drains.longest_ms,
            "region_checkpoint_last_ms": self.checkpoints.last_ms,
            "region_checkpoint_longest_ms": self.checkpoints.longest_ms,
            "region_checkpoints_total": self.checkpoints.count,
            "region_reset_last_ms": self.resets.last_ms,
            "region_reset_longest_ms": self.resets.longest_ms,
            "region_resets_total": self.resets.count,
        }
