"""The peer of the pipeline benchmark: the same facts in plain Python, in one pass, with the standard library alone.

The checker computes ownership and deliveries, `observe.measures` the steps; delays and costs are counted here. Memory
does not grow with the events: delays are counted per microsecond and binned at the end.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zkrebalancer.observe.checker import Run
from zkrebalancer.observe.measures import END, measure
from zkrebalancer.observe.reading import Event, EventFiles, Problems

BIN = math.log(1.01)
VERDICT = ("produced", "delivered", "lost", "duplicated", "duplicated_outside_crash", "out_of_order", "overlaps")
STEP = ("settled_ms", "unowned_partition_ms", "moved", "moved_least", "stopped_needlessly")


@dataclass
class Facts:
    """The facts besides the verdict that one pass gathers; times are microseconds."""

    step: int | None = None
    began_us: int | None = None
    delays: dict[tuple[str, str, int | None], Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    curve: dict[tuple[str, int], list[int]] = field(default_factory=dict)  # per second: records, sum, maximum
    costs: Counter[tuple[int | None, str, str]] = field(default_factory=Counter)
    last_cpu: dict[tuple[str, str], int] = field(default_factory=dict)

    def gather(self, events: EventFiles, run: Run) -> Iterator[Event]:
        """Process every event, and yield all but deliveries."""
        for event in events:
            run.apply(event)
            kind, now_us = event["kind"], event["mono_us"]
            if self.began_us is None:
                self.began_us = now_us
            if kind == "delivered":
                self.delivered(event, now_us - self.began_us)
                continue
            if kind == "step":
                self.step = None if event["name"] == END else event["number"]
            elif kind == "sampled":
                process = (event["role"], event["target"])
                self.costs[self.step, *process] += event["cpu_us"] - self.last_cpu.get(process, event["cpu_us"])
                self.last_cpu[process] = event["cpu_us"]
            yield event

    def delivered(self, event: Event, after_us: int) -> None:
        """Count the delays of one delivery."""
        delays = event["delays_us"]
        self.delays[event["group"], event["topic"], self.step].update(delays)
        second = self.curve.setdefault((event["group"], after_us // 1_000_000), [0, 0, 0])
        second[0] += len(delays)
        second[1] += sum(delays)
        second[2] = max(second[2], *delays)

    def binned(self) -> dict[int, int]:
        """Return the number of delays in each bin of 1 % width."""
        bins = Counter[int]()
        for counted in self.delays.values():
            for delay_us, count in counted.items():
                bins[int(math.log(max(delay_us, 1)) / BIN)] += count
        return dict(sorted(bins.items()))


def facts(folder: Path) -> dict[str, Any]:
    """Compute the facts of a folder of event files, and return those that the benchmark compares."""
    run, found = Run(Problems()), Facts()
    _figures, steps = measure(found.gather(EventFiles(folder, Problems()), run))
    verdict = run.verdict(torn_lines=0)
    return {
        "records": {name: getattr(verdict, name) for name in VERDICT},
        "steps": [[step["number"], *(step[name] for name in STEP)] for step in steps],
        "delays": list(found.binned().items()),
        "curve": [[second, *figures] for (_group, second), figures in sorted(found.curve.items())],
        "cpu_ms": sum(found.costs.values()) / 1_000,
    }


if __name__ == "__main__":
    print(json.dumps(facts(Path(sys.argv[1]))))
