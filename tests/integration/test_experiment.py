"""`zkrebalancer experiment run` on real servers: its results, a resumed grid, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import commands
from tests.support.command import WatchedCommand, watched
from tests.support.deadlines import WITHIN_S
from zkrebalancer.observe.checker import check
from zkrebalancer.observe.reading import EventFiles, Problems

SMALL = ("--members", "2", "--partitions", "6", "--settings", "tuned", "--json")
COMMAND = [sys.executable, "-m", "zkrebalancer.cli.main", "experiment", "run", *SMALL]
OF_FORKS = [sys.executable, "-m", "tests.support.warm_command", "experiment", "run", *SMALL]
FOLDER = Path("scale-out", "tuned-m2-p6-s1")


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[WatchedCommand]:
    with watched(COMMAND, tmp_path, WITHIN_S) as experiment:
        yield experiment


@pytest.fixture
def experiment_of_forks(tmp_path: Path) -> Iterator[WatchedCommand]:
    with watched(OF_FORKS, tmp_path, WITHIN_S) as experiment:
        yield experiment


def test_the_same_scenario_with_two_protocols(experiment_of_forks: WatchedCommand, tmp_path: Path) -> None:
    experiment, out = experiment_of_forks, tmp_path / "out"
    protocols = ("central-incremental", "classic-range")
    # One result exists already: a grid resumes where it was interrupted.
    there = out / "classic-cooperative" / FOLDER
    there.mkdir(parents=True)
    known: dict[str, object] = {
        "complete": True,
        "scenario": "scale-out",
        "protocol": "classic-cooperative",
        "settings": "tuned",
    }
    known |= {
        "seed": 1,
        "trusted": True,
        "measures": {},
        "details": {"broker": {"kind": "kafka-3.9"}, "members_per_process": 5},
    }
    (there / "result.json").write_text(json.dumps(known))
    wanted = [text for name in (*protocols, "classic-cooperative") for text in ("--protocol", name)]
    copies = tmp_path / "copies"
    running = experiment.begin(*wanted, "--scenario", "scale-out", "--out", str(out), "--events", str(copies))
    output, _ = running.communicate(timeout=3 * WITHIN_S)
    assert running.returncode == 0, experiment.told()
    results = {result["protocol"]: result for result in json.loads(output)["results"]}
    assert list(results) == [*protocols, "classic-cooperative"]
    for name in protocols:
        result = results[name]
        directory = out / name / FOLDER
        assert result == json.loads((directory / "result.json").read_text())
        assert result["complete"]
        assert result["versions"]["kafka"] == "3.9.2"
        assert [step["name"] for step in result["steps"]] == ["before", *["add-member"] * 3]
        assert sum(step["moved"] for step in result["steps"]) >= result["measures"]["moved_least"] > 0
        verdict = check(directory / "events")
        assert verdict.ok, verdict.problems
        assert verdict.delivered == verdict.produced > 0
        assert min(result["measures"][name] for name in ("delay_max_ms", "requests", "bytes", "cpu_ms")) > 0
        first, *_rest = EventFiles(directory / "events", Problems())
        assert (first["kind"], first["protocol"], first["seed"]) == ("scenario", name, 1)
        assert (directory / "logs" / "kafka.log").exists()
        events = [{file.name for file in folder.iterdir()} for folder in (directory / "events", copies / name / FOLDER)]
        assert events[0] == events[1]
    assert results["central-incremental"]["measures"]["stopped_needlessly"] == 0
    assert results["classic-range"]["measures"]["stopped_needlessly"] > 0, "range stops everything"
    assert any("already finished" in line for line in experiment.lines())
    assert experiment.left() == []


@pytest.mark.long
def test_unmodified_clients_behind_a_gateway_have_one_name_in_the_events(
    experiment: WatchedCommand, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    running = experiment.begin("--protocol", "gateway-central", "--scenario", "scale-out", "--out", str(out))
    running.communicate(timeout=300)
    assert running.returncode == 0, experiment.told()
    result = json.loads((out / "gateway-central" / FOLDER / "result.json").read_text())
    assert result["complete"]
    assert result["measures"]["overlaps"] == 0  # as if two members had each partition
    assert sum(step["moved"] for step in result["steps"]) >= result["measures"]["moved_least"] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    "scenario", ["far-1ms", "far-10ms", "many-groups-failover", "scale-out-three", "slow-disk-5ms"]
)
def test_a_scenario_that_needs_servers_of_its_own(experiment: WatchedCommand, tmp_path: Path, scenario: str) -> None:
    out = tmp_path / "out"
    running = experiment.begin("--protocol", "central-incremental", "--scenario", scenario, "--out", str(out))
    running.communicate(timeout=300)
    assert running.returncode == 0, experiment.told()
    result = json.loads((out / "central-incremental" / scenario / "tuned-m2-p6-s1" / "result.json").read_text())
    assert result["complete"]
    assert result["settled"]
    assert result["problems"] == []
    assert (result["measures"]["lost"], result["measures"]["overlaps"]) == (0, 0)


def test_an_interrupt_leaves_a_result_that_says_so(experiment: WatchedCommand, tmp_path: Path) -> None:
    out = tmp_path / "out"
    running = experiment.begin("--protocol", "central-eager", "--scenario", "crash", "--out", str(out))
    experiment.wait_for("kill-member")
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=WITHIN_S)
    assert running.returncode == 130
    assert experiment.lines()[-1] == "Error: interrupted"
    result = json.loads((out / "central-eager" / "crash" / "tuned-m2-p6-s1" / "result.json").read_text())
    assert not result["complete"]
    assert not result["trusted"]
    assert "KeyboardInterrupt" in result["doubts"][0]
    assert result["steps"][0]["name"] == "before"
    assert result["measures"]["before_delay_p50_ms"] > 0
    assert experiment.left() == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--protocol", "raft", "--scenario", "steady"), "'raft' is not one of"),
        (("--protocol", "all", "--scenario", "lunch"), "'lunch' is not one of"),
        (("--protocol", "kip848", "--scenario", "steady", "--broker", "kafka-3.9"), "kip848 runs on kafka-4 only"),
        (
            ("--protocol", "all", "--scenario", "steady", "--members", "9", "--partitions", "8"),
            "--partitions 8 is less",
        ),
        (("--protocol", "all", "--scenario", "steady", "--out", "setup.py/x"), "setup.py/x"),
        (
            ("--protocol", "all", "--scenario", "steady", "--out", "tests", "--events", "tests"),
            "--events and --out are the same folder, tests",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: tuple[str, ...], told: str) -> None:
    result = commands.run("zkrebalancer", "experiment", "run", *arguments)
    assert result.returncode == 2
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1
