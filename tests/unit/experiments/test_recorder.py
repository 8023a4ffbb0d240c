"""The recorder: the events of a consumer's callbacks and polls."""

from __future__ import annotations

import json
import time
from pathlib import Path

from zkrebalancer.experiments.members.recorder import UNKNOWN_POSITION, Received, Recorder, contiguous
from zkrebalancer.observe.events import EventLog
from zkrebalancer.observe.reading import Event, find_flaw


def record(offset: int, partition: int = 0, age_us: int = 0) -> Received:
    return Received("t", partition, offset, f"{offset} {time.time_ns() // 1_000 - age_us}".encode())


def written(directory: Path) -> list[Event]:
    (file,) = directory.glob("*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_events_of_a_members_life(tmp_path: Path) -> None:
    event_log = EventLog(tmp_path, "members")
    recorder = Recorder(event_log, "g", "m01")
    recorder.joined()
    recorder.started([("t", 1), ("t", 0), ("u", 4)])
    recorder.started([("t", 1)])  # an owned partition does not start twice
    recorder.delivered([record(7, age_us=3_000_000), record(8), record(3, partition=1)])
    recorder.stopped([("t", 0), ("t", 9)], "revoked")
    recorder.committed([(("t", 0), 9)])
    recorder.left()
    event_log.close()
    events = written(tmp_path)
    assert [find_flaw(event) for event in events] == [None] * len(events)
    kinds = ["member_joined", "fetcher_started", "fetcher_started", "delivered", "delivered", "fetcher_stopped"]
    assert [event["kind"] for event in events] == [
        *kinds,
        "committed",
        "fetcher_stopped",
        "fetcher_stopped",
        "member_left",
    ]
    assert {event["member"] for event in events} == {"m01"}
    assert events[1]["partitions"] == [0, 1]
    assert events[1]["positions"] == [UNKNOWN_POSITION] * 2
    first, second = events[3:5]
    assert (first["first_offset"], first["last_offset"], first["count"]) == (7, 8, 2)
    assert 3_000_000 <= first["delays_us"][0] < 60_000_000
    assert second["partition"] == 1
    assert (events[5]["partitions"], events[5]["positions"], events[5]["reason"]) == ([0], [9], "revoked")
    assert [(event["topic"], event["reason"]) for event in events[7:9]] == [("t", "closed"), ("u", "closed")]
    assert events[7]["positions"] == [4]


def test_a_missing_offset_splits_records() -> None:
    records = [record(1), record(5, partition=1), record(2), record(4)]
    runs = [[(part.partition, part.offset) for part in run] for run in contiguous(records)]
    assert runs == [[(0, 1), (0, 2)], [(0, 4)], [(1, 5)]]


def test_of_many_records_only_the_last_ones_delay_is_written(tmp_path: Path) -> None:
    event_log = EventLog(tmp_path, "members")
    recorder = Recorder(event_log, "g", "m01", has_all_delays=False)
    recorder.delivered([record(7, age_us=3_000_000), record(8)])
    event_log.close()
    (event,) = written(tmp_path)
    assert event["count"] == 2
    assert len(event["delays_us"]) == 1
    assert event["delays_us"][0] < 3_000_000
