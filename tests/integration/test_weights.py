"""From consumers' commits to the coordinator's placement, with all processes in between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration import commands
from tests.integration.scenario import Scenario
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.protocol.settings import INCREMENTAL
from zkrebalancer.protocol.weights import decode

HOT_RECORDS_PER_S = 400
COMMIT_INTERVAL_MS = 500
SPAN_S = 8.0
STRETCH = 3_600  # a second stands for an hour of history
LEARN_DEADLINE_S = 300.0  # other tests may have the machine to themselves
pytestmark = pytest.mark.long


def test_weights_that_were_learned_from_commits_give_a_hot_partition_a_consumer_of_its_own(
    scenario: Scenario, tmp_path: Path
) -> None:
    scenario.begin(modes=[INCREMENTAL], members=0)
    (group,), zookeeper = scenario.groups, ("--zookeeper", scenario.lab.cluster.zookeeper)
    for _ in range(2):
        scenario.join(group, auto_commit_interval_ms=COMMIT_INTERVAL_MS)
    scenario.settle()
    topic = next(iter(scenario.topics))
    scenario.lab.start_producer("hot", {topic: range(1)}, HOT_RECORDS_PER_S)
    scenario.lab.wait_for(f"commits of {SPAN_S} s", lambda: _span_s(scenario) > SPAN_S)
    scenario.lab.stop("hot")  # from now on, only the learned weights show it

    _write_history(scenario, tmp_path / "history")
    learn = ("--events", tmp_path / "history", "--out", tmp_path / "weights", "--group", group, "--master", "local[2]")
    learning = commands.begin("zkrebalancer", "pipeline", "weights", *learn, *zookeeper, "--json")
    learned = commands.end(learning, LEARN_DEADLINE_S)
    assert learned.returncode == 0, learned.stderr
    told = json.loads(learned.stdout)
    assert (told["source"], told["written_for"]) == ("committed", group)
    weights = decode((tmp_path / "weights" / "weights.json").read_bytes())
    hot, *others = (of_slots[0] for of_slots in weights.rates[topic])
    assert hot > 5 * max(others) > 0

    settings = ("strategy=balanced", "options.catch_up_s=1000000")  # lag has no weight
    assert commands.run("zkrebalancer", "groups", "configure", group, *settings, *zookeeper).returncode == 0

    def stands_alone(report: GroupReport) -> bool:
        return {(topic, 0)} in [set(member.owners.partitions) for member in report.members if member.owners]

    scenario.wait_group("a consumer of its own for what was hot", group, stands_alone)
    scenario.verify()


def _span_s(scenario: Scenario) -> float:
    times = [event["ts_us"] for event in scenario.events("committed", partition=0)]
    return (times[-1] - times[0]) / 1e6 if times else 0.0


def _write_history(scenario: Scenario, folder: Path) -> None:
    """Rewrite the commits as if each second had been an hour; the end stays the same."""
    events = scenario.events("committed")
    last_us = max(event["ts_us"] for event in events)
    lines = [{**event, "ts_us": last_us - STRETCH * (last_us - event["ts_us"])} for event in events]
    folder.mkdir()
    (folder / "agents.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
