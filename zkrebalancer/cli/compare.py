"""`zkrebalancer experiment compare`: runs side by side, with wins and losses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zkrebalancer.cli import options
from zkrebalancer.cli.extras import require
from zkrebalancer.localcluster.locks import folder_locked

if TYPE_CHECKING:  # takes long to import
    from zkrebalancer.pipeline.report.sentences import Verdict


@click.command()
@click.argument(
    "paths",
    metavar="DIR_OR_FILE…",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True),
)
@click.option("--untrusted", "with_untrusted", is_flag=True, help="Also count finished runs that are not trusted.")
@options.out_option
@options.spark_options
@options.json_option
@options.log_level_option
def compare(
    *,
    paths: Sequence[Path],
    with_untrusted: bool,
    out: Path,
    master: str,
    memory: str | None,
    settings: Mapping[str, str],
    as_json: bool,
) -> None:
    """Compare all runs below some folders, or in files of published results.

    Writes tables and one page with pictures and this project's wins and losses.
    A file has one result.json in each line; without the events of its runs, some figures are missing.

    \b
    Example:
      zkrebalancer experiment compare experiments --out report
      zkrebalancer experiment compare docs/data/experiments-2026-11-29-compared.jsonl --out report
    """
    require("experiments")
    from zkrebalancer.pipeline import session  # noqa: PLC0415  # after the check
    from zkrebalancer.pipeline.replaced import replaced  # noqa: PLC0415
    from zkrebalancer.pipeline.report import compare as report  # noqa: PLC0415
    from zkrebalancer.pipeline.report import output  # noqa: PLC0415
    from zkrebalancer.pipeline.report.folders import find_runs  # noqa: PLC0415
    from zkrebalancer.pipeline.report.sentences import counted, loss_lines, losses, untested  # noqa: PLC0415

    runs = find_runs(paths)  # fails before Spark starts
    files = report.event_files_below([path for path in paths if path.is_dir()])
    with folder_locked(out), replaced(out, "compare") as made:
        if files:
            usual = session.for_input(sum(file.size for file in files))
            with session.spark_job("facts", master, memory, {**usual, **settings}, records_classes=True) as spark:
                found = report.compare(spark, runs, files, made, with_untrusted=with_untrusted)
        else:
            found = report.compare(None, runs, files, made, with_untrusted=with_untrusted)
        output.write(found, made)
    doubted = [run for run in found.runs if run.doubts]
    told = {
        "runs": len(found.runs),
        "not_trusted": [{"run": run.name, "doubts": run.doubts} for run in doubted],
        "verdicts": [_told(verdict) for verdict in found.verdicts],
        "page": str(out / output.PAGE),
    }
    if as_json:
        click.echo(json.dumps(told))
        return
    if not found.verdicts:
        click.echo(output.NOTHING_COMPARED)
    for setting, lines in loss_lines(found.verdicts).items():
        click.echo("\n  ".join([f"{setting}, lost:", *lines]))
    marked = f", {len(doubted)} not trusted" if doubted else ""
    lost, few = len(losses(found.verdicts)), len(untested(found.verdicts))
    click.echo(
        f"{counted(len(found.runs), 'run')}{marked}; comparisons that this project loses: {lost}, "
        f"with too few pairs to tell: {few}; see {told['page']}"
    )


def _told(verdict: Verdict) -> dict[str, object]:
    return {
        "scenario": verdict.setting.scenario,
        "settings": verdict.setting.settings,
        "our_settings": verdict.setting.without_heartbeats.settings,
        "broker": verdict.setting.broker,
        "ours": verdict.ours,
        "other": verdict.other,
        "measure": verdict.measure,
        "outcome": verdict.outcome,
        "pairs": verdict.pairs,
        "p": verdict.p,
        "says": str(verdict),
    }
