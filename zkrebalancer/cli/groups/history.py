"""The view of `groups describe --history`: past rebalances of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from zkrebalancer.cli.tables import utc
from zkrebalancer.protocol.history import Rebalanced

COLUMNS = (
    "requested (UTC)",
    "generation",
    "why",
    "members",
    "moved",
    "took",
    "longest pause",
    "phases",
    "slowest",
    "end",
)


def document(rebalances: Sequence[Rebalanced]) -> list[dict[str, object]]:
    """Return rebalances as they are printed with `--json`."""
    return [asdict(each) for each in rebalances]


def table(rebalances: Sequence[Rebalanced]) -> Table:
    """Return rebalances as a table, in the given order."""
    shown = Table(*COLUMNS)
    for each in rebalances:
        shown.add_row(
            utc(each.requested_at_ms),
            str(each.generation),
            _why(each),
            str(each.members),
            f"{each.moved} of {each.partitions}",
            _ms(each.settled_ms),
            _ms(each.pause_ms_max),
            _phases(each),
            "-" if each.slowest is None else f"{each.slowest.member} {_ms(each.slowest.ms)}",
            _end(each),
        )
    return shown


def _why(rebalanced: Rebalanced) -> str:
    named = [reason.text for reason in rebalanced.reasons]
    more = rebalanced.reason_count - len(named)
    return ", ".join([*named, *([f"{more} more"] if more > 0 else [])])


def _phases(rebalanced: Rebalanced) -> str:
    phases = asdict(rebalanced.phases_ms)
    return ", ".join(f"{name} {_ms(taken)}" for name, taken in phases.items() if taken is not None)


def _end(rebalanced: Rebalanced) -> str:
    if not rebalanced.late_count:
        return rebalanced.outcome
    more = rebalanced.late_count - len(rebalanced.late)
    late = ", ".join([*rebalanced.late, *([f"{more} more"] if more > 0 else [])])
    return f"{rebalanced.outcome}; late: {late}"


def _ms(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    return f"{milliseconds / 1_000:.1f} s" if milliseconds >= 10_000 else f"{milliseconds:.0f} ms"
