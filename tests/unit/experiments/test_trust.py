"""Doubts about a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.deadlines import WITHIN_S
from tests.unit.experiments.event_maker import event
from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.experiments.trust import LEAST_UNREAD, find_doubts, find_doubts_of_backlog, find_doubts_of_disk

PAUSE_MS = 100
BEGIN, END = event("step", name="before", target="", number=1), event("step", name="end", target="", number=3)


def step(number: int, at_ms: int, name: str = "add-member") -> dict[str, Any]:
    return event("step", at_ms * 1_000, name=name, target="", number=number)


def stood(gap_ms: int, until_ms: int = 0, role: str = "machine") -> dict[str, Any]:
    return event("stalled", until_ms * 1_000, role=role, gap_ms=gap_ms, left_out_count=0)


def test_gaps_and_unsent_records_are_doubts() -> None:
    late, small = stood(900), stood(300)
    behind = event("stalled", role="producer", gap_ms=20, left_out_count=7)
    assert find_doubts([late, BEGIN, small, END, late, behind], []) == [], "only measured time counts"
    assert find_doubts([BEGIN, late, late, behind, END], []) == [
        "the machine stalled 2 times for at least 500 ms, up to 900 ms",
        "the producer could not send 7 records that were due",
    ]


def test_a_pause_of_a_tenth_of_what_is_measured_is_a_doubt() -> None:
    """In `find_doubts`, allow 500 ms as for delays: pauses longer than the figures would pass."""
    figures = [
        {"number": 1, "name": "before", "settled_ms": 0.0},
        {"number": 2, "name": "add-member", "settled_ms": 70.0},
    ]
    begun = [step(1, 0, "before"), stood(40, 900), step(2, 1_000)]
    assert find_doubts([*begun, stood(7, 1_030), END], figures) == []
    assert find_doubts([*begun, stood(400, 1_500), END], figures) == [], "the group had settled before"
    assert find_doubts([*begun, stood(30, 1_030, "producer"), END], figures) == []
    assert find_doubts([*begun, stood(8, 1_010), stood(5, 1_020), END], figures) == [
        "the machine stood still for 8 ms while step 2 settled in 70 ms"
    ]
    assert find_doubts([*begun, stood(40, 1_100), END], figures) != [], "it began before the group had settled"


def test_a_backlog_that_was_read_at_another_time_is_a_doubt() -> None:
    before, later = {"name": "before", "lag_before": 0}, {"name": "kill-member", "number": 3, "lag_before": 0}
    for unread in (-160, LEAST_UNREAD - 1):
        (doubt,) = find_doubts_of_backlog([before, {"name": "add-member", "lag_before": unread}, later])
        assert doubt.endswith(f": {max(0, unread):,} records were left")
    first = {"name": "add-member", "lag_before": LEAST_UNREAD}
    assert find_doubts_of_backlog([before, first, later]) == []
    (doubt,) = find_doubts_of_backlog([before, first, {**later, "lag_before": 500_000}])
    assert doubt == "the group still read the backlog before step 3: 500,000 records were left"
    assert find_doubts_of_backlog([before]) == [], "it ended earlier"


def test_a_shared_machine_is_a_doubt() -> None:
    early, first, middle, quiet, shared = (
        {**event("busy", busy_us=busy_us, own_us=own_us, processors=2), "mono_us": mono_us}
        for mono_us, busy_us, own_us in ((0, 0, 0), (10, 500, 100), (20, 600, 105), (110, 600, 162), (110, 600, 158))
    )
    assert find_doubts([BEGIN, first, middle, quiet, END], []) == [], "38 of 200 is less than a fifth"
    assert find_doubts([BEGIN, first, middle, shared, END], []) == [
        "other programs used 21% of the machine's processors"
    ]
    assert find_doubts([early, BEGIN, first, END, shared], []) == [], "only measured time counts"


def test_the_pulse_notices_that_it_stood_still(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "zkrebalancer.experiments.pulse", "--events", str(tmp_path), "--name", "pulse"]
    with subprocess.Popen(command) as process:
        try:
            tail = EventTail(tmp_path)
            give_up_s = time.monotonic() + WITHIN_S
            found: list[dict[str, Any]] = []
            # It was suspended while it beat, once it beats; a busy machine may stop it for a moment before.
            while max((one["gap_ms"] for one in found), default=0) < PAUSE_MS:
                assert time.monotonic() < give_up_s, found
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(PAUSE_MS / 1_000)
                os.kill(process.pid, signal.SIGCONT)
                time.sleep(PAUSE_MS / 1_000)
                found += tail.read()
        finally:
            process.terminate()
        assert process.wait(WITHIN_S) == 0
    assert {(one["kind"], one["role"]) for one in found} == {("stalled", "machine")}


def test_a_disk_that_is_not_slow_is_a_doubt() -> None:
    assert find_doubts_of_disk(5.0, 5.0, []) == []
    assert find_doubts_of_disk(5.0, 0.3, ["zookeeper-1", "kafka"]) == [
        "nothing made the syncs of zookeeper-1 slow",
        "nothing made the syncs of kafka slow",
        "ZooKeeper wrote within 0.3 ms, although a sync takes 5 ms",
    ]
