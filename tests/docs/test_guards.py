"""Every promise of the reliability page names a check that exists."""

from __future__ import annotations

import re

import pytest

from tests.mutations.bugs import MUTATIONS
from tests.style.sources import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text()
SECTION = PAGE.partition("## What guards each promise in a hostile world")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (.+) \| (.+) \|$", SECTION, re.MULTILINE)
GUARDED = [row for row in ROWS if row[1] != "guarded by"]
TESTS = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
BUGS = {mutation.name for mutation in MUTATIONS}


def test_promises_of_coordinator_agent_and_tests_are_listed() -> None:
    assert [promise for promise, guard in ROWS if guard == "guarded by"] == [
        f"promise of the {who}" for who in ("coordinator", "agent", "tests")
    ]


@pytest.mark.parametrize(("promise", "guard"), GUARDED, ids=[promise for promise, _ in GUARDED])
def test_a_promise_names_checks_that_exist(promise: str, guard: str) -> None:
    named = set(re.findall(r"`(test_\w+\.py)`", guard)), set(re.findall(r"\*([^*]+)\*", guard))
    assert any(named), promise
    assert named[0] <= TESTS
    assert named[1] <= BUGS
