"""The demo's screen: pure functions from a picture to what rich prints."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zkrebalancer.experiments.picture import GroupPicture, Picture, client_of
from zkrebalancer.observe.rebalances import Rebalance
from zkrebalancer.protocol.fields import TopicPartition

COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "bright_red", "bright_green", "bright_cyan", "bright_magenta")
OWNED, NOT_OWNED, UNOWNED = "■", "·", "unowned"
TEXT_COLUMNS = {"group", "cause", "outcome"}
COLUMNS = ("group", "gen.", "cause", "members", "moved", "settled", "pause", "outcome")
BAR_WIDTH = 40
MIN_REBALANCES_SHOWN = 1
STEPS_SHOWN = 3


@dataclass(slots=True)
class Course:
    """The run's progress: `steps` has the start (in seconds) and title of each step; the last one is under way."""

    heading: str
    total_steps: int
    steps: list[tuple[float, str]] = field(default_factory=list)
    detail: str = ""


def render(course: Course, picture: Picture, elapsed_s: float, width: int, height: int) -> RenderableType:
    """Return the whole screen; the list of rebalances fills the remaining height."""
    partitions = picture.partitions()
    parts: list[RenderableType] = [_heading(course, picture), _progress(course, elapsed_s), *_steps(course)]
    used = len(parts) + 2
    for name, group in picture.groups.items():
        rows = _ownership(name, group, partitions, width)
        parts += [Text(), *rows]
        used += len(rows) + 1
    if picture.rebalances:
        shown = max(MIN_REBALANCES_SHOWN, height - used - 3)
        parts += [Text(), rebalance_table(picture.rebalances[-shown:], frame=None)]
    if picture.produced:
        parts += [Text(), _records(picture)]
    return Group(*parts)


def rebalance_table(rebalances: Iterable[Rebalance], frame: box.Box | None = box.SIMPLE_HEAD) -> Table:
    """Return a table with one rebalance per row; a frame adds lines between groups."""
    padding = (0, 1, 0, 0) if frame is None else 0  # both fit into 80 columns
    table = Table(box=frame, show_edge=False, pad_edge=False, padding=padding, header_style="bold")
    for heading in COLUMNS:
        table.add_column(heading, justify="left" if heading in TEXT_COLUMNS else "right", no_wrap=True)
    for _group, rows in itertools.groupby(rebalances, key=lambda rebalance: rebalance.group):
        for row in rows:
            moved = f"{row.moved} of {row.partitions}"
            times = (milliseconds(row.settled_ms), milliseconds(row.pause_ms_max))
            table.add_row(row.group, str(row.generation), row.cause, str(row.members), moved, *times, row.outcome)
        table.add_section()
    return table


def milliseconds(value: float | None) -> str:
    """Return a time as text, "-" if it is unknown."""
    return "-" if value is None else f"{value:,.0f} ms"


def _heading(course: Course, picture: Picture) -> Text:
    text = Text(course.heading, style="bold", no_wrap=True)
    if picture.groups or picture.leaders:
        is_led = len(picture.leaders) == picture.shards
        text.append(f" · {leaders_line(picture)}", style="not bold" if is_led else "red")
    return text


def leaders_line(picture: Picture) -> str:
    """Return who leads: how many shards each, if there are several."""
    if picture.shards == 1:
        return f"coordinator-{picture.leaders[0]} leads" if picture.leaders else "no leader"
    counts = sorted(Counter(picture.leaders.values()).items())
    led = [f"coordinator-{leader} leads {count} of {picture.shards} shards" for leader, count in counts]
    without = picture.shards - len(picture.leaders)
    return ", ".join([*led, *([f"{without} without a leader"] if without else [])])


def _progress(course: Course, elapsed_s: float) -> RenderableType:
    done = max(0, len(course.steps) - 1)
    row = Table.grid(padding=(0, 2))
    bar = ProgressBar(course.total_steps, done, BAR_WIDTH, complete_style="green")
    row.add_row(bar, f"step {len(course.steps)} of {course.total_steps}", f"{elapsed_s:.0f} s")
    return row


def _steps(course: Course) -> list[RenderableType]:
    shown: list[RenderableType] = []
    last = len(course.steps) - 1
    for index, (began_s, title) in list(enumerate(course.steps))[-STEPS_SHOWN:]:
        is_current = index == last
        text = Text(f"{'▸' if is_current else '✓'} {began_s:5.1f} s  {title}", no_wrap=True, overflow="ellipsis")
        text.stylize("bold" if is_current else "dim")
        if is_current and course.detail:
            text.append(f": {course.detail}")
        shown.append(text)
    return [Text() for _ in range(STEPS_SHOWN - len(shown))] + shown


def _ownership(name: str, group: GroupPicture, partitions: Sequence[TopicPartition], width: int) -> list[Text]:
    """Return a heading, one row per consumer, and one for partitions without an owner."""
    counts = Counter(topic for topic, _partition in partitions)
    heading = Text(f"{name}  ", style="bold", no_wrap=True, overflow="ellipsis")
    heading.append(", ".join(f"{topic} ({count})" for topic, count in sorted(counts.items())), style="not bold dim")
    clients = [client_of(member) for member in group.members]
    label_width = max(map(len, [*clients, UNOWNED]))
    room = width - label_width - len("  9999")
    rows = [heading]
    for label, member in [*zip(clients, group.members, strict=True), (UNOWNED, None)]:
        if member is None:
            mine = {partition for partition in partitions if group.owners.get(partition) not in group.members}
        else:
            mine = {partition for partition in partitions if group.owners.get(partition) == member}
        colour = "red" if member is None else _colour(label)
        row = Text(f"{label:<{label_width}} ", no_wrap=True, style=colour if member is None and mine else "")
        fits = len(partitions) + len(counts) <= room
        row.append_text(_cells(mine, partitions, colour) if fits else _bar(len(mine) * room // len(partitions), colour))
        rows.append(row.append(f" {len(mine):>3}"))
    return rows


def _cells(mine: Collection[TopicPartition], partitions: Sequence[TopicPartition], colour: str) -> Text:
    """Return one cell per partition, with a gap between topics."""
    cells = Text()
    for index, partition in enumerate(partitions):
        if index and partition[0] != partitions[index - 1][0]:
            cells.append(" ")
        is_mine = partition in mine
        cells.append(OWNED if is_mine else NOT_OWNED, style=colour if is_mine else "dim")
    return cells


def _bar(length: int, colour: str) -> Text:
    """Return a consumer's share as a bar, for too many partitions to show as cells."""
    return Text(OWNED * length, style=colour)


def _colour(client: str) -> str:
    number = client.rpartition("-")[2]
    return COLOURS[(int(number) - 1) % len(COLOURS) if number.isdigit() else 0]


def _records(picture: Picture) -> Text:
    text = Text("records  ", style="bold", no_wrap=True, overflow="ellipsis")
    text.append(f"produced {picture.produced_count():,}", style="not bold")
    for name in picture.groups:
        text.append(f"   {name}: {picture.behind(name):,} to read", style="not bold")
    return text
