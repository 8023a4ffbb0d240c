"""`groups describe --state` on real servers: why a group is stuck, with a right that is really missing."""

from __future__ import annotations

import json
from typing import Any

from kazoo.security import Permissions

from tests.integration.commands import run
from tests.integration.rights import denied, full
from tests.integration.scenario import PARTITIONS, Scenario
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.complaints import FIRST_PAUSE_S
from zkrebalancer.protocol.settings import INCREMENTAL, GroupSettings

HOUR_MS = 3_600_000


def described(scenario: Scenario, group: str) -> list[dict[str, Any]]:
    arguments = ("--state", "--zookeeper", scenario.lab.cluster.zookeeper, "--json")
    result = run("zkrebalancer", "groups", "describe", group, *arguments)
    assert result.returncode == 0, result.stderr
    obstacles: list[dict[str, Any]] = json.loads(result.stdout)["obstacles"]
    return obstacles


def shown(scenario: Scenario, group: str) -> str:
    return run(
        "zkrebalancer", "groups", "describe", group, "--state", "--zookeeper", scenario.lab.cluster.zookeeper
    ).stdout


def test_a_right_that_is_missing_is_named_and_withdrawn(scenario: Scenario) -> None:
    scenario.begin(modes=[INCREMENTAL], members=1)
    (group,) = scenario.groups
    assert described(scenario, group) == []
    (member,) = (member.consumer for member in scenario.report(group).members)
    with denied(scenario.lab.cluster.zookeeper, paths.channel(group, member), Permissions.CREATE):
        scenario.grow_topic(scenario.topic("t"), PARTITIONS + 2)
        scenario.lab.wait_for("the refusal", lambda: bool(described(scenario, group)))
        (refused,) = described(scenario, group)
        assert (refused["kind"], refused["right"]) == ("refused", "CREATE of its parent")
        assert refused["path"].startswith(f"{paths.channel(group, member)}/")
        assert f"refused: ZooKeeper refuses {paths.channel(group, member)}/" in shown(scenario, group)
    scenario.settle()
    scenario.lab.wait_for("nothing in its way", lambda: not described(scenario, group))
    scenario.verify()


def test_a_group_over_its_quota_is_named_and_the_others_go_on(scenario: Scenario) -> None:
    """In `zk_answers`, treat an exceeded quota as a lost connection; in `Scheduler.note_refused`, log each refusal."""
    scenario.begin(members=1)
    over, other = scenario.groups
    began_us = scenario.now_us()
    with full(scenario.lab.cluster.zookeeper, paths.channel(over)):
        scenario.grow_topic(scenario.topic("t"), PARTITIONS + 2)
        scenario.settle(other)
        scenario.lab.wait_for("the refusal", lambda: bool(described(scenario, over)))
        (refused,) = described(scenario, over)
        assert refused["kind"] == "refused"
        assert "quota exceeded" in refused["text"]
        assert len(scenario.report(over).owned()) == PARTITIONS
        assert described(scenario, other) == []
    scenario.settle()
    scenario.lab.wait_for("nothing in its way", lambda: not described(scenario, over))
    told = sum("quota exceeded" in line for line in scenario.log_lines(*scenario.coordinators))
    assert 1 <= told <= 1 + (scenario.now_us() - began_us) / (FIRST_PAUSE_S * 1_000_000)
    scenario.verify()


def test_members_that_are_waited_for_pauses_and_a_missing_coordinator_are_named(scenario: Scenario) -> None:
    scenario.begin(modes=[INCREMENTAL], members=1)
    (group,) = scenario.groups
    application = scenario.join_here(group, stop_timeout_ms=HOUR_MS)
    scenario.settle()
    application.block()
    scenario.lab.wait_for("a blocked application", application.is_blocked.is_set)
    names = [member.consumer for member in scenario.report(group).members]
    (blocked,) = [name for name in names if name.startswith(f"{application.name}-")]
    scenario.join(group)
    scenario.wait_event("command_sent", group=group, member=blocked, option="stop-fetcher")
    # The other one has acknowledged its stop; what the leader publishes says so a moment later.
    scenario.lab.wait_for("a single obstacle", lambda: len(described(scenario, group)) == 1)
    (waiting,) = described(scenario, group)
    assert (waiting["kind"], waiting["member"]) == ("waiting", blocked)
    sent_ms = scenario.events("command_sent", member=blocked, option="stop-fetcher")[-1]["ts_us"] / 1_000
    assert abs(waiting["until_ms"] - HOUR_MS - sent_ms) < 10_000
    application.unblock()
    scenario.settle()
    scenario.lab.configure(group, GroupSettings(starts_paused=True, paused_by="a-reset", frozen=True))
    kinds = {obstacle["kind"]: obstacle["text"] for obstacle in described(scenario, group)}
    assert kinds.keys() == {"paused", "frozen"}
    assert "by operation a-reset" in kinds["paused"]
    scenario.lab.configure(group, GroupSettings())
    scenario.verify()  # ends everybody
    assert [obstacle["kind"] for obstacle in described(scenario, group)] == ["no-coordinator"]
