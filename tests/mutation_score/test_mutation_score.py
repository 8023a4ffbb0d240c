"""The parts of a run (changes, ends of forks, memory), and a short run to its verdict."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.progress import Progress

from tests.mutation_score import verdicts
from tests.mutation_score.__main__ import judged, main, tell
from tests.mutation_score.catalogue import PACKAGES, ROOT, Mutant, mutants_of
from tests.mutation_score.forks import Tell, in_forks, limit_time
from tests.mutation_score.laboratory import (
    HUNG,
    KILLED,
    NEAREST,
    SURVIVED,
    WIDER,
    Laboratory,
    Reach,
    Verdict,
    paths_for,
)
from tests.mutation_score.report import Score
from tests.mutation_score.swapping import NoMutantError, imported_functions, swap
from tests.mutation_score.typed import refused
from tests.mutation_score.verdicts import Memory, Reason, reason_for, reasons
from zkrebalancer.localcluster.processes import began
from zkrebalancer.protocol.numbers import decimal

FIXED = ("--package", "observe", "--nearest", "--mutants", "4", "--seed", "2")


def test_a_short_run_and_its_verdict(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.mutation_score", *FIXED, "--json", "--floor", "50", "--state"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False, cwd=ROOT)

    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert (document["seed"], document["drawn"], document["tried"]) == (2, 4, 4)
    assert 50 <= document["noticed_percent"] <= 100
    assert document["packages"]["observe"]["mutants"] > 500
    assert len((tmp_path / "verdicts.jsonl").read_text().splitlines()) == 4


def test_what_is_known_is_not_tried_again(tmp_path: Path) -> None:
    known, new = mutants_in("def f():\n    return 1 + 2\n")[:2]
    memory = Memory(tmp_path, "tests")
    memory.keep(known, verdict(KILLED))
    laboratory = Laboratory(cast("pytest.Session", SimpleNamespace(items=[])), [], 1)

    found = dict(judged(laboratory, memory, [known, new], 1, Progress(disable=True)))

    assert found[known.key] == verdict(KILLED)
    assert found[new.key].outcome == "no mutant"  # the module was not imported
    assert memory.verdicts() == found
    assert len((tmp_path / "verdicts.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(("floor", "code"), [(50, 0), (51, 1)])
def test_the_floor_decides(floor: float, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    killed, survived = mutants_in("def f(a):\n    return a + 1\n")[:2]
    score = Score(0, {"observe": 2}, 2, [(killed, verdict(KILLED)), (survived, verdict(SURVIVED))])

    assert tell(score, floor, as_json=False) == code
    told = capsys.readouterr()
    assert "observe" in told.out
    assert told.err == ("Error: 50.0 % were noticed, 51 % are wanted\n" if code else "")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--mutants", "0"), "--mutants has to be at least 1"),
        (("--floor", "101"), "--floor has to be from 0 to 100"),
        (("--minutes", "0"), "--minutes has to be more than 0"),
        (("--package", "nonsense"), "argument --package: invalid choice: 'nonsense'"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: tuple[str, ...], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--state", str(tmp_path)])
    assert complaint in capsys.readouterr().err.splitlines()[-1]


def mutants_in(text: str) -> list[Mutant]:
    return list(mutants_of("observe", "some/module.py", text))


def test_what_is_changed_and_what_is_left_alone() -> None:
    text = '''
def f(a: int = 1) -> "int":
    """A text."""
    logger.info("a text %d", a)
    text = "a text with spaces"
    return len("abc") + (a < 2)
'''
    changes = [mutant.diff[-1] for mutant in mutants_in(text)]

    assert sorted(changes) == [
        '+def f(a: int = 2) -> "int":',
        '+return len("abc") + (a < 3)',
        '+return len("abc") + (a <= 2)',
        '+return len("abc") - (a < 2)',
        "+text = None",
    ]


def test_whether_a_zip_is_strict_is_left_alone() -> None:
    changes = [mutant.diff[-1] for mutant in mutants_in("def f(a, b):\n    return zip(a, b, strict=True)\n")]
    assert changes
    assert all("strict=True)" in change for change in changes)


def test_a_mutant_keeps_its_key_until_its_function_changes() -> None:
    def keys(text: str) -> list[str]:
        return [mutant.key for mutant in mutants_in(text)]

    before = keys("def f():\n    return 1\n")
    assert keys("X = 2\n\n\ndef g():\n    pass\n\n\ndef f():\n    return 1\n") == before
    assert keys("def f():\n    return 2\n") != before


def mutants_of_file(path: str, function: str) -> list[Mutant]:
    found = mutants_of("observe", path, (ROOT / path).read_text())
    return [mutant for mutant in found if mutant.function == function]


def test_a_mutant_is_put_into_the_code_wherever_that_is_used() -> None:
    is_number = "(text.isascii() and text.isdigit())"

    def decimal_or_error(text: str) -> str:
        try:
            return repr(decimal(text))
        except ValueError as error:
            return type(error).__name__

    functions = imported_functions((PACKAGES["protocol"],))
    path = "zkrebalancer/protocol/numbers.py"
    change = next(
        m for m in mutants_of_file(path, "decimal") if m.diff[-1] == f"+if not {is_number} and len(text) > MAX_DIGITS:"
    )

    def after(mutant: Mutant) -> str:
        swap(mutant, functions)
        return decimal_or_error("x")

    told = [ended.told for ended in in_forks([change], lambda one, tell: tell(after(one)), 1)]
    assert (told, decimal_or_error("x")) == (["ValueError"], "None")


def test_a_change_that_does_not_compile_is_no_mutant() -> None:
    broken = mutants_in("def f():\n    return 1\n")[0]
    with pytest.raises(NoMutantError, match="nothing that runs is changed"):
        swap(broken, {})


def test_how_a_fork_ends() -> None:
    def work(task: str, tell: Tell) -> None:
        tell(f"{task} begins\n")
        if task == "spins":
            limit_time(0.01, 60)
            while True:
                pass
        if task == "waits":
            limit_time(60, 0.01)
            signal.pause()
        if task == "exits":
            os._exit(3)
        if task == "raises":
            raise KeyboardInterrupt
        tell("and ends")

    tasks = ["spins", "waits", "exits", "raises", "works"]
    ended = {tasks[one.number]: (one.told.splitlines()[-1], one.ended_by) for one in in_forks(tasks, work, 2)}

    assert ended == {
        "spins": ("spins begins", signal.SIGPROF),
        "waits": ("waits begins", signal.SIGALRM),
        "exits": ("exits begins", 0),
        "raises": ("raises begins", 0),
        "works": ("and ends", 0),
    }


def test_what_a_fork_started_ends_with_it() -> None:
    def work(_task: int, tell: Tell) -> None:
        tell(str(subprocess.Popen(["sleep", "600"]).pid))

    (ended,) = in_forks([0], work, 1)

    end = time.monotonic() + 30
    while began(int(ended.told)) is not None:
        assert time.monotonic() < end
        time.sleep(0.01)


def verdict(outcome: str) -> Verdict:
    return Verdict(outcome, "by", 0.1)


def test_what_is_remembered(tmp_path: Path) -> None:
    killed, hung, survived = mutants_in("def f(a):\n    return a + 1 < 2\n")[:3]
    memory = Memory(tmp_path, "tests")
    for mutant, outcome in ((killed, KILLED), (hung, HUNG), (survived, SURVIVED)):
        memory.keep(mutant, verdict(outcome))
    with (tmp_path / "verdicts.jsonl").open("a") as file:
        file.write('{"key": "cut o')

    assert memory.verdicts() == {
        killed.key: verdict(KILLED),
        hung.key: verdict(HUNG),
        survived.key: verdict(SURVIVED),
    }
    assert Memory(tmp_path, "other tests").verdicts().keys() == {killed.key, hung.key}
    memory.forget()
    assert memory.verdicts() == {}


def test_measurements_hold_for_the_files_that_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "ROOT", tmp_path)
    for name in ("test_a.py", "test_b.py", "x.py"):
        (tmp_path / name).write_text(name)
    memory = Memory(tmp_path / "state", "tests")
    first, second = {"test_a.py::one": Reach(0.1, {"x.py": [1]})}, {"test_b.py::two": Reach(0.2, {})}
    memory.keep_reaches(first)
    memory.keep_reaches(second)
    assert memory.reaches() == first | second

    (tmp_path / "x.py").write_text("changed")
    assert memory.reaches() == second
    (tmp_path / "test_b.py").write_text("changed")
    assert memory.reaches() == {}


def test_tests_that_only_a_former_run_has_collected_are_not_tried() -> None:
    """They cannot be run; the fork would end with an error, and the mutant would count as killed."""
    (mutant, *_others) = mutants_in("def f(a):\n    return a + 1\n")
    reach, (ours, others) = Reach(0.1, {mutant.path: [2]}), ("tests/unit/observe/a.py::one", "tests/unit/cli/b.py::two")
    session = cast("pytest.Session", SimpleNamespace(items=[SimpleNamespace(nodeid=ours)]))
    laboratory = Laboratory(session, [], 1)
    laboratory.use({ours: reach, others: reach})
    assert laboratory.chosen(mutant) == [ours]


def test_what_hung_was_noticed_and_what_is_no_mutant_does_not_count() -> None:
    mutants = mutants_in("def f(a):\n    return (a + 1 < 2) or (a > 3) or a == 4\n")
    outcomes = [KILLED, HUNG, SURVIVED, "no mutant"]
    score = Score(0, {"observe": 4}, 4, [(m, verdict(o)) for m, o in zip(mutants, outcomes, strict=False)])

    assert (len(score.counted), len(score.survivors)) == (3, 1)
    assert score.percent() == score.percent("observe") == pytest.approx(200 / 3)
    assert Score(0, {"observe": 0}, 0, []).percent() == 100


def test_a_reason_fits_one_change() -> None:
    first, second = mutants_in("def f(a):\n    return a + 1\n")[:2]
    known = [Reason(first.path, first.function, first.diff, "why")]

    assert (reason_for(first, known), reason_for(second, known)) == ("why", "")


def test_every_reason_says_something() -> None:
    assert all(len(one.reason) > 10 and one.change and (ROOT / one.path).exists() for one in reasons())


def test_each_package_has_tests_that_exist() -> None:
    assert NEAREST.keys() == WIDER.keys() == PACKAGES.keys()
    assert [path for path in paths_for(list(PACKAGES)) if not (ROOT / path).exists()] == []


def test_what_mypy_refuses_is_noticed_but_not_by_tests(tmp_path: Path) -> None:
    found = {mutant.diff[-1]: mutant for mutant in mutants_of_file("zkrebalancer/protocol/numbers.py", "decimal")}
    untyped, other = found["+number = int(None)"], found["+return number if number < maximum else None"]
    answer = refused(untyped, tmp_path)

    assert answer is not None
    assert 'error: No overload variant of "int"' in answer.by
    assert refused(other, tmp_path) is None
    score = Score(0, {"observe": 2}, 2, [(untyped, answer), (other, verdict(SURVIVED))])
    assert (score.percent(), score.percent(by_tests=True)) == (50, 0)
