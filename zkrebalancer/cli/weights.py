"""`zkrebalancer pipeline weights`: the rate that is expected of each partition, for the strategy `balanced`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from zkrebalancer.cli import options
from zkrebalancer.cli.extras import require
from zkrebalancer.cli.tables import console
from zkrebalancer.operations.weights import require_group, write_weights
from zkrebalancer.protocol.weights import encode
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.zk import BlockingZk

if TYPE_CHECKING:
    from zkrebalancer.pipeline.weights import Error

WEIGHTS = "weights.json"
SAME_AS_NOW = "same as now"
NOTES = {"delivered": " (none tells what was produced)", "committed": " (none tells what was produced or delivered)"}


@click.command()
@click.option("--events", "source", required=True, metavar="DIR", help="Folder of *.jsonl files, or a URL of one.")
@options.out_option
@click.option("--group", help="Whose reading counts where nothing tells what was produced, and whose weights they are.")
@click.option(
    "--zookeeper",
    type=options.ZOOKEEPER,
    help="Write them for --group there. Without it they are only left in --out.",
)
@options.master_option
@options.memory_option
@options.json_option
@options.log_level_option
def weights(
    *,
    source: str,
    out: Path,
    group: str | None,
    zookeeper: str | None,
    master: str,
    memory: str | None,
    as_json: bool,
) -> None:
    """Learn from past hours what rate to expect of each partition, and test it on hours that were held out.

    \b
    Example:
      zkrebalancer pipeline weights --events events --out weights --group payments --zookeeper localhost:2181
    """
    if zookeeper is not None and group is None:
        raise click.UsageError("--zookeeper needs --group: whose weights they are")
    require("spark")
    if zookeeper is not None and group is not None:
        with BlockingZk(zookeeper) as zk:
            require_group(zk, group)  # before anybody waits for Spark
    from zkrebalancer.pipeline import ingest, progress, session  # noqa: PLC0415  # after the check
    from zkrebalancer.pipeline import weights as model  # noqa: PLC0415

    with session.spark_session(master, memory) as spark, progress.shown(spark.sparkContext, "weights"):
        past = model.history(ingest.parse(ingest.read_lines(spark, source)), group)
        errors = model.back_test(past)
        chosen, learned = model.learn(past, errors)
    content = encode(learned)
    (out / WEIGHTS).write_bytes(content)
    if zookeeper is not None and group is not None:
        with BlockingZk(zookeeper) as zk:
            write_weights(zk, group, content)
    told = {
        "source": past.source,
        "hours": past.last - past.first,
        "held_out_hours": past.last - past.cut,
        "errors": [asdict(error) for error in errors],
        "chosen": chosen.model,
        "better_than_now": chosen.mean_per_s < errors[-1].mean_per_s,
        "weights": str(out / WEIGHTS),
        "written_for": group if zookeeper is not None else None,
        "rate": learned.at(clock.epoch_ms() / 1_000),
    }
    if as_json:
        click.echo(json.dumps(told))
    else:
        _print(errors, told)


def _print(errors: list[Error], told: Mapping[str, object]) -> None:
    table = Table("prediction", "mean error, records/s", "of the rate")
    for error in errors:
        table.add_row(error.model, f"{error.mean_per_s:.3g}", f"{error.relative:.1%}")
    console().print(table)
    source = f"{told['source']} events{NOTES.get(str(told['source']), '')}"
    click.echo(f"{told['hours']} hours of {source}, of which the last {told['held_out_hours']} were held out")
    if not told["better_than_now"]:
        click.echo(f"{SAME_AS_NOW} predicts them as well or better: these weights bring nothing here")
    where = f"written for the group {told['written_for']}" if told["written_for"] else f"left in {told['weights']}"
    click.echo(f"weights by {told['chosen']}, {where}")
