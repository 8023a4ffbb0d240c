"""Doubts about a run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.unit.experiments.event_maker import event
from zkrebalancer.experiments import trust
from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.experiments.trust import Heartbeat, find_doubts
from zkrebalancer.observe.events import EventLog


def test_gaps_and_unsent_records_are_doubts() -> None:
    begin, end = event("step", name="before", target="", number=1), event("step", name="end", target="", number=2)
    late = event("stalled", role="machine", gap_ms=900, left_out_count=0)
    small = event("stalled", role="machine", gap_ms=300, left_out_count=0)
    behind = event("stalled", role="producer", gap_ms=20, left_out_count=7)
    assert find_doubts([late, begin, small, end, late, behind]) == [], "only measured time counts"
    doubts = find_doubts([begin, late, late, behind, end])
    assert doubts == [
        "the machine stalled 2 times for at least 500 ms, up to 900 ms",
        "the producer could not send 7 records that were due",
    ]


def test_a_shared_machine_is_a_doubt() -> None:
    begin, end = event("step", name="before", target="", number=1), event("step", name="end", target="", number=2)
    early, first, middle, quiet, shared = (
        {**event("busy", busy_us=busy_us, own_us=own_us, processors=2), "mono_us": mono_us}
        for mono_us, busy_us, own_us in ((0, 0, 0), (10, 500, 100), (20, 600, 105), (110, 600, 162), (110, 600, 158))
    )
    assert find_doubts([begin, first, middle, quiet, end]) == [], "38 of 200 is less than a fifth"
    assert find_doubts([begin, first, middle, shared, end]) == ["other programs used 21% of the machine's processors"]
    assert find_doubts([early, begin, first, end, shared]) == [], "only measured time counts"


def test_the_heartbeat_records_late_wake_ups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "STALL_S", 0.0)  # so that every beat is late
    with Heartbeat(EventLog(tmp_path, "run")):
        give_up_at = time.monotonic() + 10
        tail = EventTail(tmp_path)
        while not (events := tail.read()):
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
    assert events[0]["kind"] == "stalled"
    assert events[0]["role"] == "machine"
