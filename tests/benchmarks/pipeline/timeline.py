"""Where the time of a run goes: its jobs in Spark's event log, by the table that they make.

An event log costs processor time itself, so a run with one is not measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TABLE = """| what | jobs | stages | tasks | begins | ends | seconds of tasks | of their JVM's processor time |
|---|---|---|---|---|---|---|---|"""


@dataclass
class Step:
    """The jobs of one description; times in seconds since the application began."""

    jobs: int = 0
    stages: int = 0
    tasks: int = 0
    begin_s: float = float("inf")
    end_s: float = 0.0
    task_s: float = 0.0
    cpu_s: float = 0.0


@dataclass
class Timeline:
    """The steps of a run, in order."""

    steps: dict[str, Step] = field(default_factory=dict)
    _began_ms: int = 0
    _of_job: dict[int, Step] = field(default_factory=dict)
    _of_stage: dict[int, Step] = field(default_factory=dict)

    def add(self, event: dict[str, Any]) -> None:
        """Handle an event of the log."""
        match event["Event"]:
            case "SparkListenerApplicationStart":
                self._began_ms = event["Timestamp"]
            case "SparkListenerJobStart":
                step = self.steps.setdefault(event["Properties"].get("spark.job.description", ""), Step())
                step.jobs += 1
                step.begin_s = min(step.begin_s, self._at_s(event["Submission Time"]))
                self._of_job[event["Job ID"]] = step
                self._of_stage.update(dict.fromkeys(event["Stage IDs"], step))
            case "SparkListenerJobEnd":
                step = self._of_job[event["Job ID"]]
                step.end_s = max(step.end_s, self._at_s(event["Completion Time"]))
            case "SparkListenerStageCompleted":  # a stage that is skipped never is
                self._of_stage[event["Stage Info"]["Stage ID"]].stages += 1
            case "SparkListenerTaskEnd":
                step, task = self._of_stage[event["Stage ID"]], event["Task Info"]
                step.tasks += 1
                step.task_s += (task["Finish Time"] - task["Launch Time"]) / 1e3
                step.cpu_s += event["Task Metrics"]["Executor CPU Time"] / 1e9

    def _at_s(self, time_ms: int) -> float:
        return (time_ms - self._began_ms) / 1e3

    def __str__(self) -> str:
        """Return a table, and below it the number of stages and of tasks."""
        rows = [
            f"| {name} | {step.jobs} | {step.stages} | {step.tasks} | {step.begin_s:.1f} | {step.end_s:.1f} "
            f"| {step.task_s:.1f} | {step.cpu_s:.1f} |"
            for name, step in self.steps.items()
        ]
        stages, tasks = (sum(getattr(step, name) for step in self.steps.values()) for name in ("stages", "tasks"))
        return "\n".join([TABLE, *rows, f"{stages} stages, {tasks} tasks"])


def read(lines: Iterable[str]) -> Timeline:
    """Return the timeline of a log's lines."""
    timeline = Timeline()
    for line in lines:
        timeline.add(json.loads(line))
    return timeline


def settings(folder: Path) -> list[str]:
    """Return the options of a command that writes its event log into an existing folder."""
    values = {"enabled": "true", "dir": folder.as_uri(), "rolling.enabled": "false", "compress": "false"}
    return [text for key, value in values.items() for text in ("--conf", f"spark.eventLog.{key}={value}")]
