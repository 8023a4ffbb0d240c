"""A run's folder after success and failure."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.unit.experiments.event_maker import event
from zkrebalancer.experiments import disk
from zkrebalancer.experiments import run as run_module
from zkrebalancer.experiments.plan import Plan
from zkrebalancer.experiments.protocols import PROTOCOLS
from zkrebalancer.experiments.run import RESULT, Run, read_result
from zkrebalancer.experiments.scenarios import SCENARIOS
from zkrebalancer.experiments.scenarios.model import Cast
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.locks import LOCK, locked

PLAN = Plan(PROTOCOLS["classic-range"], SCENARIOS["steady"], "tuned", Cast(2, 6, 1), "kafka-3.9", 5)
LINES = [json.dumps(event("step", name="before", target="", number=1)), "", json.dumps(event("new"))]

RUN = Run._run


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make a run only write these lines, which a test may change, into its event file."""
    lines = LINES[::2]
    monkeypatch.setattr(Run, "_run", lambda _run, events: (events / "run-1.jsonl").write_text("\n".join([*lines, ""])))
    return lines


def result_in(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / PLAN.folder / RESULT).read_text())
    return found


def test_a_finished_run_has_a_result_and_a_copy_of_its_events(tmp_path: Path) -> None:
    result = Run(PLAN, tmp_path / "out", print, tmp_path / "copies").perform()
    assert result == result_in(tmp_path / "out") == read_result(PLAN, tmp_path / "out")
    assert (result["complete"], result["trusted"], result["doubts"]) == (True, True, [])
    assert [file.name for file in (tmp_path / "copies" / PLAN.folder).iterdir()] == ["run-1.jsonl"]


def test_a_run_whose_events_were_not_copied_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(shutil, "copytree", fail)
    with pytest.raises(OSError, match="disk full"):
        Run(PLAN, tmp_path / "out", print, tmp_path / "copies").perform()
    assert read_result(PLAN, tmp_path / "out") is None


def test_an_unreadable_event_is_a_doubt(tmp_path: Path, written: list[str]) -> None:
    written[:] = LINES
    result = Run(PLAN, tmp_path, print).perform()
    assert result["doubts"] == [r"an event cannot be read: run-1.jsonl, line 2: not JSON: b'\n'"]
    assert (result["complete"], result["trusted"]) == (True, False)


def test_a_backlog_that_was_read_too_soon_is_a_doubt(tmp_path: Path, written: list[str]) -> None:
    names = enumerate(("before", "add-member", "end"), 1)
    written[:] = [json.dumps(event("step", n, name=name, target="", number=n)) for n, name in names]
    result = Run(replace(PLAN, scenario=SCENARIOS["backlog"]), tmp_path, print).perform()
    assert result["doubts"] == [
        "the group had nearly read the backlog before the first change: 0 records were left",
    ]
    assert Run(PLAN, tmp_path, print).perform()["doubts"] == [], "of other scenarios"


def test_a_disk_that_is_not_slow_is_a_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Run._run`, do not examine the disk: a library that was not loaded would go unnoticed."""
    monkeypatch.setattr(disk, "shortest_write_ms", lambda zookeeper: {"z:1": 0.4}[zookeeper])
    monkeypatch.setattr(disk, "quick_servers", lambda _cluster: ["kafka"])
    monkeypatch.setattr(run_module, "read_versions", lambda _cluster: {})
    monkeypatch.setattr(
        Plan, "cluster", lambda _plan: mock.Mock(zookeeper="z:1", directory=tmp_path, server_settings={})
    )
    monkeypatch.setattr(Run, "_play", lambda *_: None)
    doubts = {}
    for name in ("slow-disk-5ms", "scale-out"):
        run = Run(replace(PLAN, scenario=SCENARIOS[name]), tmp_path / name, print, _result={"versions": {}})
        run.directory.mkdir(parents=True)
        RUN(run, tmp_path)
        doubts[name] = run.doubts
    assert doubts == {
        "slow-disk-5ms": [
            "nothing made the syncs of kafka slow",
            "ZooKeeper wrote within 0.4 ms, although a sync takes 5 ms",
        ],
        "scale-out": [],
    }


def test_a_run_that_was_interrupted_has_the_steps_that_ended(
    tmp_path: Path, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written[:] = [json.dumps(event("step", name=name, target="", number=n)) for n, name in ((1, "before"), (2, "join"))]
    write = Run._run

    def fail(run: Run, events: Path) -> None:
        write(run, events)
        raise LocalClusterError("no broker")

    monkeypatch.setattr(Run, "_run", fail)
    with pytest.raises(LocalClusterError, match="no broker"):
        Run(PLAN, tmp_path, print).perform()
    result = result_in(tmp_path)
    assert [(step["name"], step["lag_max"]) for step in result["steps"]] == [("before", 0)]
    assert (result["complete"], result["doubts"]) == (False, ["did not finish: no broker"])


def test_only_one_process_performs_a_run(tmp_path: Path) -> None:
    (tmp_path / PLAN.folder).mkdir(parents=True)
    with (
        locked(tmp_path / PLAN.folder / LOCK, 0.0, print),
        pytest.raises(LocalClusterError, match="another zkrebalancer has locked"),
    ):
        Run(PLAN, tmp_path, print).perform()
    assert not (tmp_path / PLAN.folder / RESULT).exists()
