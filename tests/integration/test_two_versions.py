"""Two versions in one group, as standby, leader and agent, in both orders: real processes of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.scenario import NO_ENVIRONMENT, PARTITIONS, Scenario, owners_of
from tests.support.next_version import ADDED, ADDS, NEW_COMMANDS, NEW_REGISTRATION, next_version
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Content, Get
from zkrebalancer.protocol.settings import INCREMENTAL

UUID_LENGTH = 36
NEWER = "version 2 is newer than 1, the newest supported version"


def nodes_of_the_next(scenario: Scenario, group: str) -> set[str]:
    """Return the kinds of existing nodes that the next version has written."""
    members = [member.consumer for member in scenario.report(group).members]
    nodes = {
        f"{kind.__name__} {name}": kind(group, name)
        for kind in (paths.ids, paths.owners, paths.given)
        for name in members
    }
    nodes["coordinator"] = paths.COORDINATOR
    found = {kind: scenario.lab.zk.perform(Get(path), ABSENT) for kind, path in nodes.items()}
    return {
        kind.split()[0] for kind, node in found.items() if isinstance(node, Content) and ADDED.encode() in node.content
    }


def shares(report: GroupReport) -> set[str]:
    """Return the processes that own partitions, if every partition has an owner."""
    owners = {consumer[: -len("-") - UUID_LENGTH] for consumer in owners_of(report).values()}
    return owners if len(report.owned()) == PARTITIONS else set()


@pytest.mark.parametrize("is_next_first", [True, False], ids=["next leads first", "next stands by"])
def test_a_version_that_only_adds_shares_groups_with_this_one(
    scenario: Scenario, tmp_path: Path, is_next_first: bool
) -> None:
    """A standby of the other version takes over the former leader's commands and records, and agents of both."""
    versions = [NO_ENVIRONMENT, next_version(tmp_path, ADDS)]
    first, second = reversed(versions) if is_next_first else versions
    leader = scenario.add_coordinator(environment=first)
    scenario.lab.wait_leader()
    standby = scenario.add_coordinator(environment=second)
    scenario.add_topic("t")
    for mode in ("incremental", "eager"):
        group = scenario.add_group(mode, 0)
        for version in versions:
            scenario.join(group, environment=version)
    scenario.settle()
    for group in scenario.groups:
        expected = {"ids", "owners", *(("given", "coordinator") if is_next_first else ())}
        assert nodes_of_the_next(scenario, group) == expected
    scenario.coordinators.remove(leader)
    scenario.lab.kill(leader)
    scenario.lab.wait_for(f"{standby} leads", lambda: scenario.leads(standby))
    for group in scenario.groups:
        scenario.join(group, environment=second)
        scenario.stop(scenario.take_out(group))
        scenario.join(group, environment=first)
    scenario.verify()
    assert not scenario.events("member_left", reason="evicted")
    assert not scenario.events("false_claim")


def test_a_registration_of_another_meaning_is_refused_by_name_and_concerns_nobody_else(
    scenario: Scenario, tmp_path: Path
) -> None:
    scenario.begin(modes=[INCREMENTAL], members=1)
    (group,) = scenario.groups
    newcomer = scenario.join(group, environment=next_version(tmp_path, NEW_REGISTRATION))
    scenario.groups[group].remove(newcomer)
    text = f"registration: {NEWER}"
    scenario.lab.wait_for(
        "the refusal", lambda: any(text in line for line in scenario.log_lines(*scenario.coordinators))
    )
    (line,) = [line for line in scenario.log_lines(*scenario.coordinators) if text in line]
    assert f"consumer {newcomer}-" in line
    scenario.join(group)
    scenario.wait_group(
        "served by those who are understood", group, lambda report: shares(report) == {*scenario.groups[group]}
    )
    scenario.stop(newcomer)
    scenario.verify()


def test_commands_of_another_meaning_are_refused_by_name_and_the_next_leader_serves_everybody(
    scenario: Scenario, tmp_path: Path
) -> None:
    """Unknown commands are not executed; once this version leads again, all is as before."""
    leader = scenario.add_coordinator(environment=next_version(tmp_path, NEW_COMMANDS))
    scenario.lab.wait_leader()
    standby = scenario.add_coordinator()
    scenario.add_topic("t")
    group = scenario.add_group(INCREMENTAL, 1)
    (member,) = scenario.groups[group]
    refused = scenario.wait_event("command_quarantined", group=group)
    assert NEWER in str(refused)
    assert not scenario.report(group).owned()
    scenario.coordinators.remove(leader)
    scenario.lab.kill(leader)
    scenario.lab.wait_for(f"{standby} leads", lambda: scenario.leads(standby))
    scenario.verify()
    assert any(NEWER in line for line in scenario.log_lines(member))
