"""`zkrebalancer pipeline weights`: the expected rate of each partition, for the strategy `balanced`."""

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
from zkrebalancer.localcluster.locks import folder_locked
from zkrebalancer.operations.weights import require_group, write_weights
from zkrebalancer.protocol.weights import encode
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.zk import BlockingZk

if TYPE_CHECKING:
    from zkrebalancer.pipeline.weights import Error

WEIGHTS = "weights.json"
SAME_AS_NOW = "same as now"
NOTES = {
    "delivered": " (there are no produced events)",
    "committed": " (there are neither produced nor delivered events)",
}


@click.command()
@click.option("--events", "source", required=True, metavar="DIR", help="Folder of *.jsonl files, or a URL of one.")
@options.out_option
@click.option(
    "--group",
    help="The group the weights are for; its deliveries or commits are used if there are no `produced` events.",
)
@click.option(
    "--zookeeper",
    type=options.ZOOKEEPER,
    help="Also write the weights for --group to this ZooKeeper; without it, only to --out.",
)
@options.spark_options
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
    settings: Mapping[str, str],
    as_json: bool,
) -> None:
    """Learn the expected rate of each partition from past hours.

    The last hours are reserved to test the prediction.

    \b
    Example:
      zkrebalancer pipeline weights --events events --out weights --group payments --zookeeper localhost:2181
    """
    if zookeeper is not None and group is None:
        raise click.UsageError("--zookeeper requires --group")
    require("spark")
    if zookeeper is not None and group is not None:
        with BlockingZk(zookeeper) as zk:
            require_group(zk, group)  # fails before Spark starts
    from zkrebalancer.pipeline import ingest, session  # noqa: PLC0415  # after the check
    from zkrebalancer.pipeline import weights as model  # noqa: PLC0415

    ingest.require_event_files(source)
    with folder_locked(out):
        with session.spark_job("weights", master, memory, settings) as spark:
            past = model.history(ingest.parse(ingest.read_lines(spark, source)), group)
            errors = model.back_test(past)
            chosen, learned = model.learn(past, errors)
        content = encode(learned)
        draft = out / f".{WEIGHTS}.new"
        draft.write_bytes(content)
        draft.replace(out / WEIGHTS)  # a reader never sees half of it
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
    click.echo(f"{told['hours']} hours of {source}; the last {told['held_out_hours']} were the test")
    if not told["better_than_now"]:
        click.echo(f"{SAME_AS_NOW} predicts as well or better: these weights bring no benefit here")
    where = f"written for the group {told['written_for']}" if told["written_for"] else f"kept in {told['weights']}"
    click.echo(f"weights by {told['chosen']}, {where}")
