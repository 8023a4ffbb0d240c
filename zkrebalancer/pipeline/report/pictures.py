"""The pictures of one setting: every run of each protocol, delays around the changes, owners over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from zkrebalancer.observe.measures import BEFORE, REST
from zkrebalancer.pipeline import page
from zkrebalancer.pipeline.report.folders import Run, Setting
from zkrebalancer.pipeline.report.sentences import (
    AFTER,
    FIRST_RECORD,
    LAG,
    OURS,
    PRIMARY,
    Values,
    described,
    in_order,
    is_primary,
    measures_of,
    named,
)
from zkrebalancer.pipeline.report.statistics import MIN_PAIRS, interval_of_median

DRAWN = (PRIMARY, FIRST_RECORD, "unowned_partition_s", *LAG, "delay_p99_ms", "delay_max_ms", "moved_above_least",
         "stopped_needlessly", "requests", "cpu_ms", "rest_requests_per_s")  # fmt: skip
COLUMNS = 3
DASHES = ("-", "--", "-.", ":")  # to tell lines apart without colours
UNOWNED = page.PALETTE[5]
Palette = Mapping[str, tuple[str, str]]
Named = tuple[str, Sequence[float]]  # a protocol, and its value of each run
WIDE = 30  # ratio of largest to smallest value beyond which an axis is logarithmic
NOTICED_MS = 200.0
LATE = 5  # times the usual delay
LAST_SHARE = 0.85
NAME_SHARE = 0.009  # of the width, per letter
QUIET_MS, SHORT_MS = 1_500, 5_000  # a curve ends QUIET_MS after the last late record, but not before SHORT_MS
PER_SECOND = {"delivered_per_s": "thousands delivered per s", "lag_max_per_s": "thousands not read"}
DELAYS = {"delay_p50_ms": "median", "delay_p99_ms": "99th percentile", "delay_max_ms": "maximum"}


def colours(protocols: Iterable[str]) -> Palette:
    """Return the colour and dashes of each protocol, the same in all pictures of a report."""
    names = enumerate(in_order(protocols))
    return {name: (page.PALETTE[index % len(page.PALETTE)], DASHES[index % len(DASHES)]) for index, name in names}


def draw_runs(values: Mapping[str, Values], palette: Palette) -> Figure | None:
    """Draw a panel for each measure that is not 0 in all runs: one dot per run, a line at the median."""
    protocols = in_order(values)[::-1]  # the first on top
    every = measures_of({measure for of in values.values() for measure in of})
    drawn = [measure for measure in every if measure.partition(AFTER)[0] in DRAWN]
    panels = [measure for measure in drawn if any(any(of[measure].values()) for of in values.values() if measure in of)]
    if not panels:
        return None
    rows = -(-len(panels) // COLUMNS)
    with mpl.rc_context(page.STYLE):
        figure = Figure(figsize=(page.WIDTH_IN, rows * (1.1 + 0.23 * len(protocols))), layout="constrained")
        axes = figure.subplots(rows, COLUMNS, squeeze=False, sharey=True)
        for axis, measure in zip(axes.flat, panels, strict=False):
            _draw_measure(axis, {name: [*values[name].get(measure, {}).values()] for name in protocols}, palette)
            name, unit = described(measure)
            axis.set_title(name.replace(AFTER, f"\n{AFTER.strip()} "), loc="left")
            axis.set_xlabel(unit)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
    return figure


def draw_primary(values: Mapping[Setting, Mapping[str, Values]], palette: Palette) -> Figure | None:
    """Draw the primary measure by protocol: a dot per run, a line at the median, a bar for the median's interval.

    A panel has the protocols of one setting with all their heartbeats. Where some panels have enough runs to show
    something, the others are left out.
    """
    rows = _primary(values)
    rows = {place: of for place, of in rows.items() if _can_show(of)} or rows
    if not rows:
        return None
    heights = [0.6 + 0.23 * len(of) for of in rows.values()]
    every = [value for of in rows.values() for _name, by_run in of.values() for value in by_run]
    scale = "log" if min(every) > 0 else "symlog"  # a group that never fell behind had caught up after 0 ms
    with mpl.rc_context(page.STYLE):
        figure = Figure(figsize=(page.WIDTH_IN, sum(heights)), layout="constrained")
        axes = figure.subplots(len(rows), 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": heights})
        for axis, ((setting, measure), of) in zip(axes.flat, rows.items(), strict=True):
            names = in_order(of)[::-1]
            own = {name: palette[of[name][0]] for name in names}
            _draw_measure(axis, {name: of[name][1] for name in names}, own, scale)
            for row, name in enumerate(names):
                if len(of[name][1]) >= MIN_PAIRS:
                    axis.plot(interval_of_median(of[name][1]), [row] * 2, color=own[name][0], linewidth=7, alpha=0.35)
            axis.set_title(f"{setting}: {described(measure)[0]}", loc="left")
        axes.flat[-1].set_xlabel("ms")
        axes.flat[-1].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return figure


def _primary(values: Mapping[Setting, Mapping[str, Values]]) -> dict[tuple[Setting, str], dict[str, Named]]:
    """Return the primary measures, with those of other heartbeats beside the tuned ones: name -> protocol, values."""
    rows: dict[tuple[Setting, str], dict[str, Named]] = {}
    for setting, by_protocol in values.items():
        for protocol, of in by_protocol.items():
            name = protocol if protocol in OURS else named(setting, protocol)
            for measure in measures_of(of):
                if is_primary(setting, measure):
                    places = rows.setdefault((setting.without_heartbeats, measure), {})
                    places.setdefault(name, (protocol, [*of[measure].values()]))
    return rows


def _can_show(of: Mapping[str, Named]) -> bool:
    return sum(len(by_run) >= MIN_PAIRS for _protocol, by_run in of.values()) > 1


def _draw_measure(
    axis: Axes, values: Mapping[str, Sequence[float]], palette: Palette, scale: str | None = None
) -> None:
    """Draw the runs of each protocol; `scale` None: linear from 0 on, unless the values are far apart."""
    every = [value for of in values.values() for value in of]
    is_wide = min(every) > 0 and max(every) / min(every) > WIDE
    axis.set_xscale(scale or ("log" if is_wide else "linear"))
    for row, (name, of) in enumerate(values.items()):
        axis.scatter(of, [row] * len(of), s=22, color=palette[name][0], alpha=0.6, linewidths=0)
        if of:
            axis.plot([pd.Series(of).median()] * 2, [row - 0.33, row + 0.33], color=palette[name][0], linewidth=2.5)
    axis.set_yticks(range(len(values)), list(values))
    axis.set_ylim(-0.6, len(values) - 0.4)
    axis.margins(x=0.06)
    if scale is None and not is_wide:
        axis.set_xlim(left=min(0, *every))
    axis.grid(axis="x", color=page.INK, alpha=0.15, linewidth=0.6)


def draw_throughput(runs: Sequence[Run], palette: Palette) -> Figure | None:
    """Draw what groups read and what they had not read, a column for each change; None where records are few."""
    rows = [
        (run.protocol, f"{step['number'] - 1}. {step['name']}", kind, second, value)
        for run in runs
        if run.has_many_records
        for step in run.steps
        if step["name"] not in {BEFORE, REST}
        for kind in PER_SECOND
        for second, value in enumerate(step.get(kind) or ())
    ]
    if not rows:
        return None
    every = pd.DataFrame(rows, columns=["protocol", "change", "kind", "second", "value"])
    changes = sorted(every["change"].unique(), key=lambda name: int(name.partition(".")[0]))
    with mpl.rc_context(page.STYLE):
        figure = Figure(figsize=(page.WIDTH_IN, 5.2), layout="constrained")
        axes = figure.subplots(len(PER_SECOND), len(changes), squeeze=False, sharex="col", sharey="row")
        for row, (kind, label) in zip(axes, PER_SECOND.items(), strict=True):
            row[0].set_ylabel(label)
            for axis, change in zip(row, changes, strict=True):
                shown = every[(every["kind"] == kind) & (every["change"] == change)]
                for name in in_order(shown["protocol"]):
                    colour, dash = palette[name]
                    medians = shown[shown["protocol"] == name].groupby("second")["value"].median() / 1_000
                    title = name if axis is axes[0, 0] else None
                    axis.plot(medians.index, medians, dash, color=colour, linewidth=1.7, label=title)
                axis.set_ylim(bottom=0)
                axis.grid(color=page.INK, alpha=0.15, linewidth=0.6)
        for axis, change in zip(axes[0], changes, strict=True):
            axis.set_title(change, loc="left")
        for axis in axes[-1]:
            axis.set_xlabel("seconds after the change")
        figure.legend(loc="outside upper center", ncols=4)
    return figure


def draw_delays(curves: pd.DataFrame, palette: Palette) -> Figure:
    """Draw delays by the time a record was sent; `curves` has one row for each `protocol` and `slot_ms`."""
    by_protocol = {str(name): rows for name, rows in curves.groupby("protocol")}
    until_ms = max(SHORT_MS, *(_last_late_ms(rows) + QUIET_MS for rows in by_protocol.values()))
    with mpl.rc_context(page.STYLE):
        figure = Figure(figsize=(page.WIDTH_IN, 3.4), layout="constrained")
        axes = figure.subplots(1, len(DELAYS), sharey=True)
        for axis, (column, title) in zip(axes, DELAYS.items(), strict=True):
            for name in in_order(by_protocol):
                colour, dash = palette[name]
                near = by_protocol[name][by_protocol[name]["slot_ms"] <= until_ms]
                label = name if axis is axes[0] else None
                axis.plot(near["slot_ms"] / 1_000, near[column], dash, color=colour, linewidth=1.7, label=label)
            axis.axvline(0, color=page.INK, alpha=0.5, linewidth=0.8)
            axis.set(title=title, xlabel="sent at, seconds after the change", yscale="log")
            axis.grid(color=page.INK, alpha=0.15, linewidth=0.6)
        axes[0].set_ylabel("delay, ms")
        figure.legend(loc="outside upper center", ncols=4)
    return figure


def _last_late_ms(rows: pd.DataFrame) -> float:
    """Return when the last records with a much longer delay than usual were sent."""
    usual = rows["delay_p50_ms"].min()
    late = rows.loc[rows["delay_p99_ms"] > max(LATE * usual, NOTICED_MS), "slot_ms"]
    return float(late.max()) if len(late) else 0.0


def draw_timelines(
    timelines: Mapping[str, pd.DataFrame],
    changes: Mapping[str, Sequence[tuple[float, str]]],
    from_s: float,
    to_s: float,
) -> Figure:
    """Draw the owners of each partition over time, a panel for each protocol; red means no owner.

    `timelines`: protocol -> rows of `measures.timelines`. `changes`: protocol -> seconds and name of each change.
    """
    heights = [rows[["topic", "partition"]].drop_duplicates().shape[0] for rows in timelines.values()]
    with mpl.rc_context(page.STYLE):
        height_in = 0.6 + sum(0.6 + 0.07 * height for height in heights)
        figure = Figure(figsize=(page.WIDTH_IN, height_in), layout="constrained")
        axes = figure.subplots(len(timelines), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
        for axis, (name, rows) in zip(axes, timelines.items(), strict=True):
            _draw_owners(axis, rows, from_s, min(to_s, rows["to_s"].max()))
            _name_changes(axis, changes[name], to_s)
            axis.set_title(name, loc="left", pad=14)
            axis.set_yticks([])
            axis.set_ylabel("partitions")
        axes[-1].set(xlim=(from_s, to_s), xlabel="seconds after the first change")
    return figure


def _name_changes(axis: Axes, changes: Sequence[tuple[float, str]], to_s: float) -> None:
    """Mark every change; a change whose name would overlap the one before it stays unnamed."""
    free_from_s = -to_s
    for since_s, name in changes:
        if since_s < to_s:
            axis.axvline(since_s, color=page.INK, linewidth=1, linestyle=":")
            if since_s >= free_from_s:
                at = axis.get_xaxis_transform()
                side = "right" if since_s > LAST_SHARE * to_s else "left"  # keep it above the panel
                axis.text(since_s, 1.02, name, transform=at, fontsize=8, ha=side, va="bottom")
                free_from_s = since_s + to_s * NAME_SHARE * len(name)


def _draw_owners(axis: Axes, rows: pd.DataFrame, from_s: float, to_s: float) -> None:
    members = {name: index for index, name in enumerate(sorted(rows["member"].unique()))}
    shades = mpl.colormaps["cividis"].resampled(max(2, len(members)))
    for row, (_, held) in enumerate(rows.groupby(["topic", "partition"])):
        begins = max(from_s, held["from_s"].min())
        axis.broken_barh([(begins, to_s - begins)], (row, 0.86), color=UNOWNED, linewidth=0)
        bars = [(begin, end - begin) for begin, end in zip(held["from_s"], held["to_s"], strict=True)]
        colors = [shades(members[name]) for name in held["member"]]
        axis.broken_barh(bars, (row, 0.86), facecolors=colors, linewidth=0)
    axis.set_ylim(0, rows.groupby(["topic", "partition"]).ngroups)
