"""`zkrebalancer pipeline fleet`: what rebalances cost all groups over weeks, and which settings would cost less."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from zkrebalancer.cli import options
from zkrebalancer.cli.extras import require
from zkrebalancer.cli.pipeline.facts import refuse_event_files
from zkrebalancer.cli.tables import console
from zkrebalancer.localcluster.locks import folder_locked

if TYPE_CHECKING:
    from zkrebalancer.pipeline.fleet.questions import Question


@click.command()
@click.option("--events", "source", required=True, metavar="DIR", help="Folder of *.jsonl files of all hosts.")
@options.out_option
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed gives the same replays.")
@options.spark_options
@options.json_option
@options.log_level_option
def fleet(
    *, source: str, out: Path, seed: int, master: str, memory: str | None, settings: Mapping[str, str], as_json: bool
) -> None:
    """Find out which groups rebalance too often, why, and what it costs.

    Reads the events of weeks of all groups, and replays them under other settings. Writes tables and one page.

    \b
    Example:
      zkrebalancer pipeline fleet --events events --out fleet
    """
    refuse_event_files(out)
    require("experiments")
    from zkrebalancer.pipeline import ingest, session  # noqa: PLC0415  # after the check
    from zkrebalancer.pipeline.fleet import job, output, questions  # noqa: PLC0415
    from zkrebalancer.pipeline.replaced import replaced  # noqa: PLC0415

    ingest.require_event_files(source)  # fails before Spark starts
    began_s = time.monotonic()
    with folder_locked(out), replaced(out, "fleet") as made:
        with session.spark_job("the fleet's events", master, memory, settings) as spark:
            tables = job.fleet(spark, source, str(made), seed)
        asked = questions.questions(tables)
        files = {name: str(out / path.name) for name, path in output.write(tables, asked, made).items()}
    told: dict[str, Any] = {"events": source, "master": master, "seed": seed, "groups": len(tables.groups)}
    told |= {"files": files, "questions": [asdict(one) for one in asked]}
    told["elapsed_s"] = round(time.monotonic() - began_s, 1)
    if as_json:
        click.echo(json.dumps(told, default=float))
    else:
        _print(asked, told)


def _print(asked: list[Question], told: dict[str, Any]) -> None:
    table = Table("question", "answer", show_lines=True)
    for one in asked:
        table.add_row(Text(one.question), Text(one.answer))
    console().print(table)
    click.echo(f"{told['groups']} groups in {told['elapsed_s']} s; figures are in {told['files']['page']}")
