"""`make model`: checks the protocol's model with spin: its properties hold, and fail without any one of its rules."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator

import click

from tests.model import spin
from tests.model.checks import PROPERTIES, REFUTATIONS, Check

TRAILS = spin.MODEL.parent / "trails"
ROW = "{:<30} {:>6} {:>11} {:>6} {:>6} {:>8} {:>8}  {}"


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--quick", is_flag=True, help="Only the checks that take about a minute together.")
@click.option("--write-trails", is_flag=True, help=f"Write the counterexamples to docs/model/{TRAILS.name}.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
def main(names: tuple[str, ...], quick: bool, write_trails: bool, as_json: bool) -> None:
    """Search the protocol's model: every property holds, and no rule can be left out."""
    checks = [check for check in PROPERTIES + REFUTATIONS if not names or check.name in names]
    if len(checks) < len(set(names)):
        raise click.UsageError(f"no check has one of these names: {', '.join(names)}")
    missing = spin.missing_packages()
    if missing:
        click.echo(f"the model needs {' and '.join(missing)} (Debian: apt-get install {' '.join(missing)})", err=True)
        sys.exit(2)
    rows = []
    try:
        for row in searched(checks, quick=quick):
            rows.append(row)
            if write_trails and row.check in REFUTATIONS:
                write_trail(row)
            if not as_json:
                print_row(row, is_first=len(rows) == 1)
    except spin.SpinError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    failed = [row for row in rows if not row.is_as_expected]
    if as_json:
        click.echo(json.dumps({"ok": not failed, "checks": [row.document() for row in rows]}, indent=2))
    else:
        click.echo(f"{len(rows) - len(failed)} of {len(rows)} are as expected")
    sys.exit(1 if failed else 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A check and its result."""

    check: Check
    result: spin.Result

    @property
    def is_as_expected(self) -> bool:
        """Whether a property holds in all states, or a missing rule gives a counterexample."""
        figures = self.result.figures
        if self.check in REFUTATIONS:
            return figures.errors > 0 and bool(self.result.story)
        return figures.errors == 0 and figures.is_complete

    def document(self) -> dict[str, object]:
        """Return the row for `--json`."""
        figures = dataclasses.asdict(self.result.figures)
        kind = "refutation" if self.check in REFUTATIONS else "property"
        head = {"name": self.check.name, "kind": kind, "macros": self.check.macros, "faults": self.check.faults}
        return {**head, **figures, "ok": self.is_as_expected, "story": self.result.story}


def searched(checks: Iterable[Check], *, quick: bool) -> Iterator[Row]:
    """Run the checks one after the other: memory, not CPU, is their limit."""
    for check in checks:
        if check.is_quick or not quick:
            yield Row(check, spin.run(check))


def print_row(row: Row, *, is_first: bool) -> None:
    """Print a line of the table, with its head before the first."""
    if is_first:
        click.echo(ROW.format("property", "faults", "states", "depth", "errors", "MB", "seconds", "").rstrip())
    figures, check = row.result.figures, row.check
    name = f"without: {check.name}" if check in REFUTATIONS else check.name
    verdict = "" if row.is_as_expected else "UNEXPECTED"
    memory, seconds = f"{figures.memory_mb:.0f}", f"{figures.seconds:.1f}"
    columns = (name, check.faults, figures.states, figures.depth, figures.errors, memory, seconds, verdict)
    click.echo(ROW.format(*columns).rstrip())


def write_trail(row: Row) -> None:
    """Write a counterexample's story into `docs/model`."""
    TRAILS.mkdir(exist_ok=True)
    head = f"With {' and '.join(row.check.macros)}:\n\n"
    (TRAILS / f"{row.check.name}.txt").write_text(head + "\n".join(row.result.story) + "\n")


if __name__ == "__main__":
    main()
