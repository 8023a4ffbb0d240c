"""`zkrebalancer demo` on real servers: its document, and that it leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.command import WatchedCommand, watched
from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster.server import child_environment

SMALL = ("--members", "3", "--partitions", "6", "--seconds", "10", "--rate", "20", "--json")
COMMAND = [sys.executable, "-m", "zkrebalancer.cli.main", "demo", *SMALL]
OF_FORKS = [sys.executable, "-m", "tests.support.warm_command", "demo", *SMALL]
# Both signals have one handler, so that a moment with one of them is enough here; the long tests have the others.
INTERRUPTS = [
    ("ZooKeeper and Kafka start", signal.SIGINT),
    ("is suspended until", signal.SIGTERM),
]
LONG_INTERRUPTS = [
    ("ZooKeeper and Kafka start", signal.SIGTERM),
    ("demo-2 joins", signal.SIGINT),
    ("demo-2 joins", signal.SIGTERM),
    ("is suspended until", signal.SIGINT),
]
FAULTS = ["kill", "freeze", "thaw", "kill-leader"]


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[WatchedCommand]:
    with watched(COMMAND, tmp_path, WITHIN_S) as demo:
        yield demo


@pytest.fixture
def demo_of_forks(tmp_path: Path) -> Iterator[WatchedCommand]:
    with watched(OF_FORKS, tmp_path, WITHIN_S) as demo:
        yield demo


def test_the_small_demo_keeps_every_promise_and_leaves_only_the_events(
    demo_of_forks: WatchedCommand, tmp_path: Path
) -> None:
    demo, events = demo_of_forks, tmp_path / "events"
    running = demo.begin("--events", str(events), "--seed", "5")
    output, _ = running.communicate(timeout=3 * WITHIN_S)
    assert running.returncode == 0, demo.told()
    document = json.loads(output)
    assert document["ok"]
    assert document["seed"] == 5
    assert document["versions"] == {"zookeeper": "3.8.4", "kafka": "3.9.2"}
    assert document["events"] == str(events)
    assert document["overlaps"] == 0
    records = document["records"]
    assert records["produced"] == records["delivered"] > 200
    assert records["lost"] == records["duplicated_outside_crash"] == records["out_of_order"] == 0
    assert [fault["name"] for fault in document["faults"]] == FAULTS * 2
    causes = {(rebalance["mode"], rebalance["cause"]) for rebalance in document["rebalances"]}
    for mode in ("incremental", "eager"):
        assert {cause for kind, cause in causes if kind == mode} >= {
            "member-joined",
            "member-left",
            "partitions-added",
            "topic-created",
        }
    assert not [line for line in demo.lines() if "Traceback" in line]
    assert demo.left() == []
    assert json.loads(next(events.glob("lab-*.jsonl")).read_text().splitlines()[0])["kind"] == "scenario"


@pytest.mark.parametrize(
    ("moment", "number"),
    [*INTERRUPTS, *(pytest.param(*interrupt, marks=pytest.mark.long) for interrupt in LONG_INTERRUPTS)],
)
def test_an_interrupt_is_one_line_and_leaves_nothing(demo: WatchedCommand, moment: str, number: signal.Signals) -> None:
    running = demo.begin()
    demo.wait_for(moment)
    began = len(demo.lines())
    running.send_signal(number)
    running.send_signal(number)  # an impatient user
    output, _ = running.communicate(timeout=WITHIN_S)
    assert running.returncode == 130
    assert output == ""
    told = [line for line in demo.lines()[began:] if line and " s  " not in line]  # click ends the line of "^C"
    assert told == ["Error: interrupted"]
    assert demo.left() == []


def test_a_step_that_is_not_reached_names_the_reason_and_the_folder_that_is_kept(demo: WatchedCommand) -> None:
    running = demo.begin()
    demo.wait_for("demo-2 joins")
    (producer,) = [process for process in demo.processes() if "zkrebalancer.experiments.producer" in process.cmdline()]
    os.kill(producer.pid, signal.SIGKILL)
    running.communicate(timeout=WITHIN_S)
    assert running.returncode == 1
    last = demo.lines()[-1]
    assert "producer-demo-orders-0 ended with exit code -9" in last
    (kept,) = demo.folder.iterdir()
    assert last.endswith(f"logs and events are in {kept}")
    assert {"kafka.log", "coordinator-1.log", "events"} <= {entry.name for entry in kept.iterdir()}
    assert list((kept / "events").glob("demo-1-*.jsonl"))
    assert demo.processes() == []
    shutil.rmtree(kept)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        (lambda folder: {"JAVA_HOME": str(folder / "none")}, "install a JDK"),
        (lambda folder: {"XDG_CACHE_HOME": str(folder.parent / "cache"), "PYTHONNOUSERSITE": "1"}, "PySpark"),
    ],
)
def test_what_is_missing_is_one_line(
    demo: WatchedCommand, environment: Callable[[Path], dict[str, str]], told: str, tmp_path: Path
) -> None:
    without_pyspark = "import sys; sys.modules['pyspark'] = None; from zkrebalancer.cli.main import main; main()"
    running = subprocess.run(
        [sys.executable, "-c", without_pyspark, "demo", *SMALL],
        env={**child_environment(), "TMPDIR": str(demo.folder), "KAFKA_HOME": "", **environment(demo.folder)},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert running.returncode == 1
    errors = [line for line in running.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert told in errors[0]
    assert "Traceback" not in running.stderr
    assert demo.left() == []
