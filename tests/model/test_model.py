"""The model's runner parses spin's output, and the model is searched with one fault."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.model import spin
from tests.model.__main__ import TRAILS, Row, main
from tests.model.checks import PROPERTIES, REFUTATIONS, Check, Search

NEEDED_RULE = "start-before-stop-ack"
SEARCHED = """
(Spin Version 6.5.2 -- 6 December 2019)
	+ Partial Order Reduction

State-vector 116 byte, depth reached 303, errors: 0
  6763708 states, stored
1.7538567e+07 states, matched
  848.424	total actual memory usage

pan: elapsed time 37.4 seconds
"""
REPLAYED = """ltl settles: <> ([] (1))
coordinator 1 leads
Never claim moves to line 3	[(1)]
consumer 1 acknowledges the start of {3}
=> two consumers own {2}
spin: rebalance.pml:112, Error: assertion violated
coordinator 0 leads
"""


def test_figures_are_parsed() -> None:
    figures = spin.parse_output(SEARCHED)
    assert figures == spin.Figures(6_763_708, 303, 0, 848.424, 37.4, is_complete=True)


@pytest.mark.parametrize("warning", ["Warning: Search not completed", "error: max search depth too small"])
def test_an_incomplete_search_is_not_a_proof(warning: str) -> None:
    figures = spin.parse_output(f"{warning}\n{SEARCHED}")
    assert not figures.is_complete
    assert not Row(PROPERTIES[0], spin.Result(figures, ())).is_as_expected


def test_output_without_figures_is_an_error() -> None:
    with pytest.raises(spin.SpinError, match="out of memory"):
        spin.parse_output("pan: out of memory")


def test_a_replay_becomes_a_story_up_to_the_broken_property() -> None:
    assert spin.parse_replay(REPLAYED) == (
        "coordinator 1 leads",
        "consumer 1 acknowledges the start of both partitions",
        "=> two consumers own partition 1",
    )


def test_without_spin_the_packages_to_install_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _program: None)
    ran = CliRunner().invoke(main, ["--quick"])
    assert (ran.exit_code, ran.stderr) == (2, "the model needs spin and gcc (Debian: apt-get install spin gcc)\n")


def test_every_macro_is_searched_and_every_counterexample_is_stored() -> None:
    found = set(re.findall(r"(?:#ifdef |#ifndef |defined\()(\w+)", spin.MODEL.read_text()))
    used = {macro for check in PROPERTIES + REFUTATIONS for macro in check.macros}
    assert found == used | {"FAULTS"}
    assert {path.stem for path in TRAILS.iterdir()} == {check.name for check in REFUTATIONS}


@pytest.fixture(scope="module")
def installed() -> None:
    if spin.missing_packages() and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "--yes", *spin.missing_packages()], capture_output=True, check=False)
    if spin.missing_packages():
        pytest.skip(f"the model needs: apt-get install {' '.join(spin.missing_packages())}")


@pytest.mark.usefixtures("installed")
def test_the_protocol_is_safe_and_needs_one_of_its_rules() -> None:
    holds = Row(PROPERTIES[0], spin.run(Check("safe", (), 1, Search.SAFETY)))
    assert holds.is_as_expected
    assert holds.result.figures.states > 10_000
    refuted = CliRunner().invoke(main, [NEEDED_RULE, "--json"])
    assert refuted.exit_code == 0, refuted.output
    (check,) = json.loads(refuted.stdout)["checks"]
    assert check["ok"]
    assert check["story"][-1].startswith("=> two consumers own")


def test_a_property_that_does_not_hold_is_the_verdict_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    (rule,) = [check for check in REFUTATIONS if check.name == NEEDED_RULE]
    found = spin.Result(spin.parse_output(SEARCHED.replace("errors: 0", "errors: 1")), ("=> two consumers own {2}",))
    monkeypatch.setattr(spin, "missing_packages", list)
    monkeypatch.setattr(spin, "run", lambda _check: found)
    assert CliRunner().invoke(main, [rule.name]).exit_code == 0  # without its rule the property must not hold
    monkeypatch.setattr("tests.model.__main__.PROPERTIES", (rule,))
    monkeypatch.setattr("tests.model.__main__.REFUTATIONS", ())
    failed = CliRunner().invoke(main, [rule.name])
    assert (failed.exit_code, failed.stdout.splitlines()[-1]) == (1, "0 of 1 are as expected")


def test_an_unknown_name_is_refused() -> None:
    refused = CliRunner().invoke(main, ["nonsense"])
    assert refused.exit_code == 2
    assert "no check has one of these names: nonsense" in refused.stderr


@pytest.mark.usefixtures("installed")
def test_a_syntax_error_in_the_model_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pml"
    broken.write_text("init { nonsense }")
    monkeypatch.setattr(spin, "MODEL", broken)
    with pytest.raises(spin.SpinError, match="spin: "):
        spin.run(PROPERTIES[0])


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.usefixtures("installed")
def test_the_quick_checks() -> None:
    ran = CliRunner().invoke(main, ["--quick"])
    assert ran.exit_code == 0, ran.output
