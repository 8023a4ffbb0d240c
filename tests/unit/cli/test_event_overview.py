"""`zkrebalancer events DIR`: rebalances, causes, pauses and the verdict; what was not recorded is unknown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from tests.unit.observe.history import History, moved
from zkrebalancer.cli.events import events

NAMES = ("produced", "delivered", "lost", "duplicated", "duplicated_outside_crash", "out_of_order", "overlaps")
COORDINATORS = frozenset({"rebalance_requested", "rebalance_planned", "rebalance_finished", "member_joined"})


def planned() -> History:
    """Return a run with a move by a plan, which 2 ms without an owner cost."""
    history = History().add("leader_elected", epoch=1, group=None).add("member_joined", member="a")
    history.requested("c1", "member-joined").planned(1, "c1").finished(1, "c1")
    history.events += [{**event, "mono_us": event["mono_us"] + 10_000} for event in moved().events]
    return history


def run(folder: Path, history: History, kinds: frozenset[str] | None = None, *options: str) -> Result:
    lines = [{**event, "ts_us": 10**15 + event["mono_us"]} for event in history.events]
    kept = [json.dumps(event) for event in lines if kinds is None or event["kind"] in kinds]
    (folder / "one.jsonl").write_text("\n".join(kept) + "\n")
    return CliRunner().invoke(events, [str(folder), *options])


def document(folder: Path, history: History, kinds: frozenset[str] | None = None) -> dict[str, Any]:
    result = run(folder, history, kinds, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_rebalances_causes_and_the_verdict_are_shown(tmp_path: Path) -> None:
    result = run(tmp_path, planned())
    assert result.exit_code == 0, result.output
    for text in ("member-joined", "31.0", "lost 0", "delivered 10", "one owner: yes", "verdict: no problem found"):
        assert text in result.stdout, text
    found = document(tmp_path, planned())
    assert [found[name] for name in NAMES] == [10, 10, 0, 0, 0, 0, 0]
    assert (found["ok"], found["converged"], found["clocks"]) == (True, True, 1)
    assert found["causes"] == [
        {"group": "g", "cause": "member-joined", "rebalances": 1, "moved": 1, "pause_ms_max": 0.0}
    ]
    assert found["rebalances"][0]["planned_at_us"] == 10**15 + 4_000


def test_what_was_not_recorded_is_unknown(tmp_path: Path) -> None:
    """In `Overview.figures`, return 0; in `Run.verdict`, judge owners that nobody recorded."""
    found = document(tmp_path, planned(), COORDINATORS)
    assert {found[name] for name in NAMES} == {None}
    assert (found["ok"], found["converged"], found["problems"]) == (True, None, [])
    assert found["rebalances"][0]["pause_ms_max"] == 0.001  # as the coordinator measured it
    text = run(tmp_path, planned(), COORDINATORS).stdout
    assert "lost unknown" in text
    assert "one owner: unknown" in text
    history = planned()
    for event in history.events:
        if event["kind"] == "fetcher_started":
            event |= {"cause_id": None, "generation": None}
    assert document(tmp_path, history)["rebalances"][0]["pause_ms_max"] == 0.001  # starts that name no plan
    without_producer = document(tmp_path, moved(), frozenset({"fetcher_started", "fetcher_stopped", "delivered"}))
    assert [without_producer[name] for name in NAMES] == [None, 10, None, 0, 0, 0, 0]
    assert "rebalances: unknown" in run(tmp_path, moved()).stdout


def test_the_files_of_some_agents_say_nothing_about_all(tmp_path: Path) -> None:
    """In `_Seen.silent_members`, return 0: records of the others would be lost, and their partitions without owner."""
    history = planned().produced(10, 19)
    plan = next(event for event in history.events if event["kind"] == "rebalance_planned")
    plan["partition_count"] = 2
    history.events += [
        {**history.events[-1], "kind": "command_acked", "group": "g", "member": member} for member in "abc"
    ]
    history.add("topic_deleted", group=None, topic="t")
    found = document(tmp_path, history)
    assert ({found[name] for name in NAMES}, found["converged"]) == ({None}, None)
    assert (found["members_without_events"], found["problems"]) == (1, [])
    assert found["rebalances"][0]["pause_ms_max"] == 0.001  # as the coordinator measured it
    assert "members without events: 1;" in run(tmp_path, history).stdout
    history.add("scenario", name="scale-out")  # an experiment
    assert document(tmp_path, history)["members_without_events"] == 0


def test_a_member_without_events_hides_no_loss_of_other_groups(tmp_path: Path) -> None:
    """In `overview`, pass no `silent_groups` but none of the losses; in `_Seen.add`, leave `_empty` as it is."""
    history = planned().produced(10, 19)
    of_members = [
        event for event in history.events if event["kind"] in {"fetcher_started", "fetcher_stopped", "delivered"}
    ]
    history.events += [{**event, "group": "h"} for event in of_members]
    sent = {**history.events[-1], "kind": "command_sent", "group": "h", "command_id": "x", "partition_count": 0}
    history.events += [sent, {**sent, "kind": "command_acked", "member": "fenced"}]
    history.events.append({**sent, "kind": "command_acked", "group": "g", "command_id": "y", "member": "silent"})
    history.add("topic_deleted", group=None, topic="t")
    found = document(tmp_path, history)
    assert found["members_without_events"] == 1
    assert (len(found["problems"]), found["ok"]) == (1, False)
    assert found["problems"][0].startswith("group h, t/0: 10 records lost")


def test_problems_are_told(tmp_path: Path) -> None:
    history = planned().delivered("b", 5, 9)
    result = run(tmp_path, history)
    assert (result.exit_code, "verdict: 2 problems" in result.stdout) == (0, True)
    assert "again without a crash" in result.stderr


def test_keys_that_are_not_required_may_be_of_any_type(tmp_path: Path) -> None:
    """In `RebalanceLog`, `Run` or `overview`, take them for what an event of ours has: they end the command."""
    history = planned()
    for event in history.events:
        odd = {"pause_us_max": "x", "shard": [1], "command_id": [], "generation": event.get("generation")}
        event |= {key: value for key, value in odd.items() if key != "shard" or event["kind"].startswith("leader_")}
    history.add("leader_resigned", epoch=1, group=None, shard={}).add("command_acked", group=["g"], member={})
    for event in history.events[-5:]:
        if event["kind"] == "fetcher_started":
            event["cause_id"] = ["c1"]
    assert document(tmp_path, history)["ok"] is True
