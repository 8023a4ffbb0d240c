"""A run's timeline has its steps in order, and counts the stages that were not skipped."""

from __future__ import annotations

import json
from typing import Any

from tests.benchmarks.pipeline import timeline


def job(number: int, stages: list[int], at_ms: int, name: str) -> dict[str, Any]:
    properties = {"spark.job.description": name}
    begin = {"Event": "SparkListenerJobStart", "Job ID": number, "Submission Time": at_ms, "Stage IDs": stages}
    return {**begin, "Properties": properties}


def test_a_log_becomes_a_table() -> None:
    took = {"Launch Time": 2_000, "Finish Time": 2_500}
    task = {"Task Info": took, "Task Metrics": {"Executor CPU Time": 200_000_000}}
    ended = {"Event": "SparkListenerJobEnd"}
    events = [
        {"Event": "SparkListenerApplicationStart", "Timestamp": 1_000},
        job(0, [0], 2_000, "table events"),
        {"Event": "SparkListenerTaskEnd", "Stage ID": 0, **task},
        {"Event": "SparkListenerTaskEnd", "Stage ID": 0, **task},
        {"Event": "SparkListenerStageCompleted", "Stage Info": {"Stage ID": 0}},
        {**ended, "Job ID": 0, "Completion Time": 3_000},
        job(1, [1, 2], 3_000, "runs"),
        {"Event": "SparkListenerTaskEnd", "Stage ID": 2, **task},
        {"Event": "SparkListenerStageCompleted", "Stage Info": {"Stage ID": 2}},
        {**ended, "Job ID": 1, "Completion Time": 4_000},
        {"Event": "SparkListenerApplicationEnd", "Timestamp": 5_000},
    ]
    assert str(timeline.read(map(json.dumps, events))).splitlines()[2:] == [
        "| table events | 1 | 1 | 2 | 1.0 | 2.0 | 1.0 | 0.4 |",
        "| runs | 1 | 1 | 1 | 2.0 | 3.0 | 0.5 | 0.2 |",
        "2 stages, 3 tasks",
    ]
