"""One process that has collected the tests; each trial is a fork, in which the nearest tests run with one mutant.

First, forks run all tests without a mutant, and measure the lines and the time of each test. A mutant is tried with
the tests that reach its lines: those of its package first, the fastest first, until one fails or the mutant's time is
over.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import coverage
import pytest

from tests.mutation_score.catalogue import PACKAGES, ROOT, Mutant
from tests.mutation_score.forks import ENDED_BY_TIMER, Ended, Tell, in_forks, limit_time
from tests.mutation_score.swapping import Functions, NoMutantError, imported_functions, swap

UNIT = "tests/unit"
ONE_SEED = f"{'tests.mutation_score.one_seed'.replace('.', '/')}.py"
# The tests of each package, and the wider ones that reach it too.
NEAREST = {
    "protocol": (f"{UNIT}/protocol",),
    "rebalance": (f"{UNIT}/rebalance", "tests/traces"),
    "membership": (f"{UNIT}/consumer_agent/membership",),
    "assignment": (f"{UNIT}/assignment",),
    "observe": (f"{UNIT}/observe",),
    "operations": (f"{UNIT}/operations",),
}
WIDER = {
    "protocol": (*NEAREST["rebalance"], *NEAREST["membership"], *NEAREST["operations"]),
    "rebalance": (f"{UNIT}/operations", ONE_SEED),
    "membership": (f"{UNIT}/consumer_agent/runtime", ONE_SEED),
    "assignment": (),
    "observe": (f"{UNIT}/cli",),
    "operations": (f"{UNIT}/cli",),
}
SECONDS_FOR_ONE_MUTANT = {True: 6.0, False: 4.0}  # of the nearest tests, of wider ones: measured without a mutant
GRACE_S, SLOWER = 2.0, 5.0  # of processor time: a test hangs if it takes this more than five times its usual time
FILE_LIMIT_S = 300.0  # for all tests of one file, with coverage
WAIT_LIMIT_S = 60.0  # or if it has waited so long; the machine may be busy
KILLED, HUNG, REFUSED, SURVIVED, NO_MUTANT = "killed", "hung", "refused", "survived", "no mutant"


@dataclass(frozen=True, slots=True)
class Reach:
    """A test without a mutant: its processor time, and the lines that it runs, by path below the root."""

    seconds: float
    lines: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a mutant.

    `outcome` is one of the five words above; `by` is the test that failed or hung, mypy's first error, the number of
    tests that noticed nothing, or the reason why there is no mutant.
    """

    outcome: str
    by: str
    seconds: float


def paths_for(packages: Sequence[str], *, is_narrow: bool = False) -> list[str]:
    """Return the tests for these packages; `is_narrow`: only the nearest ones."""
    wider = {} if is_narrow else WIDER
    return list(dict.fromkeys(path for name in packages for path in (*NEAREST[name], *wider.get(name, ()))))


