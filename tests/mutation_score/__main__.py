"""`python -m tests.mutation_score`: puts small changes into the code, one at a time; tests or mypy have to notice them.

    --package NAME  only this package; may be given several times
    --nearest       run only the tests of the package itself: faster, and fewer mutants are noticed
    --mutants N     how many mutants to draw, the same number of each package (default: 600)
    --seed N        draws them (default: 0)
    --minutes M     stop after this time (default: 30); the same command goes on where it stopped
    --floor PERCENT how many of the mutants have to be noticed (default: 90)
    --fresh         try again what former runs have tried
    --state FOLDER  where verdicts and measurements are kept (default: .mutation-score)
    --json          print one JSON document

Example: `python -m tests.mutation_score --package observe --mutants 50`. Exit code 1 if fewer were noticed than the
floor says.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path

import libcst as cst
import pytest
from hypothesis import Phase, settings
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.mutation_score.catalogue import PACKAGES, Mutant, mutants
from tests.mutation_score.laboratory import SURVIVED, Laboratory, Verdict, paths_for
from tests.mutation_score.report import Score, print_document, print_report
from tests.mutation_score.typed import refused
from tests.mutation_score.verdicts import Memory, fingerprint

PYTEST_OPTIONS = ("-q", "--capture=no", "-p", "no:cacheprovider", "-o", "timeout=0", "-m", "not long")
MAX_EXAMPLES = 40  # of a property, if its test sets no number


class _Host:
    """A pytest plugin that runs one function instead of the tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.score: Score | None = None
        self.is_interrupted = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        # The same examples for every mutant, without a database and without shrinking.
        phases = [Phase.explicit, Phase.generate]
        settings.register_profile(
            "mutants", deadline=None, derandomize=True, database=None, phases=phases, max_examples=MAX_EXAMPLES
        )
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        try:
            self.score = _score(session, self._options)
        except KeyboardInterrupt:
            self.is_interrupted = True
        return True


def draw(packages: Sequence[str], seed: int, count: int) -> tuple[list[Mutant], dict[str, int]]:
    """Return the mutants to try, and how many there are of each package.

    Changes of other code do not change the draw. Half of each package's mutants change calls, the most frequent kind
    and the easiest to notice; the others change anything else.
    """
    drawn: list[list[Mutant]] = []
    for package in packages:
        every = sorted(mutants(package), key=lambda mutant: hashlib.sha256(f"{seed} {mutant.key}".encode()).digest())
        calls = [mutant for mutant in every if isinstance(mutant.original, cst.Call)]
        others = [mutant for mutant in every if not isinstance(mutant.original, cst.Call)]
        drawn.append(_in_turns([others, calls]))
    sizes = {package: len(every) for package, every in zip(packages, drawn, strict=True)}
    return _in_turns(drawn)[:count], sizes


def _in_turns(rows: Sequence[Sequence[Mutant]]) -> list[Mutant]:
    return [mutant for mutant in chain.from_iterable(zip_longest(*rows)) if mutant is not None]


def _score(session: pytest.Session, options: argparse.Namespace) -> Score:
    packages = options.package or list(PACKAGES)
    laboratory = Laboratory(session, packages, len(os.sched_getaffinity(0)))
    memory = Memory(options.state, fingerprint(paths_for(packages, is_narrow=options.nearest)))
    if options.fresh:
        memory.forget()
    with _progress() as progress:
        _measure(laboratory, memory, progress)
        wanted, sizes = draw(packages, options.seed, options.mutants)
        verdicts = dict(judged(laboratory, memory, wanted, options.minutes, progress))
    tried = [(mutant, verdicts[mutant.key]) for mutant in wanted if mutant.key in verdicts]
    return Score(options.seed, sizes, len(wanted), tried, tuple(laboratory.failing))


def _measure(laboratory: Laboratory, memory: Memory, progress: Progress) -> None:
    reaches = memory.reaches()
    task = progress.add_task("tests without a mutant", total=laboratory.test_count, completed=len(reaches))
    for found in laboratory.measure(reaches):
        memory.keep_reaches(found)
        reaches |= found
        progress.update(task, completed=len(reaches))
    laboratory.use(reaches)


def judged(
    laboratory: Laboratory, memory: Memory, wanted: Sequence[Mutant], minutes: float, progress: Progress
) -> Iterator[tuple[str, Verdict]]:
    """Yield the verdicts that are remembered, then those of the other mutants until the time is over."""
    known = memory.verdicts()
    yield from known.items()
    end = time.monotonic() + 60 * minutes
    new = [mutant for mutant in wanted if mutant.key not in known]
    task = progress.add_task("mutants", total=len(wanted), completed=len(wanted) - len(new))
    with contextlib.closing(laboratory.judge(new)) as judging:
        for mutant, by_tests in judging:
            verdict = (by_tests.outcome == SURVIVED and refused(mutant, memory.types)) or by_tests
            memory.keep(mutant, verdict)
            yield mutant.key, verdict
            progress.advance(task)
            if time.monotonic() > end:
                return


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run; return the exit code."""
    options = _options(arguments)
    host = _Host(options)
    said = io.StringIO()
    paths = paths_for(options.package or list(PACKAGES), is_narrow=options.nearest)
    with contextlib.redirect_stdout(said):
        code = pytest.main([*PYTEST_OPTIONS, *paths], plugins=[host])
    if host.is_interrupted:
        print("Error: interrupted; the same command goes on where it stopped", file=sys.stderr)
        return 1
    if host.score is None:
        print(f"Error: the tests cannot be collected ({code!r}):{os.linesep}{said.getvalue()}", file=sys.stderr)
        return 2
    return tell(host.score, options.floor, as_json=options.json)


def tell(score: Score, floor: float, *, as_json: bool) -> int:
    """Print the report, or one JSON document; return the exit code."""
    print_document(score, floor) if as_json else print_report(score, floor)
    if not score.counted:
        print("Error: no mutant was tried; give it more minutes", file=sys.stderr)
        return 1
    if score.percent() < floor:
        print(f"Error: {score.percent():.1f} % were noticed, {floor:g} % are wanted", file=sys.stderr)
        return 1
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation_score",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--package", action="append", choices=list(PACKAGES))
    parser.add_argument("--nearest", action="store_true")
    parser.add_argument("--mutants", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--floor", type=float, default=90)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--state", type=Path, default=Path(".mutation-score"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.mutants < 1:
        parser.error("--mutants has to be at least 1")
    if not 0 <= options.floor <= 100:
        parser.error("--floor has to be from 0 to 100")
    if options.minutes <= 0:
        parser.error("--minutes has to be more than 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
