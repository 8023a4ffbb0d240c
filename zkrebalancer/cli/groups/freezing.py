"""`zkrebalancer groups freeze`, `unfreeze` and `resume`."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import click

from zkrebalancer.cli.groups.changes import Asked, apply_settings, change_options
from zkrebalancer.cli.tables import utc
from zkrebalancer.operations import approval
from zkrebalancer.runtime.zk import BlockingZk

UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MAX_FREEZE_S = 30 * 86_400


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A time such as 90m or 2h, in seconds."""

    name = "TIME"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Reject what is no time, or too long."""
        found = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", str(value))
        if found is None:
            self.fail(f"{value!r:.80} is not a time such as 90m, 2h or 1d", param, ctx)
        seconds = int(found[1]) * UNITS_S[found[2]]
        if seconds > MAX_FREEZE_S:
            self.fail(f"{value} is too long, at most {MAX_FREEZE_S // 86_400}d are allowed", param, ctx)
        return seconds


@click.command()
@click.argument("group")
@click.option("--for", "seconds", type=Duration(), help="End the freeze after this time, such as 90m, 2h or 1d.")
@change_options
def freeze(group: str, seconds: int | None, asked: Asked, zookeeper: str) -> None:
    """Keep each owned partition with its owner until `unfreeze`.

    Partitions without an owner are still assigned. With `--for`, the coordinator ends the freeze, by its clock. Nothing
    moves, so the command does not ask.

    \b
    Example:
      zkrebalancer groups freeze payments --for 2h --zookeeper localhost:2181/kafka
    """
    until_ms = 0 if seconds is None else round((time.time() + seconds) * 1_000)
    apply_settings(
        zookeeper,
        group,
        lambda report: replace(report.settings, frozen=True, frozen_until_ms=until_ms),
        f"frozen until {utc(until_ms)} UTC" if until_ms else "frozen",
        replace(asked, yes=True),
    )


@click.command()
@click.argument("group")
@change_options
def unfreeze(group: str, asked: Asked, zookeeper: str) -> None:
    """Let partitions move again, after showing which would.

    The same as `groups configure GROUP frozen=false`.

    \b
    Example:
      zkrebalancer groups unfreeze payments --dry-run --zookeeper localhost:2181/kafka
    """
    apply_settings(
        zookeeper,
        group,
        lambda report: replace(report.settings, frozen=False, frozen_until_ms=0),
        "not frozen",
        asked,
    )


@click.command()
@click.argument("group")
@change_options
def resume(group: str, asked: Asked, zookeeper: str) -> None:
    """Approve a plan that waits because it moves more than `approve_moves_above`.

    The approval is for as many moves as the coordinator has planned. If the group changes so that more would move, or
    another plan is carried out first, it waits again.

    \b
    Example:
      zkrebalancer groups resume payments --dry-run --zookeeper localhost:2181/kafka
    """
    with BlockingZk(zookeeper) as zk:
        moves, altered = approval.approving(zk, group)
    apply_settings(
        zookeeper,
        group,
        altered,
        f"resumed: {moves} moves are approved",
        asked,
    )
