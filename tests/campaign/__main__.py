"""`python -m tests.campaign`: exit 0 if every promise was kept, 1 if one was broken, 2 for wrong usage."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import click

from tests.campaign.campaign import Campaign, CampaignSettings
from tests.campaign.company import MIN_MEMBERS, new_groups
from tests.campaign.progress import Progress, end_on_signals
from tests.campaign.records import Outcome
from tests.campaign.report import print_report
from tests.campaign.schedule import KINDS
from zkrebalancer.cli import options
from zkrebalancer.cli.main import run
from zkrebalancer.protocol.errors import RebalancerError

MAX_AGENTS = 30
MAX_PROBLEMS_SHOWN = 20
ENDING = "repairing the faults and reading the remaining records (again: end at once, without a verdict)"


class CampaignFailedError(RebalancerError):
    """A promise was broken."""


@click.command()
@click.option("--minutes", type=click.FloatRange(0, 24 * 60), default=5, show_default=True, help="Duration.")
@click.option("--seed", type=int, default=1, show_default=True, help="Determines the faults and their times.")
@click.option(
    "--agents",
    "max_agents",
    type=click.IntRange(MIN_MEMBERS * len(new_groups()), MAX_AGENTS),
    default=14,
    show_default=True,
    help="Most agents at a time; each is a process.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(list(KINDS)),
    help="Only these faults, to reproduce a failure.",
)
@click.option("--keep", is_flag=True, help="Keep events and logs after success too, and print their folder.")
@options.events_option
@options.json_option
def campaign(
    *,
    minutes: float,
    seed: int,
    max_agents: int,
    kinds: tuple[str, ...],
    keep: bool,
    events_directory: Path | None,
    as_json: bool,
) -> None:
    """Break servers, processes and connections at random, and judge by the events whether the promises were kept.

    Ctrl-C ends it with the verdict so far.
    """
    logging.getLogger().addHandler(logging.NullHandler())
    if events_directory is not None and any(events_directory.glob("*.jsonl")):
        raise click.UsageError(f"--events {events_directory} holds the events of an earlier run; name an empty folder")
    with Progress(to_stderr=as_json) as progress:
        this = Campaign(
            CampaignSettings(minutes, seed, max_agents, kinds or tuple(KINDS), events_directory, keep), progress
        )
        end_on_signals(this.end_soon, progress, ENDING)
        outcome = this.run()
    tell(outcome, as_json=as_json)


def tell(outcome: Outcome, *, as_json: bool) -> None:
    """Print the report, or one JSON document; raises CampaignFailedError if a promise was broken."""
    if as_json:
        click.echo(json.dumps(outcome.document()))
    else:
        print_report(outcome)
    for problem in outcome.problems[:MAX_PROBLEMS_SHOWN]:
        click.echo(f"problem: {problem}", err=True)
    if outcome.problems:
        count = len(outcome.problems)
        raise CampaignFailedError(f"a promise was broken (problems: {count}); events and logs are in {outcome.folder}")


if __name__ == "__main__":
    run(campaign)
