"""The picture of the grid: time per decision by the size of the group."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from tests.benchmarks.assign.points import ALIKE, BUCKETS, Point
from tests.benchmarks.assign.timing import Result

LINES = {
    "sticky": ("tab:blue", "o"),
    "uniform": ("tab:orange", "s"),
    "client cooperative-sticky": ("tab:red", "^"),
    "client range": ("tab:gray", "v"),
}


def draw(rows: Mapping[Point, Mapping[str, Result | None]], path: Path) -> None:
    """Draw the best times as SVG, for the middle one of the grid's numbers of topics."""
    topic_counts = sorted({point.topic_count for point in rows})
    topic_count = topic_counts[len(topic_counts) // 2]
    mpl.rcParams["svg.hashsalt"] = "zkrebalancer"  # equal figures give equal files
    figure = Figure(figsize=(11, 8))
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for (subscribe, joins), panel in zip(
        ((ALIKE, False), (ALIKE, True), (BUCKETS, False), (BUCKETS, True)), panels.flat, strict=True
    ):
        for name, (colour, marker) in LINES.items():
            times_ms = {
                point.partitions: result.best_ms
                for point, row in rows.items()
                if (point.subscribe, point.joins, point.topic_count) == (subscribe, joins, topic_count)
                and (result := row[name]) is not None
            }
            sizes = sorted(times_ms)
            panel.plot(sizes, [times_ms[size] for size in sizes], color=colour, marker=marker, label=name)
        panel.set(xscale="log", yscale="log", title=f"{subscribe}, {'one member joins' if joins else 'full'}")
        panel.grid(visible=True, which="major", alpha=0.3)
    for panel in panels[-1]:
        panel.set_xlabel("partitions")
    for panel in panels[:, 0]:
        panel.set_ylabel("best of 15, milliseconds")
    panels[0, 0].legend()
    figure.suptitle(f"One decision, {topic_count} topics; missing points exceeded the deadline")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
