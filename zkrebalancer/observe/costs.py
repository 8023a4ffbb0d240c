"""The cost of each process in each step: sampled CPU time and memory, counted requests and bytes.

Counters never fall while a process lives. A counter that falls has restarted from zero.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from zkrebalancer.observe.reading import Event

Process = tuple[str, str]  # role and target
WORKLOAD = "producer"  # the role that is part of an experiment: its cost is not the protocol's


@dataclass(slots=True)
class Cost:
    """What a process spent in a step; None where nothing was measured. Of brokers, `bytes` are those they received."""

    cpu_us: int | None = None
    rss_bytes_max: int | None = None
    requests: int | None = None
    bytes: int | None = None


@dataclass(slots=True)
class Costs:
    """The costs of a run up to the last event that was added."""

    _costs: dict[tuple[int | None, Process], Cost] = field(default_factory=dict)
    _totals: dict[tuple[Process, str], int] = field(default_factory=dict)  # by what was counted

    def __iter__(self) -> Iterator[tuple[int | None, Process, Cost]]:
        """Iterate over (step, process, cost)."""
        return ((step, process, cost) for (step, process), cost in self._costs.items())

    def sampled(self, event: Event, step: int | None) -> None:
        """Handle `sampled`; `step` is None outside all steps."""
        cost, process = self._cost(event, step)
        cost.cpu_us = (cost.cpu_us or 0) + self._growth(process, "cpu_us", event["cpu_us"])
        cost.rss_bytes_max = max(cost.rss_bytes_max or 0, event["rss_bytes"])

    def counted(self, event: Event, step: int | None) -> None:
        """Handle `counted`."""
        cost, process = self._cost(event, step)
        cost.requests = (cost.requests or 0) + self._growth(process, "requests", event["requests"])
        total = event["bytes_in"] + (event.get("bytes_out") or 0)  # brokers do not report it
        cost.bytes = (cost.bytes or 0) + self._growth(process, "bytes", total)

    def spent(self, step: int, what: str) -> dict[str, int]:
        """Return role -> what its processes spent in a step: `cpu_us`, `requests` or `bytes`.

        Roles of which that was never measured are missing.
        """
        found: dict[str, int] = {}
        for process, known in self._totals:
            if known == what:
                cost = self._costs.get((step, process), Cost())
                found[process[0]] = found.get(process[0], 0) + (getattr(cost, what) or 0)
        return found

    def memory(self, steps: Collection[int]) -> dict[str, int]:
        """Return role -> the sum of each process's highest resident memory in these steps, in bytes; no WORKLOAD."""
        highest: dict[Process, int] = {}
        for (step, process), cost in self._costs.items():
            if step in steps and process[0] != WORKLOAD and cost.rss_bytes_max is not None:
                highest[process] = max(highest.get(process, 0), cost.rss_bytes_max)
        found: dict[str, int] = {}
        for (role, _target), size in highest.items():
            found[role] = found.get(role, 0) + size
        return found

    def _cost(self, event: Event, step: int | None) -> tuple[Cost, Process]:
        process = (event["role"], event["target"])
        return self._costs.setdefault((step, process), Cost()), process

    def _growth(self, process: Process, what: str, total: int) -> int:
        before, self._totals[process, what] = self._totals.get((process, what)), total
        if before is None:
            return 0
        return total if total < before else total - before
