"""The proof of exactly once: a short run, its verdict however it ends, and what it compares."""

from __future__ import annotations

import json
import random
import signal
import sys
from array import array
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.exactly_once import fates, own_state
from tests.exactly_once.groups import CONTROLS, GROUPS, controls_of
from tests.exactly_once.judging import Judgement, judge
from tests.exactly_once.own_state import Count
from tests.support.command import WatchedCommand, watched

pytestmark = pytest.mark.timeout(900)

COMMAND = [sys.executable, "-m", "tests.exactly_once", "--json"]
SMALL = ("--sink", "sqlite", "--members", "2", "--rate", "100")
# One short run a day, with the seed of the day; `make test-long` has them all.
SHORT = (("incremental", "state"), ("classic",), ("eager",), ("kafka",))
TODAY = datetime.now(UTC).date().toordinal()
END_S = 400.0
LOG = {0: array("q", [10, 11, 12]), 1: array("q", [20])}
RIGHT = [(0, 0, 10), (0, 1, 11), (0, 2, 12), (1, 0, 20)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[WatchedCommand]:
    with watched(COMMAND, tmp_path, END_S) as run:
        yield run


def test_a_short_run_finds_only_the_controls(run: WatchedCommand, tmp_path: Path) -> None:
    expect_proof(run, tmp_path, SHORT[TODAY % len(SHORT)])


@pytest.mark.long
@pytest.mark.parametrize("groups", SHORT)
def test_short_runs_of_all_groups(run: WatchedCommand, tmp_path: Path, groups: tuple[str, ...]) -> None:
    expect_proof(run, tmp_path, groups)


def expect_proof(run: WatchedCommand, folder: Path, groups: tuple[str, ...]) -> None:
    """Expect that a short run proves these groups."""
    totals = folder / "totals.json"
    chosen = [text for group in groups for text in ("--group", group)]
    running = run.begin(*SMALL, *chosen, "--minutes", "0.1", "--totals", str(totals), "--seed", str(TODAY))
    output, _ = running.communicate(timeout=END_S)
    assert running.returncode == 0, run.told()
    document = json.loads(output)
    assert document["ok"]
    assert document["controls_found"] == dict.fromkeys(controls_of(groups), True)
    assert document["sinks"].keys() == set(groups)
    assert all(sink["ok"] and sink["stored"] == document["records"] > 0 for sink in document["sinks"].values())
    assert document["kills"] > 0
    assert json.loads(totals.read_text()) == document["totals"]
    assert document["totals"]["kills"] == document["kills"]
    assert run.left() == []


def test_every_group_is_in_a_short_run_and_every_control_beside_one() -> None:
    assert {group for groups in SHORT for group in groups} == GROUPS.keys()
    assert set(controls_of(GROUPS)) == CONTROLS.keys()


@pytest.mark.long
def test_an_interrupt_ends_it_with_the_verdict_so_far(run: WatchedCommand) -> None:
    running = run.begin("--minutes", "30")
    for control in CONTROLS:
        run.wait_for(f"control {control}: results are doubled")
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=END_S)
    assert running.returncode == 0, run.told()
    document = json.loads(output)
    assert document["ok"]
    assert document["sink"] == "postgres"
    assert all(sink["ok"] for sink in document["sinks"].values())
    assert run.left() == []


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (RIGHT, Judgement(4, 4)),
        (RIGHT[1:], Judgement(4, 3, lost=1)),
        ([*RIGHT, (0, 1, 11)], Judgement(4, 5, doubled=1)),
        ([RIGHT[1], RIGHT[0], *RIGHT[2:]], Judgement(4, 4, out_of_order=1)),
        ([*RIGHT[:3], (1, 0, 21)], Judgement(4, 4, lost=1, wrong=1)),
        ([*RIGHT, (1, 1, 0), (2, 0, 0), (0, -1, 12)], Judgement(4, 7, wrong=3)),
        ([], Judgement(4, 0, lost=4)),
    ],
)
def test_every_difference_is_found(rows: list[tuple[int, int, int]], found: Judgement) -> None:
    assert judge(LOG, rows) == found
    assert found.is_exact == (rows == RIGHT)


@pytest.mark.parametrize("kind", list(fates.BY_KIND))
def test_every_fate_ends_in_a_kill_and_every_step_is_drawn(kind: str) -> None:
    steps, random_ = fates.BY_KIND[kind], random.Random(1)
    drawn = [steps.draw(random_) for _ in range(2_000)]
    assert all(one[-1].action == fates.KILL for one in drawn)
    assert {one[-1].step for one in drawn} == {*steps.often, *steps.rare}
    assert {one[0].step for one in drawn if len(one) == 2} == set(steps.suspended)
    assert all(fates.parse(str(fate)) == fate for one in drawn for fate in one)


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ({0: Count(3, 33), 1: Count(1, 20)}, Judgement(4, 4)),
        ({0: Count(2, 22), 1: Count(1, 20)}, Judgement(4, 3, lost=1)),
        ({0: Count(4, 44), 1: Count(1, 20)}, Judgement(4, 5, doubled=1)),
        ({0: Count(3, 34), 1: Count(1, 20)}, Judgement(4, 4, wrong=1)),
        ({0: Count(3, 33, 12, 1), 1: Count(1, 20)}, Judgement(4, 4, out_of_order=1)),
        ({0: Count(3, 33), 1: Count(1, 20), 2: Count(1, 0)}, Judgement(4, 5, doubled=1)),
        ({}, Judgement(4, 0, lost=4)),
    ],
)
def test_every_difference_of_a_state_is_found(counts: own_state.Counts, found: Judgement) -> None:
    assert own_state.judge(LOG, counts) == found


def test_a_number_that_is_not_above_the_one_before_is_out_of_order() -> None:
    count = Count()
    for number in (4, 5, 5, 3, 6):
        count = count.with_record(number)
    assert count == Count(5, 23, 6, 2)
    assert count.with_other(Count(1, 2, 9, 1)) == Count(6, 25, 9, 3)


def test_a_file_of_something_else_is_refused(run: WatchedCommand, tmp_path: Path) -> None:
    file = tmp_path / "totals.json"
    file.write_text("[]")
    running = run.begin("--totals", str(file))
    running.communicate(timeout=END_S)
    assert running.returncode == 2
    assert "no totals of earlier runs" in run.lines()[-1]
