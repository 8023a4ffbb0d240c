"""The report of a run: a table by package, and every survivor as a diff with its reason."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tests.mutation_score.catalogue import Mutant
from tests.mutation_score.laboratory import HUNG, KILLED, NO_MUTANT, REFUSED, SURVIVED, Verdict
from tests.mutation_score.verdicts import reason_for, reasons

NOT_EXPLAINED = "no reason is known"


@dataclass(frozen=True, slots=True)
class Score:
    """The outcome of a run; `sizes`: mutants of each package, `drawn`: how many were to be tried."""

    seed: int
    sizes: dict[str, int]
    drawn: int
    tried: list[tuple[Mutant, Verdict]]
    failing: tuple[str, ...] = ()  # tests omitted because they fail without a mutant

    @property
    def counted(self) -> list[tuple[Mutant, Verdict]]:
        """The mutants that were tried."""
        return [(mutant, verdict) for mutant, verdict in self.tried if verdict.outcome != NO_MUTANT]

    @property
    def survivors(self) -> list[tuple[Mutant, Verdict]]:
        """The mutants that neither a test nor mypy noticed, by place."""
        found = [(mutant, verdict) for mutant, verdict in self.counted if verdict.outcome == SURVIVED]
        return sorted(found, key=lambda one: (one[0].path, one[0].lines.start, one[0].number))

    def outcomes(self, package: str | None = None) -> Counter[str]:
        """Return how many mutants had each outcome."""
        return Counter(verdict.outcome for mutant, verdict in self.counted if package in {None, mutant.package})

    def percent(self, package: str | None = None, *, by_tests: bool = False) -> float:
        """Return the percentage of noticed mutants, of all or by tests alone; 100 if there are none."""
        outcomes = self.outcomes(package)
        noticed = outcomes[KILLED] + outcomes[HUNG] + (0 if by_tests else outcomes[REFUSED])
        return 100 * noticed / (outcomes.total() or 1) if outcomes else 100.0

    def mean_seconds(self) -> float:
        """Return the mean processor time of a mutant."""
        return sum(verdict.seconds for _mutant, verdict in self.counted) / (len(self.counted) or 1)


def print_report(score: Score, floor: float) -> None:
    """Print the survivors, and a table: the last two columns say what was noticed by tests, and with mypy."""
    console = Console(highlight=False)
    known = reasons()
    for mutant, verdict in score.survivors:
        console.print(f"{mutant.place} ({verdict.by})", markup=False, soft_wrap=True)
        for line in mutant.diff:
            console.print(f"    {line}", markup=False, style="red" if line[0] == "-" else "green", soft_wrap=True)
        console.print(f"    {reason_for(mutant, known) or NOT_EXPLAINED}", markup=False, soft_wrap=True)
    table = Table("package", "mutants", "tried", "killed", "hung", "mypy", "left", "tests", "all")
    for package, size in score.sizes.items():
        table.add_row(package, *_cells(score, package, size))
    table.add_section()
    table.add_row("all", *_cells(score, None, sum(score.sizes.values())))
    console.print(table)
    console.print(
        f"seed {score.seed}, {score.mean_seconds():.2f} s of processor time for each; at least {floor:g} % are wanted"
    )
    for name in score.failing:
        console.print(f"left out, because it fails without a mutant: {name}", markup=False, soft_wrap=True)
    if len(score.tried) < score.drawn:
        console.print(f"{score.drawn - len(score.tried)} of {score.drawn} are left; the same command tries them")


def _cells(score: Score, package: str | None, size: int) -> list[str]:
    outcomes = score.outcomes(package)
    numbers = [outcomes[KILLED], outcomes[HUNG], outcomes[REFUSED], outcomes[SURVIVED]]
    percents = [f"{score.percent(package, by_tests=by_tests):.1f} %" for by_tests in (True, False)]
    return [*map(str, [size, outcomes.total(), *numbers]), *percents]


def print_document(score: Score, floor: float) -> None:
    """Print everything as JSON."""
    known = reasons()
    packages = {
        package: {"mutants": size, **score.outcomes(package), "noticed_percent": score.percent(package)}
        for package, size in score.sizes.items()
    }
    survivors = [
        {
            "key": mutant.key,
            "path": mutant.path,
            "line": mutant.lines.start,
            "function": mutant.function,
            "change": mutant.diff,
            "tests": verdict.by,
            "reason": reason_for(mutant, known) or None,
        }
        for mutant, verdict in score.survivors
    ]
    document = {
        "seed": score.seed,
        "floor_percent": floor,
        "noticed_percent": score.percent(),
        "noticed_by_tests_percent": score.percent(by_tests=True),
        "drawn": score.drawn,
        "tried": len(score.tried),
        "processor_seconds_for_a_mutant": score.mean_seconds(),
        "packages": packages,
        "failing_tests": score.failing,
        "survivors": survivors,
    }
    Console(soft_wrap=True, highlight=False).print_json(json.dumps(document))
