"""The frontier of each protocol: how soon its groups settle, beside what it costs at rest, for each heartbeat.

A protocol whose members learn of a rebalance from a heartbeat can settle sooner at a higher cost. Comparing it at one
interval would compare that choice. So all intervals are shown, and a protocol without heartbeats is one point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from zkrebalancer.observe.measures import BEFORE, REST
from zkrebalancer.pipeline import page
from zkrebalancer.pipeline.report.folders import TUNED, Run, Setting
from zkrebalancer.pipeline.report.pictures import Palette
from zkrebalancer.pipeline.report.sentences import FIRST_RECORD, OURS, PRIMARY, in_order, shown

BESIDE = 0.15  # of the time to settled
TUNED_MS = 500  # the heartbeats of TUNED, as in `zkrebalancer.experiments.protocols`
WITHOUT_HEARTBEATS = (*OURS, "zk-client-side", "helix")  # their members learn of changes from ZooKeeper
COSTS = {"rest_cpu_ms_per_s": "processor time at rest, ms per s", "rest_requests_per_s": "requests per s at rest"}
CAPTION = (
    "How soon a change is settled, beside what the group costs at rest: medians, a point for each heartbeat interval "
    "and a line for each protocol. Lower left is better. Times are on a logarithmic scale."
)


@dataclass(frozen=True, slots=True)
class Point:
    """The medians of one protocol's runs with one heartbeat; `costs` are in the order of COSTS.

    `first_record_ms` None: no run has it.
    """

    heartbeat: str
    runs: int
    settled_ms: float
    first_record_ms: float | None
    costs: tuple[float, ...]


Frontier = dict[str, list[Point]]  # protocol -> its points, the longest heartbeats first


def frontiers(runs: Sequence[Run], measures: pd.DataFrame) -> dict[Setting, Frontier]:
    """Return a frontier for each scenario, size and broker of which there are runs with several heartbeats.

    One with several kinds of change has none: the median of a kill and a return would be the time of neither.
    `measures` has one row for each run. Other settings, as `default`, differ by more than heartbeats and are left out.
    """
    together: dict[tuple[Setting, str, str], list[str]] = {}  # place, protocol and heartbeat -> names of runs
    kinds: dict[Setting, set[str]] = {}
    for run in runs:
        changes = {step["name"] for step in run.steps} - {BEFORE, REST}
        kinds.setdefault(run.setting.without_heartbeats, set()).update(changes)
    for run in runs:
        if len(kinds[run.setting.without_heartbeats]) > 1:
            continue
        if run.setting.heartbeat or run.setting.settings == TUNED:
            key = (run.setting.without_heartbeats, run.protocol, run.setting.heartbeat or TUNED)
            together.setdefault(key, []).append(run.name)
    found: dict[Setting, dict[str, list[Point]]] = {}
    for (place, protocol, heartbeat), names in together.items():
        rows = measures[measures["run"].isin(names)].dropna(subset=[PRIMARY, *COSTS])
        if len(rows):
            medians = rows[[PRIMARY, FIRST_RECORD, *COSTS]].median()
            first_ms = None if pd.isna(medians[FIRST_RECORD]) else medians[FIRST_RECORD]
            costs = tuple(medians[cost] for cost in COSTS)
            point = Point(heartbeat, len(rows), medians[PRIMARY], first_ms, costs)
            found.setdefault(place, {}).setdefault(protocol, []).append(point)
    return {
        place: {protocol: sorted(of[protocol], key=_rank) for protocol in in_order(of)}
        for place, of in found.items()
        if any(len(points) > 1 for points in of.values())
    }


def _rank(point: Point) -> int:
    return -_heartbeat_ms(point)


def _heartbeat_ms(point: Point) -> int:
    return TUNED_MS if point.heartbeat == TUNED else int(point.heartbeat.partition(" ")[0])


def parts(found: dict[Setting, Frontier], palette: Palette) -> Iterator[str]:
    """Return the picture and the table of each frontier."""
    for setting, frontier in found.items():
        yield page.heading(f"Settled against cost: {setting}")
        yield page.picture(draw(frontier, palette), CAPTION)
        rows = [
            [
                protocol,
                "none" if protocol in WITHOUT_HEARTBEATS else f"{_heartbeat_ms(point):,} ms",
                str(point.runs),
                shown(point.settled_ms, "ms"),
                "-" if point.first_record_ms is None else shown(point.first_record_ms, "ms"),
                *(f"{c:.0f}" for c in point.costs),
            ]
            for protocol, points in frontier.items()
            for point in points
        ]
        times = ("time to settled", "time to the first record")
        yield page.table(["protocol", "heartbeats", "runs", *times, *COSTS.values()], rows)


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
                marker, size = ("o", 5) if len(points) > 1 else ("D", 8)
                axis.plot(
                    costs, settled, dash, marker=marker, markersize=size, color=colour, linewidth=1.4, label=label
                )
                if len(points) == 1:  # a dot among lines is not seen
                    axis.annotate(protocol, (costs[0], settled[0]), (8, -3), textcoords="offset points", color=colour)
                for point in _named(points):
                    at = (point.costs[number], point.settled_ms)
                    text = f"{_heartbeat_ms(point):,} ms"
                    axis.annotate(text, at, (5, 4), textcoords="offset points", fontsize=8.5, color=colour)
            axis.set(xlabel=title, yscale="log")
            axis.set_xlim(left=0)
            axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            axis.grid(color=page.INK, alpha=0.15, linewidth=0.6)
        axes[0].set_ylabel("time to settled, ms")
        figure.legend(loc="outside upper center", ncols=3)
    return figure
