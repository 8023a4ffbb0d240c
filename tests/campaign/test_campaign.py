"""The campaign itself: that it ends with a verdict, however it is ended, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.campaign.schedule import KINDS
from tests.support.command import WatchedCommand, watched

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

COMMAND = [sys.executable, "-m", "tests.campaign", "--agents", "12", "--json"]
MINUTES = 5
END_S = 240.0
CLEAN_S = 30.0  # the guard ends what a killed campaign has left


@pytest.fixture
def run(tmp_path: Path) -> Iterator[WatchedCommand]:
    with watched(COMMAND, tmp_path, END_S) as run:
        yield run


def test_five_minutes_break_no_promise(run: WatchedCommand) -> None:
    running = run.begin("--minutes", str(MINUTES), "--seed", "11")
    output, _ = running.communicate(timeout=MINUTES * 60 + END_S)
    assert running.returncode == 0, run.told()
    document = json.loads(output)
    assert document["ok"]
    assert document["problems"] == []
    assert document["overlaps"] == 0
    assert document["records"]["produced"] == document["records"]["delivered"] > 5_000
    assert document["rebalances"] > 20
    caused = {fault["kind"] for fault in document["faults"]}
    assert len(caused) > len(KINDS) / 2
    assert document["checks"]
    assert run.is_clean()


def test_an_interrupt_ends_it_with_the_verdict_so_far(run: WatchedCommand) -> None:
    running = run.begin("--minutes", str(MINUTES))
    run.wait_for("round 1:")
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=END_S)
    assert running.returncode == 0, run.told()
    document = json.loads(output)
    assert document["ok"]
    assert document["faults"]
    assert document["records"]["lost"] == 0
    assert run.is_clean()


def test_a_second_interrupt_ends_it_at_once(run: WatchedCommand) -> None:
    running = run.begin("--minutes", str(MINUTES))
    run.wait_for("round 1:")
    running.send_signal(signal.SIGINT)
    run.wait_for("once more: end at once")
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=END_S)
    assert running.returncode == 130
    assert output == ""
    assert run.told().splitlines()[-1] == "Error: interrupted"
    assert run.is_clean()


def test_a_campaign_that_is_killed_leaves_nothing(run: WatchedCommand) -> None:
    running = run.begin("--minutes", str(MINUTES))
    run.wait_for("round 1:")
    running.kill()
    running.communicate(timeout=END_S)
    give_up_at = time.monotonic() + CLEAN_S
    while not run.is_clean():
        assert time.monotonic() < give_up_at, [process.cmdline() for process in run.processes()]
        time.sleep(0.1)
