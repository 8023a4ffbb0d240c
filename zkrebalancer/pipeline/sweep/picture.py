"""Heat maps of a sweep: the decisions of the strategies, and their cost under each protocol."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib as mpl
import pandas as pd
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from zkrebalancer.pipeline import page

COLOURS = "cividis"  # safe for colour-blind readers, and in grey


@dataclass(frozen=True, slots=True)
class Map:
    """One row of heat maps: medians of `column` over `x` and `y`, one map for each value of `each`."""

    column: str
    title: str
    x: str
    y: str
    each: str
    where: tuple[str, str] | None  # (column, value) that rows must match
    caption: str


MAPS = (
    Map("peak", "highest load of a member, over the lowest possible", "skew", "members", "strategy", None,
        "How evenly each strategy spreads the load: 1 is the best that any plan could do."),
    Map("moved_percent", "partitions that leave a member that stays, %", "churn", "members", "strategy", None,
        "Partitions that a strategy moves in one change, beyond those of members that left."),
    Map("settled_ms", "time to settled, ms", "churn", "members", "protocol", ("strategy", "sticky"),
        "Time until every partition is read again after one change, under `sticky`."),
    Map("unowned_partition_s", "partition-seconds without a consumer", "partitions", "members", "protocol",
        ("strategy", "sticky"), "Summed over all partitions, for one change, under `sticky`."),
    Map("waiting_records", "records that waited", "skew", "strategy", "protocol", None,
        "Records that arrived while their partition had no consumer, for one change."),
    Map("stopped_needlessly", "partitions stopped needlessly", "partitions", "strategy", "protocol", None,
        "Partitions that stopped and continued at the same member, for one change."),
)  # fmt: skip


def pictures(result: pd.DataFrame) -> list[str]:
    """Return every row of heat maps for which the grid has results, as HTML."""
    table = result.assign(moved_percent=100 * result["moved"] / result["partitions"])
    drawn = []
    for one in MAPS:
        rows = table if one.where is None else table[table[one.where[0]] == one.where[1]]
        if len(rows):
            drawn.append(page.heading(one.title, 3) + page.picture(_draw(rows, one), f"{one.caption} Medians."))
    return drawn


def _draw(rows: pd.DataFrame, one: Map) -> Figure:
    medians = rows.groupby([one.each, one.y, one.x])[one.column].median()
    low, high = float(medians.min()), float(medians.max())
    is_wide = low > 0 and high / low > 30
    norm = LogNorm(low, high) if is_wide else Normalize(min(low, high - 1e-9), high)
    names = sorted(rows[one.each].unique())
    with mpl.rc_context(page.STYLE):
        height_in = 1.3 + 0.42 * rows[one.y].nunique()
        figure = Figure(figsize=(page.WIDTH_IN, height_in), layout="constrained")
        axes = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
        for axis, name in zip(axes, names, strict=True):
            grid = medians.loc[name].unstack(one.x)
            image = axis.imshow(grid.to_numpy(), cmap=COLOURS, norm=norm, aspect="auto")
            axis.set(title=name, xlabel=one.x)
            axis.set_xticks(range(len(grid.columns)), [f"{value:,}" for value in grid.columns])
            axis.set_yticks(range(len(grid.index)), [str(value) for value in grid.index])
            axis.tick_params(length=0)
            axis.spines[:].set_visible(False)
            for y, row in enumerate(grid.to_numpy()):
                for x, value in enumerate(row):
                    ink = "white" if norm(value) < 0.55 else "black"
                    axis.text(x, y, _shown(value), ha="center", va="center", color=ink)
        axes[0].set_ylabel(one.y)
        figure.colorbar(image, ax=axes, pad=0.01, label=one.title.rsplit(", ", 1)[-1] if ", " in one.title else None)
    return figure


def _shown(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:.3g} M"
    if value >= 10_000:
        return f"{value / 1_000:.3g} k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
