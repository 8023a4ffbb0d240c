"""The campaign: the right verdict however it ends, and nothing left behind."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.campaign.__main__ import CampaignFailedError, tell
from tests.campaign.campaign import Campaign, CampaignSettings
from tests.campaign.progress import Progress
from tests.campaign.schedule import KINDS
from tests.support.command import WatchedCommand, watched
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

COMMAND = [sys.executable, "-m", "tests.campaign", "--json"]
MINUTES = 5
LONG = ("--agents", "12", "--minutes", str(MINUTES))
SHORT = ("--agents", "8", "--minutes", "0.05", "--kind", "kill-agent", "--kind", "switch-mode", "--kind", "grow-topic")
STEPS = {"switch-mode", "grow-topic"}  # of the short run: the changes that it records as steps
END_S = 240.0
CLEAN_S = 30.0  # the guard ends the remains of a killed campaign


@pytest.fixture
def run(tmp_path: Path) -> Iterator[WatchedCommand]:
    with watched(COMMAND, tmp_path, END_S) as run:
        yield run


def test_a_short_campaign_breaks_no_promise(run: WatchedCommand, tmp_path: Path) -> None:
    events = tmp_path / "events"
    running = run.begin(*SHORT, "--events", str(events))
    output, _ = running.communicate(timeout=END_S)
    assert running.returncode == 0, run.told()
    document = json.loads(output)
    assert document["ok"]
    assert document["records"]["produced"] == document["records"]["delivered"] > 0
    steps = [event for event in events_in(events) if event["kind"] == "step"]
    assert [step["number"] for step in steps] == list(range(1, len(steps) + 1))
    assert {step["name"] for step in steps} == STEPS & {fault["kind"] for fault in document["faults"]} != set()
    assert run.left() == []
    expect_that_a_second_owner_is_told(events, tmp_path)


def expect_that_a_second_owner_is_told(events: Path, folder: Path) -> None:
    """Plant an event in which a consumer starts a partition that another one has just started."""
    started = next(event for event in events_in(events) if event["kind"] == "fetcher_started")
    planted = {**started, "member": "planted", "mono_us": started["mono_us"] + 1}
    (events / "planted-1.jsonl").write_text(json.dumps(planted) + "\n")
    logs = folder / "logs"
    logs.mkdir()
    (logs / "proxy.log").touch()
    settings = CampaignSettings(0, 1, 8, tuple(KINDS), events, keep=False)
    with Progress(to_stderr=True) as progress:
        outcome = Campaign(settings, progress).judge(logs, events, {})
    kept = Path(outcome.folder or "")
    with pytest.raises(CampaignFailedError, match=re.escape(f"events and logs are in {kept}")):
        tell(outcome, as_json=True)
    document = json.loads((kept / "campaign.json").read_text())
    assert (kept / "proxy.log").exists()
    shutil.rmtree(kept)
    assert not document["ok"]
    assert document["overlaps"] > 0
    assert any("planted" in problem for problem in document["problems"])


def events_in(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]  # the last line may be incomplete


@pytest.mark.long
def test_five_minutes_break_no_promise(run: WatchedCommand) -> None:
    running = run.begin(*LONG, "--seed", "11")
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
    assert run.left() == []


@pytest.mark.long
def test_an_interrupt_ends_it_with_the_verdict_so_far(run: WatchedCommand) -> None:
    running = run.begin(*LONG)
    run.wait_for("round 1:")
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=END_S)
    assert running.returncode == 0, run.told()
    document = json.loads(output)
    assert document["ok"]
    assert document["faults"]
    assert document["records"]["lost"] == 0
    assert run.left() == []


@pytest.mark.long
def test_a_second_interrupt_ends_it_at_once(run: WatchedCommand) -> None:
    running = run.begin(*LONG)
    run.wait_for("round 1:")
    running.send_signal(signal.SIGINT)
    run.wait_for("again: end at once")
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=END_S)
    assert running.returncode == 130
    assert output == ""
    assert run.told().splitlines()[-1] == "Error: interrupted"
    assert run.left() == []


@pytest.mark.long
def test_a_campaign_that_is_killed_leaves_nothing(run: WatchedCommand) -> None:
    running = run.begin(*LONG)
    run.wait_for("round 1:")
    running.kill()
    running.communicate(timeout=END_S)
    wait_until(lambda: not run.left(), lambda: str([process.cmdline() for process in run.processes()]), CLEAN_S)
