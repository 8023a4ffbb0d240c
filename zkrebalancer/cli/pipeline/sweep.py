"""`zkrebalancer pipeline sweep`: strategies and modelled protocols over a grid."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import click
from rich.table import Table

from zkrebalancer.cli import options
from zkrebalancer.cli.extras import require
from zkrebalancer.cli.tables import console
from zkrebalancer.localcluster.locks import folder_locked

MAX_REPEATS = 1_000


@click.command()
@options.out_option
@click.option(
    "--grid",
    "axes",
    multiple=True,
    metavar="NAME=VALUE,…",
    help="Values of one axis: members, partitions, skew, churn or strategy; repeatable.",
)
@click.option("--repeat", type=click.IntRange(1, MAX_REPEATS), default=3, show_default=True, help="Seeds of each cell.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed gives the same table.")
@options.spark_options
@options.json_option
@options.log_level_option
def sweep(
    *,
    out: Path,
    axes: tuple[str, ...],
    repeat: int,
    seed: int,
    master: str,
    memory: str | None,
    settings: Mapping[str, str],
    as_json: bool,
) -> None:
    """Compare strategies and three modelled protocols.

    Members of many groups join and leave; the result is one table and one page.

    \b
    Example:
      zkrebalancer pipeline sweep --out sweep --grid members=10,100 --grid skew=0,1
    """
    require("experiments")
    from zkrebalancer.pipeline import session  # noqa: PLC0415  # after the check
    from zkrebalancer.pipeline.replaced import replaced  # noqa: PLC0415
    from zkrebalancer.pipeline.sweep import grid, job, output  # noqa: PLC0415

    cells = grid.read_grid(axes).cells(repeat)
    began_s = time.monotonic()
    with folder_locked(out), replaced(out, "sweep") as made:
        with session.spark_job(f"{len(cells)} cells", master, memory, settings) as spark:
            result = job.sweep(spark, cells, seed).toPandas()  # as many rows as the grid has, which is bounded
        output.write(result, made)
    told: dict[str, object] = {"cells": len(cells), "rows": len(result), "seed": seed, "master": master}
    files = {"table": str(out / output.TABLE), "csv": str(out / output.CSV), "page": str(out / output.PAGE)}
    told |= files | {"elapsed_s": round(time.monotonic() - began_s, 1), "medians": output.summary(result)}
    if as_json:
        click.echo(json.dumps(told))
    else:
        _print(told)


def _print(told: dict[str, object]) -> None:
    medians = told["medians"]
    if not isinstance(medians, list):
        raise TypeError
    table = Table(*medians[0])
    for row in medians:
        table.add_row(*(value if isinstance(value, str) else f"{value:,.4g}" for value in row.values()))
    console().print(table)
    click.echo(f"{told['cells']} cells, medians over all of them, in {told['elapsed_s']} s; see {told['page']}")
