"""`zkrebalancer pipeline run`: what happened, as tables, of the events of one run or of many."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.table import Table
from rich.text import Text

from zkrebalancer.cli import options
from zkrebalancer.cli.extras import require
from zkrebalancer.cli.tables import console

SHOWN = ("run", "events", "rejected", "torn", "produced", "delivered", "lost", "duplicated", "out_of_order", "overlaps")
MAX_ROWS_SHOWN = 50
MAX_RUNS_TOLD = 10_000

Command = TypeVar("Command", bound=Callable[..., object])


def memory_option(command: Command) -> Command:
    """Add `--memory`."""
    return click.option(
        "--memory",
        metavar="SIZE",
        help="Bound of the driver's heap, as 2g; on a local master it does all the work. Default: Spark's, 1g.",
    )(command)


@click.command(name="run")
@click.option("--events", "source", required=True, metavar="DIR", help="Folder of *.jsonl files, of one run or many.")
@options.out_option
@options.master_option
@memory_option
@options.json_option
@options.log_level_option
def run_pipeline(*, source: str, out: Path, master: str, memory: str | None, as_json: bool) -> None:
    """Make tables of events: rebalances, who owned what, gaps, overlaps, records lost and doubled, delays, costs.

    Each folder below --events with *.jsonl files is a run of its own. What --out has of an earlier time is replaced.

    \b
    Example:
      zkrebalancer pipeline run --events results --out facts
    """
    require("spark", "pyspark", "pandas", "pyarrow")
    from zkrebalancer.pipeline import batch, progress, session  # noqa: PLC0415  # after the check

    began_s = time.monotonic()
    with session.spark_session(master, memory) as spark, progress.shown(spark.sparkContext, "events and facts"):
        batch.run(spark, source, str(out))
        runs = [row for row, _number in zip(batch.summary(spark, str(out)), range(MAX_RUNS_TOLD), strict=False)]
    told = {"events": source, "out": str(out), "master": master, "elapsed_s": round(time.monotonic() - began_s, 1)}
    if as_json:
        click.echo(json.dumps({**told, "runs": runs}))
    else:
        _print(runs)
        click.echo(f"{len(runs)} runs in {told['elapsed_s']} s; tables are in {out}")


def _print(runs: list[dict[str, Any]]) -> None:
    table = Table(*SHOWN)
    for run in runs[:MAX_ROWS_SHOWN]:
        table.add_row(*(Text(value if isinstance(value, str) else f"{value:,}") for value in map(run.get, SHOWN)))
    console().print(table)
    if len(runs) > MAX_ROWS_SHOWN:
        click.echo(f"and {len(runs) - MAX_ROWS_SHOWN} more: --json tells of all")
