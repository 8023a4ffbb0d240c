"""The simulation finds the bugs that need few seeds; `make mutations` looks for all."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutations import editing
from tests.mutations.__main__ import main
from tests.mutations.bugs import MUTATIONS
from tests.mutations.editing import Edit, StaleEditError
from tests.mutations.hunting import Hunt, hunt

QUICK_SEEDS = 5
PROTOCOL = Path(__file__).parents[2] / "docs" / "reference" / "protocol.md"


@pytest.mark.parametrize(
    "number",
    [n for n, mutation in enumerate(MUTATIONS) if mutation.seeds <= QUICK_SEEDS],
    ids=lambda number: MUTATIONS[number].name,
)
def test_the_bug_is_found(number: int) -> None:
    assert hunt(number).seed is not None


def test_every_rule_is_switched_off() -> None:
    rules = {int(number) for number in re.findall(r"^\| (\d+) \|", PROTOCOL.read_text(), re.MULTILINE)}

    assert rules <= {mutation.rule for mutation in MUTATIONS} - {None}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_edits_fit_the_code(mutation: object) -> None:
    for edit in mutation.edits:  # type: ignore[attr-defined]
        assert callable(edit.apply())


def test_an_edit_that_fits_nothing_is_refused() -> None:
    with pytest.raises(StaleEditError, match=r"Group.load: 'no such words' is in the source of no function"):
        Edit("Group.load", "no such words", "").function()
    with pytest.raises(StaleEditError, match=r"Group.no_such_name: '' is in the source of no function"):
        Edit("Group.no_such_name", "", "return").function()


def test_a_stale_edit_names_the_most_similar_line() -> None:
    stale = Edit("Group.handle", "self._departures.evict_late(consumer, reason)", "pass")
    with pytest.raises(
        StaleEditError, match=r"no function; most alike: 'self\._departures\.evict\(consumer, reason, .*'"
    ):
        stale.function()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("b=___", ["b=g(1, [2, 3])"]),
        ("a=___, b", ["a=x.y + 1, b"]),
        ("c = ___", ["c = f(a=x.y + 1, b=g(1, [2, 3]))"]),
        ("if ___:", ["if c == 1:"]),
        ("___ == 1", ["c == 1"]),
        ("d=___", []),
        ("g(___)", []),  # two arguments are no expression
    ],
)
def test_three_underscores_stand_for_any_expression(words: str, found: list[str]) -> None:
    source = "def h(x):\n    c = f(a=x.y + 1, b=g(1, [2, 3]))\n    if c == 1:\n        return c\n"
    matches = [source[begin:end] for begin, end in editing._found(source, words)]
    assert [match for match in matches if match in found] == found
    assert found or not matches


def test_an_edit_whose_words_are_in_several_functions_is_refused() -> None:
    with pytest.raises(StaleEditError, match=r"Group.no_such_name: 'return' is in the source of .*, .*"):
        Edit("Group.no_such_name", "return", "pass").function()


def test_a_function_that_was_renamed_is_found_by_the_words() -> None:
    (edit,) = next(mutation.edits for mutation in MUTATIONS if mutation.name == "starts ignore a pause")

    assert Edit("Nobody.nothing", edit.old, edit.new).function() == edit.function()


def test_line_breaks_and_quotes_and_comments_do_not_count() -> None:
    (edit,) = next(mutation.edits for mutation in MUTATIONS if mutation.name == "a consumer that does not poll stays")
    assert '"lost", ask' in edit.old
    spread = edit.old.replace('"lost", ask', "\n    'lost',  # a comment\n    ask")

    assert Edit(edit.place, spread, edit.new).function() == edit.function()


def test_names_are_unique() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


def test_the_command_line_says_that_a_bug_was_found() -> None:
    name = min((mutation for mutation in MUTATIONS if not mutation.redundant), key=lambda mutation: mutation.seeds).name
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutations", name, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["mutations"]
    assert (found["name"], found["ok"]) == (name, True)
    assert found["found_by_seed"] is not None


def test_the_command_line_fails_where_a_bug_is_not_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    number = next(number for number, mutation in enumerate(MUTATIONS) if not mutation.redundant)
    monkeypatch.setattr("tests.mutations.__main__._hunt_all", lambda _chosen, _seeds: [Hunt(number, None, "")])
    assert main([MUTATIONS[number].name]) == 1
    assert capsys.readouterr().err.endswith(f"\nError: not as stated: {MUTATIONS[number].name}\n")


def test_an_interrupted_run_prints_what_was_hunted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def _hunt_all(chosen: list[int], _seeds: int | None) -> Iterator[Hunt]:
        yield Hunt(chosen[1], 0, "lease")
        raise KeyboardInterrupt

    monkeypatch.setattr("tests.mutations.__main__._hunt_all", _hunt_all)
    assert main(["--json", *(mutation.name for mutation in MUTATIONS[:3])]) == 1
    printed = capsys.readouterr()
    assert [one["name"] for one in json.loads(printed.out)["mutations"]] == [MUTATIONS[1].name]
    assert printed.err.splitlines() == [
        f"{MUTATIONS[1].name}: found by seed: 0 (as stated)",
        "Error: interrupted; 1 of 3 bugs were hunted",
    ]


def test_a_name_that_is_unknown_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["nonsense"])
    assert capsys.readouterr().err.endswith("no mutation is named like nonsense; --list prints all\n")
