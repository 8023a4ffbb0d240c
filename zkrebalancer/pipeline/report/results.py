"""Figures that come from results: all of runs published without their events; the costs and the lag of every run.

The other figures are those of `measures`. Processor time of older results includes the producers, so it has
a name of its own; they have no costs at rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from zkrebalancer.observe.measures import BEFORE, OWN_CPU, REST
from zkrebalancer.pipeline.report.folders import Run
from zkrebalancer.pipeline.report.sentences import CAUGHT_UP, LAG

MS_PER_S = 1_000
AS_THEY_ARE = (
    *("settled_ms", "first_record_ms", "delay_p50_ms", "delay_p99_ms", "delay_max_ms", "load_peak"),
    *("stopped_needlessly", "lost", "duplicated", "out_of_order", "overlaps"),
)
AT_REST = (
    *("rest_requests_per_s", "rest_zookeeper_bytes_per_s", "rest_cpu_ms_per_s", "rest_cpu_member_ms_per_s"),
    "rss_mb",
)
COSTS = ("requests", "zookeeper_bytes", "cpu_ms", "cpu_all_ms", *AT_REST)
OF_A_CHANGE = ("run", "step", "name", "settled_ms", "first_record_ms", "unowned_partition_s")
Step = Mapping[str, Any]


def run_measures(runs: Iterable[Run]) -> pd.DataFrame:
    """Return one row for each run, with the columns of `measures.run_measures` that its result has."""
    return pd.DataFrame([{"run": run.name, **_of_run(run)} for run in runs])


def _of_run(run: Run) -> dict[str, float | None]:
    changed = _changes(run)
    return {
        **{name: run.measures.get(name) for name in AS_THEY_ARE},
        "unowned_partition_s": _sum(step["unowned_partition_ms"] / MS_PER_S for step in changed),
        "moved": _sum(step["moved"] for step in changed),
        "moved_above_least": _sum(max(0, step["moved"] - step["moved_least"]) for step in changed),
    }


def costs(runs: Iterable[Run]) -> pd.DataFrame:
    """Return (run, *COSTS), a row for each run: during the changes and at rest; null where nothing was measured."""
    rows = [{"run": run.name, **_costs(run)} for run in runs]
    return pd.DataFrame(rows, columns=["run", *COSTS]).astype(dict.fromkeys(COSTS, float))


def _costs(run: Run) -> dict[str, float | None]:
    def spent(name: str) -> float | None:
        return _sum(step.get(name) for step in _changes(run))

    own_ms = spent(OWN_CPU)
    return {
        "requests": spent("requests"),
        "zookeeper_bytes": spent("zookeeper_bytes"),
        "cpu_ms": own_ms,
        "cpu_all_ms": spent("cpu_ms") if own_ms is None else None,
        # With many records, the group reads a backlog before the first change.
        **{name: None if run.has_many_records else run.measures.get(name) for name in AT_REST},
    }


def changes(runs: Iterable[Run]) -> pd.DataFrame:
    """Return a row for each change of each run, as `measures.changes`."""
    rows = [
        (run.name, step["number"], step["name"], step["settled_ms"], step["first_record_ms"],
         step["unowned_partition_ms"] / MS_PER_S)
        for run in runs
        for step in _changes(run)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(OF_A_CHANGE))


def lags(runs: Iterable[Run]) -> pd.DataFrame:
    """Return (run, step, *LAG), a row for each change of each run; null where nothing was measured."""
    rows = [(run.name, step["number"], *_lag(run, step).values()) for run in runs for step in _changes(run)]
    frame = pd.DataFrame(rows, columns=["run", "step", *LAG])
    return frame.astype({"step": "int64", **dict.fromkeys(LAG, float)})


def _lag(run: Run, step: Step) -> dict[str, float | None]:
    seconds = step.get("delivered_per_s")
    if seconds is None:
        return dict.fromkeys(LAG)
    back_ms = step["lag_back_ms"]
    return {
        CAUGHT_UP: len(seconds) * MS_PER_S if back_ms is None else back_ms,
        "lag_max": step["lag_max"],
        # With few records, it tells more about the producer than about the group.
        "delivered_per_s_min": step["delivered_per_s_min"] if run.has_many_records else None,
    }


def _changes(run: Run) -> list[Step]:
    return [step for step in run.steps if step["name"] not in {BEFORE, REST}]


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    return sum(value for value in found if value is not None) if any(value is not None for value in found) else None
