"""What an agent writes down about its records."""

from __future__ import annotations

import json
from pathlib import Path

from consumer_agent.runtime.out_of_range import OutOfRange
from consumer_agent.runtime.record_buffer import Run
from consumer_agent.runtime.telemetry import Telemetry
from tests.unit.consumer_agent.messages import messages
from zkrebalancer.observe.events import EventLog


def run_of(*offsets: int) -> Run:
    return Run("t", 0, 3, messages(("t", 0), offsets))


def delivered(directory: Path, *runs: Run) -> list[tuple[int, int, int]]:
    telemetry = Telemetry(EventLog(directory, "agent"), "g")
    telemetry.delivered(runs, 1)
    telemetry.close()
    (file,) = directory.glob("*.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    return [(event["first_offset"], event["last_offset"], event["count"]) for event in events]


def test_a_delivery_is_one_event_per_partition(tmp_path: Path) -> None:
    assert delivered(tmp_path, run_of(5, 6, 7), run_of(0)) == [(5, 7, 3), (0, 0, 1)]


def test_offsets_that_were_not_returned_are_not_claimed(tmp_path: Path) -> None:
    """Else the checker would not see a record that the agent has lost in the middle of a batch."""
    assert delivered(tmp_path, run_of(0, 1, 4, 6, 7)) == [(0, 1, 2), (4, 4, 1), (6, 7, 2)]


def test_one_missing_offset_is_not_claimed_either(tmp_path: Path) -> None:
    """In `_unbroken`, look for gaps only if more than one offset is missing."""
    assert delivered(tmp_path, run_of(0, 1, 3)) == [(0, 1, 2), (3, 3, 1)]


def test_a_reset_is_two_events_and_where_the_application_has_to_say_it_is_one(tmp_path: Path) -> None:
    telemetry = Telemetry(EventLog(tmp_path, "agent"), "g")
    telemetry.member = "c-1"
    telemetry.out_of_range(OutOfRange(("t", 3), 90, 100, 200, 100))
    telemetry.out_of_range(OutOfRange(("t", 4), 90, 100, 200, None))
    telemetry.repositioned({("u", 1): 7, ("t", 2): 5, ("t", 0): 6}, "seek")
    telemetry.close()
    (file,) = tmp_path.glob("*.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    told = [(e["kind"], e["topic"], e.get("partitions", e.get("partition")), e.get("positions")) for e in events]
    assert told == [
        ("offset_out_of_range", "t", 3, None),
        ("repositioned", "t", [3], [100]),
        ("offset_out_of_range", "t", 4, None),
        ("repositioned", "t", [0, 2], [6, 5]),
        ("repositioned", "u", [1], [7]),
    ]
    assert [events[0][key] for key in ("member", "offset", "earliest", "latest")] == ["c-1", 90, 100, 200]
    assert [events[1]["reason"], events[3]["reason"]] == ["reset", "seek"]
