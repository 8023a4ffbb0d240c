"""`python -m tests.exactly_once`: exit 0 if the sinks equal the input, 1 if one does not, 2 for wrong usage."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import click

from tests.campaign.progress import Progress, end_on_signals
from tests.exactly_once import totals
from tests.exactly_once.groups import GROUPS
from tests.exactly_once.run import Outcome, Run, Settings
from tests.support.postgres import PostgresMissingError
from zkrebalancer.cli import options
from zkrebalancer.cli.main import run
from zkrebalancer.protocol.errors import ConfigurationError, RebalancerError

ENDING = "storing the remaining records (again: end at once, without a verdict)"


class NotProvedError(RebalancerError):
    """A sink differs from the input, or a control was not noticed."""


@click.command()
@click.option("--minutes", type=click.FloatRange(0, 24 * 60), default=5, show_default=True, help="Duration of faults.")
@click.option("--seed", type=int, help="Determines the faults. Default: one more than the runs in --totals.")
@click.option("--sink", type=click.Choice(["postgres", "sqlite"]), default="postgres", show_default=True)
@click.option("--members", type=click.IntRange(2, 10), default=3, show_default=True, help="Of each group.")
@click.option("--rate", type=click.IntRange(1, 20_000), default=600, show_default=True, help="Records per second.")
@click.option("--records", type=click.IntRange(0), default=0, help="At most so many records. Default: no limit.")
@click.option("--group", "groups", multiple=True, type=click.Choice(list(GROUPS)), help="Only these. Default: all.")
@click.option("--totals", "file", type=click.Path(path_type=Path, dir_okay=False), help="Add the run to this file.")
@options.json_option
def exactly_once(
    *,
    minutes: float,
    seed: int | None,
    sink: str,
    members: int,
    rate: int,
    records: int,
    groups: tuple[str, ...],
    file: Path | None,
    as_json: bool,
) -> None:
    """Kill consumers and servers at named steps, and compare the sinks with the input.

    Beside them run controls with a mistake each, whose sinks must become wrong. Ctrl-C ends it with the verdict so far.

    \b
    Example: python -m tests.exactly_once --minutes 20 --totals totals.json
    """
    logging.getLogger().addHandler(logging.NullHandler())
    known = totals.read(file) if file else {}
    chosen = int(known.get("runs", 0)) + 1 if seed is None else seed
    with Progress(to_stderr=as_json) as progress:
        this = Run(Settings(minutes, chosen, sink, members, rate, records, groups or tuple(GROUPS)), progress)
        end_on_signals(this.end_soon, progress, ENDING)
        try:
            outcome = this.run()
        except PostgresMissingError as missing:
            raise ConfigurationError(f"{missing}, or use --sink sqlite") from None
    document = outcome.document()
    if file:
        document["totals"] = totals.add(file, outcome)
    click.echo(json.dumps(document) if as_json else "\n".join(report(outcome, document)))
    for problem in outcome.problems:
        click.echo(f"problem: {problem}", err=True)
    if outcome.problems:
        raise NotProvedError(f"exactly once is not proved (problems: {len(outcome.problems)}), seed {chosen}")


def report(outcome: Outcome, document: dict[str, object]) -> list[str]:
    """Return the verdict for people."""
    steps = ", ".join(f"{step} {count}" for step, count in sorted(outcome.kills.items()))
    suspended = ", ".join(f"{step} {count}" for step, count in sorted(outcome.suspended.items()))
    lines = [
        f"{outcome.elapsed_s / 60:.1f} minutes, seed {outcome.settings.seed}, {outcome.settings.sink}",
        f"kills: {outcome.kills.total()} ({steps})",
        f"suspended and thawed: {outcome.suspended.total()} ({suspended}); topic growths: {outcome.growths}",
    ]
    for group, found in outcome.sinks.items():
        verdict = "equals the input" if found.is_exact else "DIFFERS"
        counts = f"lost {found.lost}, doubled {found.doubled}, out of order {found.out_of_order}, wrong {found.wrong}"
        lines.append(f"{group}: {verdict}: {found.stored} results of {found.expected} records; {counts}")
    lines += [f"control {name}: {'found' if found else 'NOT FOUND'}" for name, found in outcome.controls.items()]
    if "totals" in document:
        lines.append(f"all runs: {json.dumps(document['totals'])}")
    return lines


if __name__ == "__main__":
    run(exactly_once)
