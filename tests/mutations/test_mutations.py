"""Bugs that are found quickly are looked for at every change; `make mutations` looks for all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutations.bugs import MUTATIONS
from tests.mutations.editing import Edit, StaleEditError
from tests.mutations.hunting import hunt

QUICK_SEEDS = 5
PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"


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


def test_an_edit_that_does_not_fit_is_refused() -> None:
    with pytest.raises(StaleEditError, match=r"apply: 'no such words' is not in its source"):
        Edit(Edit, "apply", "no such words", "").apply()


def test_names_are_unique() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


def test_a_name_that_is_unknown_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutations", "nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.endswith("no mutation is named like nonsense; --list prints all\n")
