"""What of a group's service levels was burned: pauses by its recorded rebalances, lag by the records it has to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zkrebalancer.protocol.history import Rebalanced
from zkrebalancer.protocol.settings import LAG_S, PAUSE_MS


@dataclass(frozen=True, slots=True)
class Level:
    """One service level. `breached`: how many of `measured` were worse than `limit`; `worst`: None if none is known.

    Of `pause_ms`, rebalances that moved partitions are measured; of `lag_s`, partitions with a known lag.
    """

    name: str
    limit: float
    measured: int
    breached: int
    worst: float | None

    @property
    def line(self) -> str:
        """Return a line for people."""
        what = "rebalances that moved partitions" if self.name == PAUSE_MS else "partitions"
        worst = "" if self.worst is None else f"; the worst: {self.worst:g}"
        return f"slo.{self.name}={self.limit:g}: {self.breached} of {self.measured} {what} exceed it{worst}"


def levels(
    slo: Mapping[str, float], rebalances: Sequence[Rebalanced], lag_times: Iterable[float | None] | None
) -> list[Level]:
    """Return the levels that can be measured. `lag_times`: in seconds, None: they were not read."""
    found = []
    if PAUSE_MS in slo:
        pauses = [each.pause_ms_max for each in rebalances if each.moved and each.pause_ms_max is not None]
        found.append(_level(PAUSE_MS, slo[PAUSE_MS], pauses))
    if LAG_S in slo and lag_times is not None:
        found.append(_level(LAG_S, slo[LAG_S], [seconds for seconds in lag_times if seconds is not None]))
    return found


def _level(name: str, limit: float, values: Sequence[float]) -> Level:
    breached = sum(value > limit for value in values)
    return Level(name, limit, len(values), breached, max(values, default=None))
