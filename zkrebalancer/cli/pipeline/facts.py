"""`zkrebalancer pipeline run` and `watch`: turn the events of one or many runs into tables."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from zkrebalancer.cli import options
from zkrebalancer.cli.extras import require
from zkrebalancer.cli.tables import console
from zkrebalancer.localcluster.locks import folder_locked

SHOWN = (
    "run",
    "events",
    "rejected",
    "torn",
    "events_dropped",
    "produced",
    "delivered",
    "lost",
    "duplicated",
    "out_of_order",
    "overlaps",
    "unclear",
)
MAX_ROWS_SHOWN = 50
MAX_RUNS_TOLD = 10_000


@click.command(name="run")
@click.option("--events", "source", required=True, metavar="DIR", help="Folder of *.jsonl files, of one run or many.")
@options.out_option
@options.spark_options
@options.json_option
@options.log_level_option
def run_pipeline(
    *, source: str, out: Path, master: str, memory: str | None, settings: Mapping[str, str], as_json: bool
) -> None:
    """Turn the events of runs into tables.

    Rebalances, ownership, gaps, overlaps, lost and duplicated records, delays, costs.

    Each folder below --events that contains *.jsonl files is one run. Earlier tables in --out are replaced.

    \b
    Example:
      zkrebalancer pipeline run --events results --out facts
    """
    refuse_event_files(out)
    require("spark")
    from zkrebalancer.pipeline import batch, local_files, session  # noqa: PLC0415  # after the check
    from zkrebalancer.pipeline.replaced import replaced  # noqa: PLC0415

    with folder_locked(out):
        began_s = time.monotonic()
        # Without an event file, it fails before Spark starts.
        files = None if "://" in source else local_files.event_files(local_files.Source(source))
        usual = {} if files is None else session.for_input(sum(file.size for file in files))
        with replaced(out, "run", batch.FORMER) as made:
            ahead = None if files is None else batch.read_ahead(files, str(made), master)
            started = session.spark_job(
                "events and facts", master, memory, {**usual, **settings}, records_classes=True, meanwhile=ahead
            )
            with started as spark:
                if files is None:
                    batch.run(spark, source, str(made))
                else:
                    batch.write_tables(spark, files, str(made), ahead)
        runs = batch.summary(str(out), MAX_RUNS_TOLD)
    told = {"events": source, "out": str(out), "master": master, "elapsed_s": round(time.monotonic() - began_s, 1)}
    if as_json:
        click.echo(json.dumps({**told, "runs": runs}))
    else:
        _print(runs)
        click.echo(f"{len(runs)} runs in {told['elapsed_s']} s; tables are in {out}")


def _print(runs: list[dict[str, Any]]) -> None:
    table = Table(*SHOWN)
    for run in runs[:MAX_ROWS_SHOWN]:
        table.add_row(*map(_text, map(run.get, SHOWN)))
    console().print(table)
    if len(runs) > MAX_ROWS_SHOWN:
        click.echo(f"and {len(runs) - MAX_ROWS_SHOWN} more; --json prints all")


def _text(value: str | int | None) -> Text:
    if value is None:
        return Text("unknown", "dim")
    return Text(value if isinstance(value, str) else f"{value:,}")


@click.command()
@click.option(
    "--events",
    "source",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Folder of *.jsonl files; files may grow and new ones may appear.",
)
@options.kafka_options("Instead of --events: the Kafka brokers of --topic.")
@click.option("--topic", metavar="NAME", help="The topic; its records are lines of event files.")
@options.out_option
@click.option(
    "--interval", "interval_s", type=options.FiniteRange(1, 3_600), default=10, show_default=True, metavar="S"
)
@click.option("--once", is_flag=True, help="Process what is there, then exit.")
@options.spark_options
@options.json_option
@options.log_level_option
def watch(
    *,
    source: Path | None,
    kafka: Mapping[str, str] | None,
    topic: str | None,
    out: Path,
    interval_s: float,
    once: bool,
    master: str,
    memory: str | None,
    settings: Mapping[str, str],
    as_json: bool,
) -> None:
    """Keep the tables up to date while events are written.

    Runs until Ctrl-C.
    It may be killed at any time; restarted with the same --out, it continues.

    \b
    Example:
      zkrebalancer pipeline watch --events run/events --out live
    """
    watched = _watched(source, kafka, topic)
    refuse_event_files(out)
    require("spark")
    from zkrebalancer.pipeline import session  # noqa: PLC0415  # after the check
    from zkrebalancer.pipeline import watch as watching  # noqa: PLC0415
    from zkrebalancer.pipeline.topic import Place  # noqa: PLC0415

    batches = 0

    def tell(line: str) -> None:
        nonlocal batches
        batches += 1
        click.echo(line, err=True)

    if isinstance(watched, Path):
        lines = partial(watching.folder_lines, folder=watched)
    else:
        place = Place(*watched)
        place.require()  # fails before Spark starts
        lines = partial(watching.topic_lines, place=place)
    with watching.claimed(out), session.spark_session(master, memory, settings) as spark:
        watching.start(spark, lines(spark), out, None if once else interval_s, tell).awaitTermination()
    if as_json:
        click.echo(json.dumps({"out": str(out), "master": master, "batches": batches}))


def _watched(
    source: Path | None, kafka: Mapping[str, str] | None, topic: str | None
) -> Path | tuple[Mapping[str, str], str]:
    if source is not None and kafka is None and topic is None:
        return source
    if source is None and kafka is not None and topic is not None:
        return kafka, topic
    raise click.UsageError("give either --events, or --bootstrap and --topic")


def refuse_event_files(out: Path) -> None:
    """Protect event files: the output would also replace a folder `events`."""
    if next(out.rglob("*.jsonl"), None) is not None:
        raise click.UsageError(f"--out {out} contains event files (*.jsonl); name another folder")
