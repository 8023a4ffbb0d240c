"""The proof of exactly once: a short run, its verdict however it ends, and what it compares."""

from __future__ import annotations

import json
import random
import signal
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exactly_once import fates, own_state
from tests.exactly_once.judging import Judgement, judge
from tests.exactly_once.run import CONTROLS
from tests.support.command import WatchedCommand, watched

pytestmark = pytest.mark.timeout(900)

COMMAND = [sys.executable, "-m", "tests.exactly_once", "--json"]
GROUPS = ("incremental", "state")
CHOSEN = ("--group", GROUPS[0], "--group", GROUPS[1])
SMALL = ("--sink", "sqlite", "--members", "2", "--rate", "100", *CHOSEN)
END_S = 400.0
LOG = {0: array("q", [10, 11, 12]), 1: array("q", [20])}
RIGHT = [(0, 0, 10), (0, 1, 11), (0, 2, 12), (1, 0, 20)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[WatchedCommand]:
    with watched(COMMAND, tmp_path, END_S) as run:
        yield run


def test_a_short_run_finds_only_the_controls(run: WatchedCommand, tmp_path: Path) -> None:
    totals = tmp_path / "totals.json"
    running = run.begin(*SMALL, "--minutes", "0.1", "--totals", str(totals))
    output, _ = running.communicate(timeout=END_S)
    assert running.returncode == 0, run.told()
    document = json.loads(output)
    assert document["ok"]
    assert document["controls_found"] == dict.fromkeys(CONTROLS, True)
    assert document["sinks"].keys() == set(GROUPS)
    assert all(sink["ok"] and sink["stored"] == document["records"] > 0 for sink in document["sinks"].values())
    assert document["kills"] > 0
    assert json.loads(totals.read_text()) == document["totals"]
    assert document["totals"]["kills"] == document["kills"]
    assert run.left() == []


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


def test_every_fate_ends_in_a_kill_and_every_step_is_drawn() -> None:
    random_ = random.Random(1)
    drawn = [fates.draw(random_) for _ in range(2_000)]
    assert all(one[-1].action == fates.KILL for one in drawn)
    assert {one[-1].step for one in drawn} == {*fates.SINK_STEPS, *fates.AGENT_STEPS}
    assert {one[0].step for one in drawn if len(one) == 2} == set(fates.ZOMBIE_STEPS)
    assert all(fates.parse(str(fate)) == fate for one in drawn for fate in one)


def test_members_with_a_state_of_their_own_have_other_steps() -> None:
    random_ = random.Random(1)
    drawn = [fates.draw_for_state(random_) for _ in range(2_000)]
    assert {one[-1].step for one in drawn} == {*fates.STATE_STEPS, *fates.AGENT_STEPS}
    assert {one[0].step for one in drawn if len(one) == 2} == set(fates.STATE_ZOMBIE_STEPS)


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ({0: [3, 33], 1: [1, 20]}, Judgement(4, 4)),
        ({0: [2, 22], 1: [1, 20]}, Judgement(4, 3, lost=1)),
        ({0: [4, 44], 1: [1, 20]}, Judgement(4, 5, doubled=1)),
        ({0: [3, 34], 1: [1, 20]}, Judgement(4, 4, wrong=1)),
        ({0: [3, 33], 1: [1, 20], 2: [1, 0]}, Judgement(4, 5, doubled=1)),
        ({}, Judgement(4, 0, lost=4)),
    ],
)
def test_every_difference_of_a_state_is_found(counts: own_state.Counts, found: Judgement) -> None:
    assert own_state.judge(LOG, counts) == found


def test_a_file_of_something_else_is_refused(run: WatchedCommand, tmp_path: Path) -> None:
    file = tmp_path / "totals.json"
    file.write_text("[]")
    running = run.begin("--totals", str(file))
    running.communicate(timeout=END_S)
    assert running.returncode == 2
    assert "no totals of earlier runs" in run.lines()[-1]
