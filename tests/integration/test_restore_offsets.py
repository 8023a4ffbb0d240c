"""`groups offsets restore`: a real coordinator deletes the offsets of a recreated topic, and keeps a copy."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.commands import run
from tests.integration.scenario import Scenario
from zkrebalancer.observe import inspection
from zkrebalancer.protocol.settings import INCREMENTAL


def stored(scenario: Scenario, group: str, topic: str) -> dict[int, int]:
    report = scenario.report(group)
    inspection.read_offsets(scenario.lab.zk, report)
    return {number: offset for (name, number), offset in report.offsets.items() if name == topic}


def restore(scenario: Scenario, group: str, *options: str, code: int = 0) -> Any:
    arguments = ("--zookeeper", scenario.lab.cluster.zookeeper, "--json", *options)
    result = run("zkrebalancer", "groups", "offsets", "restore", group, *arguments)
    assert result.returncode == code, result.stderr
    return json.loads(result.stdout) if code == 0 else result.stderr


def test_offsets_of_a_topic_that_was_created_anew_are_put_back(scenario: Scenario) -> None:
    scenario.begin(modes=[INCREMENTAL], members=1)
    (group,) = scenario.groups
    topic = scenario.topic("t")
    scenario.delete_topic(topic)  # once all of it is read
    scenario.lab.wait_for("the stop of its partitions", lambda: not scenario.report(group).owned())
    before = stored(scenario, group, topic)
    assert len(before) == 6
    assert all(before.values())
    scenario.lab.create_topic(topic, 6)
    scenario.lab.wait_for("deleted offsets", lambda: not stored(scenario, group, topic))
    scenario.lab.wait_for("new owners", lambda: len(scenario.report(group).owned()) == 6)
    assert "has consumers" in restore(scenario, group, code=1)
    scenario.stop(scenario.take_out(group))
    now = stored(scenario, group, topic)
    shown = restore(scenario, group, "--topic", topic, "--dry-run")
    assert {row["partition"]: (row["before"], row["after"]) for row in shown["offsets"]} == {
        number: (now.get(number), offset) for number, offset in before.items()
    }
    assert stored(scenario, group, topic) == now
    restore(scenario, group, "--yes")
    assert stored(scenario, group, topic) == before
    assert "has no copy of absent" in restore(scenario, group, "--topic", "absent", code=1)
    scenario.require_quiet_logs()
