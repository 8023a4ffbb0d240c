"""The frontier of each protocol: how soon its groups settle, beside what it costs at rest, for each heartbeat.

A protocol whose members learn of a rebalance from a heartbeat can settle sooner at a higher cost. Comparing it at one
interval would compare that choice. So all intervals are shown, and a protocol without heartbeats is one point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from zkrebalancer.pipeline import page
from zkrebalancer.pipeline.report.folders import Run, Setting
from zkrebalancer.pipeline.report.pictures import Palette
from zkrebalancer.pipeline.report.sentences import PRIMARY, in_order, shown

DEFAULT, TUNED, HEARTBEAT = "default", "tuned", "heartbeat-"  # names of settings
COSTS = {"rest_cpu_ms_per_s": "processor time at rest, ms per s", "rest_requests_per_s": "requests per s at rest"}
CAPTION = (
    "How soon a change is settled, beside what the group costs at rest: medians, a point for each heartbeat interval "
    "and a line for each protocol. Lower left is better. Both scales are logarithmic."
)


@dataclass(frozen=True, slots=True)
class Point:
    """The medians of one protocol's runs with one heartbeat; `costs` are in the order of COSTS."""

    heartbeat: str
    runs: int
    settled_ms: float
    costs: tuple[float, ...]


Frontier = dict[str, list[Point]]  # protocol -> its points, those that cost least first


def frontiers(runs: Sequence[Run], measures: pd.DataFrame) -> dict[Setting, Frontier]:
    """Return a frontier for each scenario, size and broker of which there are runs with several heartbeats.

    `measures` has one row for each run. The settings `default` are no part of it: they differ by more than heartbeats.
    """
    together: dict[tuple[Setting, str, str], list[str]] = {}  # place, protocol and settings -> names of runs
    for run in runs:
        if run.setting.settings != DEFAULT:
            key = (replace(run.setting, settings=TUNED), run.protocol, run.setting.settings)
            together.setdefault(key, []).append(run.name)
    found: dict[Setting, dict[str, list[Point]]] = {}
    for (place, protocol, settings), names in together.items():
        rows = measures[measures["run"].isin(names)].dropna(subset=[PRIMARY, *COSTS])
        if len(rows):
            medians = rows[[PRIMARY, *COSTS]].median()
            point = Point(_name(settings), len(rows), medians[PRIMARY], tuple(medians[cost] for cost in COSTS))
            found.setdefault(place, {}).setdefault(protocol, []).append(point)
    return {
        place: {protocol: sorted(of[protocol], key=lambda point: point.costs) for protocol in in_order(of)}
        for place, of in found.items()
        if any(len(points) > 1 for points in of.values())
    }


def _name(settings: str) -> str:
    return f"{settings.removeprefix(HEARTBEAT)} ms" if settings.startswith(HEARTBEAT) else settings


def parts(found: dict[Setting, Frontier], palette: Palette) -> Iterator[str]:
    """Return the picture and the table of each frontier."""
    for setting, frontier in found.items():
        yield page.heading(f"Settled against cost: {setting}")
        yield page.picture(draw(frontier, palette), CAPTION)
        rows = [
            [
                protocol,
                point.heartbeat,
                str(point.runs),
                shown(point.settled_ms, "ms"),
                *(f"{c:.0f}" for c in point.costs),
            ]
            for protocol, points in frontier.items()
            for point in points
        ]
        yield page.table(["protocol", "heartbeats", "runs", "time to settled", *COSTS.values()], rows)


def draw(frontier: Frontier, palette: Palette) -> Figure:
    """Draw a panel for each cost."""
    with mpl.rc_context(page.STYLE):
        figure = Figure(figsize=(page.WIDTH_IN, 3.8), layout="constrained")
        axes = figure.subplots(1, len(COSTS), sharey=True)
        for number, (axis, title) in enumerate(zip(axes, COSTS.values(), strict=True)):
            for protocol, points in frontier.items():
                colour, dash = palette[protocol]
                costs, settled = [point.costs[number] for point in points], [point.settled_ms for point in points]
                label = protocol if number == 0 else None
                axis.plot(costs, settled, dash, marker="o", markersize=5, color=colour, linewidth=1.4, label=label)
                if len(points) > 1:
                    for point in (points[0], points[-1]):
                        at = (point.costs[number], point.settled_ms)
                        axis.annotate(point.heartbeat, at, (4, 4), textcoords="offset points", fontsize=7, color=colour)
            axis.set(xlabel=title, xscale="log", yscale="log")
            axis.grid(color=page.INK, alpha=0.15, linewidth=0.6)
        axes[0].set_ylabel("time to settled, ms")
        figure.legend(loc="outside upper center", ncols=3)
    return figure
