"""`zkrebalancer events`: answers small questions about event files, without Spark."""

from __future__ import annotations

import json
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from zkrebalancer.cli import options
from zkrebalancer.cli.event_overview import show_overview
from zkrebalancer.cli.open_files import allow_open_files
from zkrebalancer.cli.plain import plain
from zkrebalancer.cli.progress import event_bar
from zkrebalancer.cli.tables import console
from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.observe.overview import overview
from zkrebalancer.observe.reading import Event, EventFiles, Problems

DEFAULT_LAST = 100
MAX_LAST = 1_000_000  # events that are kept in memory
FOLLOW_INTERVAL_S = 0.5
MAX_OPEN_FILES = 16_384  # every event file is open while they are merged
MAX_VALUE = 120  # characters of one value in a line
_SHOWN_FIRST = ("ts_us", "mono_us", "host", "process", "kind")


@dataclass(frozen=True, slots=True)
class Filter:
    """What an event has to have; an empty or None field admits all. `since_us`: microseconds since the epoch."""

    kinds: tuple[str, ...] = ()
    group: str | None = None
    member: str | None = None
    topic: str | None = None
    cause: str | None = None
    since_us: int | None = None

    def admits(self, event: Event) -> bool:
        """Whether an event is wanted."""
        wanted = {"group": self.group, "member": self.member, "topic": self.topic, "cause_id": self.cause}
        return (
            (not self.kinds or event["kind"] in self.kinds)
            and all(text is None or event.get(key) == text for key, text in wanted.items())
            and (self.since_us is None or _ts_us(event) >= self.since_us)
        )


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only events of this kind; may be repeated.")
@click.option("--group", help="Only events of this group.")
@click.option("--member", help="Only events of this member.")
@click.option("--topic", help="Only events of this topic.")
@click.option("--cause", metavar="ID", help="Only events of the rebalance with this cause_id.")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d"]),
    help="Only events since this time; UTC unless it has an offset.",
)
@click.option(
    "--last",
    type=click.IntRange(1, MAX_LAST),
    metavar="N",
    help=f"Only the last N events.  [default: {DEFAULT_LAST}]",
)
@click.option("--follow", is_flag=True, help="Show what is written from now on, until Ctrl-C.")
@options.json_option
@options.log_level_option
def events(
    directory: Path,
    kinds: tuple[str, ...],
    group: str | None,
    member: str | None,
    topic: str | None,
    cause: str | None,
    since: datetime | None,
    last: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Show what the event files in a directory say.

    Without options: the rebalances with their causes and pauses, and whether records were lost or duplicated. Figures
    that were not recorded are unknown. With options that select events: these events, oldest first. The files are
    those that `--events` writes, on one host or on several.

    \b
    Example:
      zkrebalancer events events
      zkrebalancer events events --group payments --kind rebalance_finished --last 10
      zkrebalancer events events --group payments --follow
    """
    if follow and as_json:
        raise click.UsageError("--follow prints a line for each event, so it cannot be combined with --json")
    since_us = None if since is None else int((since if since.tzinfo else since.replace(tzinfo=UTC)).timestamp() * 1e6)
    wanted = Filter(kinds, group, member, topic, cause, since_us)
    if follow:
        _follow(directory, wanted)
        return
    if wanted == Filter() and last is None:
        _print_overview(directory, as_json=as_json)
        return
    allow_open_files(MAX_OPEN_FILES)
    problems = Problems()
    files = EventFiles(directory, problems, order="ts_us")
    found = deque((event for event in files if wanted.admits(event)), last or DEFAULT_LAST)
    if as_json:
        document = {"events": list(found), "problems": problems.lines(), "torn_lines": files.torn_lines}
        click.echo(json.dumps(document))
        return
    for event in found:
        click.echo(line(event))
    if not found:
        click.echo(f"no event in {directory} matches", err=True)
    for problem in problems.lines():
        click.echo(f"problem: {plain(problem)}", err=True)


def _print_overview(directory: Path, *, as_json: bool) -> None:
    allow_open_files(MAX_OPEN_FILES)
    with event_bar() as progress:
        found = overview(directory, progress)
    verdict = found.verdict
    if as_json:
        found_problems = {"problems": verdict.problems, "torn_lines": verdict.torn_lines}
        click.echo(json.dumps({**found.document(), **found_problems}))
        return
    for part in show_overview(found):
        console().print(part)
    for kind, lines in (("problem", verdict.problems), ("unclear", verdict.unclear)):
        for each in lines:
            click.echo(f"{kind}: {plain(each)}", err=True)


def _follow(directory: Path, wanted: Filter) -> None:
    """Print new events until Ctrl-C; raises NoEventsError if there is no event file yet."""
    EventFiles(directory, Problems())
    tail = EventTail(directory)
    tail.skip()
    with suppress(KeyboardInterrupt):
        while True:
            for event in tail.read():
                if wanted.admits(event):
                    click.echo(line(event))
            time.sleep(FOLLOW_INTERVAL_S)


def line(event: Event) -> str:
    """Return an event as one readable line: when, which process, what, and all other keys that have a value."""
    try:
        at = datetime.fromtimestamp(_ts_us(event) / 1e6, UTC).isoformat(sep=" ", timespec="milliseconds")[:23]
    except (ValueError, OverflowError, OSError):
        at = f"{_ts_us(event)} us"
    others = {key: value for key, value in event.items() if key not in _SHOWN_FIRST and value is not None}
    rest = [f"{_text(key)}={_text(value)}" for key, value in others.items()]
    return " ".join([at, _text(event.get("process", "?")), _text(event["kind"]), *rest])


def _ts_us(event: Event) -> int:
    found = event.get("ts_us")
    return found if type(found) is int else int(event["mono_us"])


def _text(value: object) -> str:
    text = value if isinstance(value, str) and value.isprintable() else json.dumps(value)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"
