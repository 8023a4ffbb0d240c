"""The cost of each process in each step: sampled CPU time and memory, counted requests and bytes.

Counters never fall while a process lives. A counter that falls has restarted from zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from zkrebalancer.observe.reading import Event

Process = tuple[str, str]  # role and target


@dataclass(slots=True)
class Cost:
    """What a process spent in a step; None where nothing was measured."""

    cpu_us: int | None = None
    rss_bytes_max: int | None = None
    requests: int | None = None
    bytes: int | None = None


@dataclass(slots=True)
class Costs:
    """The costs of a run up to the last event that was added."""

    _costs: dict[tuple[int | None, Process], Cost] = field(default_factory=dict)
    _totals: dict[tuple[Process, str], int | None] = field(default_factory=dict)  # by what was counted

    def __iter__(self) -> Iterator[tuple[int | None, Process, Cost]]:
        """Iterate over (step, process, cost)."""
        return ((step, process, cost) for (step, process), cost in self._costs.items())

    def sampled(self, event: Event, step: int | None) -> None:
        """Handle `sampled`; `step` is None outside all steps."""
        cost, process = self._cost(event, step)
        cost.cpu_us = _sum(cost.cpu_us, self._growth(process, "cpu_us", event["cpu_us"]))
        cost.rss_bytes_max = max(cost.rss_bytes_max or 0, event["rss_bytes"])

    def counted(self, event: Event, step: int | None) -> None:
        """Handle `counted`."""
        cost, process = self._cost(event, step)
        cost.requests = _sum(cost.requests, self._growth(process, "requests", event["requests"]))
        sent = event.get("bytes_out")  # brokers do not report it
        total = None if sent is None else event["bytes_in"] + sent
        cost.bytes = _sum(cost.bytes, self._growth(process, "bytes", total))

    def _cost(self, event: Event, step: int | None) -> tuple[Cost, Process]:
        process = (event["role"], event["target"])
        return self._costs.setdefault((step, process), Cost()), process

    def _growth(self, process: Process, what: str, total: int | None) -> int | None:
        before, self._totals[process, what] = self._totals.get((process, what)), total
        if before is None:
            return 0
        return total if total is None or total < before else total - before


def _sum(one: int | None, other: int | None) -> int | None:
    return one if other is None else (one or 0) + other
