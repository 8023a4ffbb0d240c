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
from matplotlib.ticker import StrMethodFormatter

from zkrebalancer.pipeline import page
from zkrebalancer.pipeline.report.folders import Run, Setting
from zkrebalancer.pipeline.report.pictures import Palette
from zkrebalancer.pipeline.report.sentences import PRIMARY, in_order, shown

TUNED, HEARTBEAT = "tuned", "heartbeat-"  # names of settings
BESIDE = 0.15  # of the time to settled
TUNED_MS = 500  # the heartbeats of TUNED, as in `zkrebalancer.experiments.protocols`
COSTS = {"rest_cpu_ms_per_s": "processor time at rest, ms per s", "rest_requests_per_s": "requests per s at rest"}
CAPTION = (
    "How soon a change is settled, beside what the group costs at rest: medians, a point for each heartbeat interval "
    f"and a line for each protocol; tuned: {TUNED_MS} ms. Lower left is better. Times are on a logarithmic scale."
)


@dataclass(frozen=True, slots=True)
class Point:
    """The medians of one protocol's runs with one heartbeat; `costs` are in the order of COSTS."""

    heartbeat: str
    runs: int
    settled_ms: float
    costs: tuple[float, ...]


Frontier = dict[str, list[Point]]  # protocol -> its points, the longest heartbeats first


def frontiers(runs: Sequence[Run], measures: pd.DataFrame) -> dict[Setting, Frontier]:
    """Return a frontier for each scenario, size and broker of which there are runs with several heartbeats.

    `measures` has one row for each run. Other settings, as `default`, differ by more than heartbeats and are left out.
    """
    together: dict[tuple[Setting, str, str], list[str]] = {}  # place, protocol and settings -> names of runs
    for run in runs:
        if _differs_by_heartbeats(run.setting.settings):
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
        place: {protocol: sorted(of[protocol], key=_rank) for protocol in in_order(of)}
        for place, of in found.items()
        if any(len(points) > 1 for points in of.values())
    }


def _differs_by_heartbeats(settings: str) -> bool:
    return settings == TUNED or (settings.startswith(HEARTBEAT) and settings.removeprefix(HEARTBEAT).isdecimal())


def _rank(point: Point) -> int:
    return -(TUNED_MS if point.heartbeat == TUNED else int(point.heartbeat.partition(" ")[0]))


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


def _named(points: Sequence[Point]) -> Iterator[Point]:
    """Return the points whose intervals are written: one beside another, as soon settled, stays unnamed."""
    last_ms = 0.0
    for point in points if len(points) > 1 else ():
        if abs(point.settled_ms - last_ms) > BESIDE * point.settled_ms:
            last_ms = point.settled_ms
            yield point


def draw(frontier: Frontier, palette: Palette) -> Figure:
    """Draw a panel for each cost."""
    with mpl.rc_context(page.STYLE):
        figure = Figure(figsize=(page.WIDTH_IN, 4.6), layout="constrained")
        axes = figure.subplots(1, len(COSTS), sharey=True)
        for number, (axis, title) in enumerate(zip(axes, COSTS.values(), strict=True)):
            for protocol, points in frontier.items():
                colour, dash = palette[protocol]
                costs, settled = [point.costs[number] for point in points], [point.settled_ms for point in points]
                label = protocol if number == 0 else None
                axis.plot(costs, settled, dash, marker="o", markersize=5, color=colour, linewidth=1.4, label=label)
                for point in _named(points):
                    at = (point.costs[number], point.settled_ms)
                    axis.annotate(point.heartbeat, at, (5, 4), textcoords="offset points", fontsize=8.5, color=colour)
            axis.set(xlabel=title, yscale="log")
            axis.set_xlim(left=0)
            axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            axis.grid(color=page.INK, alpha=0.15, linewidth=0.6)
        axes[0].set_ylabel("time to settled, ms")
        figure.legend(loc="outside upper center", ncols=3)
    return figure