class Laboratory:
    """The collected tests and the changeable functions, both in this process."""

    def __init__(self, session: pytest.Session, packages: Sequence[str], at_once: int) -> None:
        self._session = session
        self._items: dict[str, pytest.Item] = {item.nodeid: item for item in session.items}
        self._functions: Functions = imported_functions(tuple(PACKAGES[name] for name in packages))
        self._at_once = at_once
        self._by_line: dict[tuple[str, int], list[str]] = {}
        self._reaches: dict[str, Reach] = {}
        self.failing: list[str] = []

    @property
    def test_count(self) -> int:
        """The number of tests."""
        return len(self._items)

    def _files(self) -> dict[str, list[str]]:
        files: dict[str, list[str]] = {}
        for name in self._items:
            files.setdefault(name.partition("::")[0], []).append(name)
        return files

    def measure(self, known: Mapping[str, Reach]) -> Iterator[dict[str, Reach]]:
        """Run the tests of each file that is not `known`, without a mutant; yield the reach of each test.

        A failing test is omitted and added to `failing`.
        """
        files = [names for names in self._files().values() if not known.keys() >= set(names)]
        for ended in in_forks(files, self._measured, self._at_once):
            found = [json.loads(line) for line in ended.told.splitlines()]
            reaches = {name: Reach(**reach) for name, reach in found if reach is not None}
            self.failing += [name for name in files[ended.number] if name not in reaches]
            yield reaches

    def use(self, reaches: dict[str, Reach]) -> None:
        """Choose tests by these measurements, but only tests of this run: others may be of a run of other packages."""
        self._reaches = {name: reach for name, reach in reaches.items() if name in self._items}
        for name, reach in self._reaches.items():
            for path, lines in reach.lines.items():
                for line in lines:
                    self._by_line.setdefault((path, line), []).append(name)

    def _measured(self, names: list[str], tell: Tell) -> None:
        measuring = coverage.Coverage(
            data_file=None,
            config_file=False,
            include=[f"{ROOT / folder}/*" for folder in PACKAGES.values()],
            concurrency=["greenlet", "thread"],
            messages=False,
        )
        limit_time(FILE_LIMIT_S, 2 * FILE_LIMIT_S)
        measuring.start()
        seconds: dict[str, float] = {}
        failed: set[str] = set()
        for name, following in pairwise([*names, ""]):
            measuring.switch_context(name)
            begun = time.process_time()
            if self._fails(name, following):
                failed.add(name)
            seconds[name] = time.process_time() - begun
        measuring.stop()
        lines: dict[str, dict[str, list[int]]] = {name: {} for name in names}
        data = measuring.get_data()
        for file in data.measured_files():
            path = Path(file).relative_to(ROOT).as_posix()
            for number, contexts in data.contexts_by_lineno(file).items():
                for name in lines.keys() & set(contexts):
                    lines[name].setdefault(path, []).append(number)
        for name in names:
            reach = None if name in failed else asdict(Reach(seconds[name], lines[name]))
            tell(json.dumps([name, reach]) + "\n")

    def _fails(self, name: str, following: str) -> bool:
        before = self._session.testsfailed
        item = self._items[name]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=self._items.get(following))
        return self._session.testsfailed > before

    def chosen(self, mutant: Mutant) -> list[str]:
        """Return the tests for a mutant, in the order in which they are tried."""
        reaching = (
            self._reaching(mutant.path, mutant.lines)
            or self._reaching(mutant.path, mutant.function_lines)
            or self._reaching(mutant.path, range(1, len(mutant.module.code.splitlines()) + 1))  # run by a thread
        )
        left = dict(SECONDS_FOR_ONE_MUTANT)
        chosen: dict[bool, list[str]] = {True: [], False: []}
        for name in sorted(reaching, key=lambda name: self._reaches[name].seconds):
            is_near = name.startswith(NEAREST[mutant.package])
            left[is_near] -= self._reaches[name].seconds
            if left[is_near] >= 0 or not chosen[is_near]:
                chosen[is_near].append(name)
        return chosen[True] + chosen[False]

    def _reaching(self, path: str, lines: range) -> list[str]:
        return list(dict.fromkeys(name for line in lines for name in self._by_line.get((path, line), ())))

    def judge(self, mutants: Sequence[Mutant]) -> Generator[tuple[Mutant, Verdict]]:
        """Try mutants, each in a fork; yield each with its verdict once it is known."""
        for ended in in_forks(mutants, self._tried, self._at_once):
            yield mutants[ended.number], _verdict(ended)

    def _tried(self, mutant: Mutant, tell: Tell) -> None:
        try:
            swap(mutant, self._functions)
        except NoMutantError as error:
            tell(f"{NO_MUTANT}\t{error}")
            return
        chosen = self.chosen(mutant)
        for name, following in pairwise([*chosen, ""]):
            tell(f"\t{name}\n")  # its current test, in case it ends here
            limit_time(GRACE_S + SLOWER * self._reaches[name].seconds, WAIT_LIMIT_S)
            if self._fails(name, following):
                tell(f"{KILLED}\t{name}")
                return
        tell(f"{SURVIVED}\t{len(chosen)} tests")


def _verdict(ended: Ended) -> Verdict:
    outcome, _, by = (ended.told.splitlines() or ["\t"])[-1].partition("\t")
    if not outcome:  # the mutant ended its process
        outcome = HUNG if ended.ended_by in ENDED_BY_TIMER else KILLED
    return Verdict(outcome, by, round(ended.seconds, 3))
