"""Static members on real servers: a restart affects no other member; of two with one instance id, the older leaves."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.integration.scenario import MODES, Event, Scenario, owners_of
from zkrebalancer.operations.foresight import foresee
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.settings import INCREMENTAL

SIZES = [(4, 20), pytest.param(40, 200, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])]


def begin(scenario: Scenario, members: int, partitions: int) -> dict[str, str]:
    """Start a group of static members in each mode; return consumer process -> instance id."""
    scenario.add_coordinator()
    scenario.add_topic("t", partitions)
    instances = {}
    for mode in MODES if members < 10 else MODES[:1]:
        group = scenario.add_group(mode, 0)
        for number in range(members):
            instances[scenario.join(group, instance_id=f"pod-{number}")] = f"pod-{number}"
    scenario.settle()
    return instances


def homes(scenario: Scenario, instances: Mapping[str, str]) -> dict[tuple[str, str], set[TopicPartition]]:
    """Return the partitions of each instance of each group."""
    found: dict[tuple[str, str], set[TopicPartition]] = {}
    for group in scenario.groups:
        for partition, consumer in owners_of(scenario.report(group)).items():
            instance = next(instances[name] for name in instances if consumer.startswith(f"{name}-"))
            found.setdefault((group, instance), set()).add(partition)
    return found


def come_back(scenario: Scenario, instances: dict[str, str], group: str) -> str:
    """Start a new process with the instance id of a group's oldest member, which has just ended."""
    instance = instances.pop(scenario.take_out(group))
    name = scenario.join(group, instance_id=instance)
    instances[name] = instance
    return name


def generations_of(scenario: Scenario) -> dict[str, int]:
    """Return the generation of each group."""
    return {group: scenario.report(group).generation for group in scenario.groups}


def commands_since(scenario: Scenario, generations: Mapping[str, int], count: int) -> list[Event]:
    """Wait for this many commands of later generations, and return all of them.

    Times do not tell which are later: a busy coordinator may note a command after its members have carried it out.
    """

    def found() -> list[Event]:
        return [one for one in scenario.events("command_sent") if one["generation"] > generations[one["group"]]]

    scenario.lab.wait_for(f"{count} commands", lambda: len(found()) >= count)
    return found()


def verify_unmoved(scenario: Scenario, since_us: int) -> None:
    """End the scenario, and require that until now no member had to give up a partition.

    It may have to while they end, one after another: that takes longer than places are kept.
    """
    until_us = scenario.now_us()
    scenario.verify()
    assert scenario.events("fetcher_stopped", since_us=since_us, until_us=until_us, reason="revoked") == []


@pytest.mark.parametrize(("members", "partitions"), SIZES)
def test_a_rolling_restart_moves_no_partition(scenario: Scenario, members: int, partitions: int) -> None:
    instances = begin(scenario, members, partitions)
    before, generations, began_us = homes(scenario, instances), generations_of(scenario), scenario.now_us()
    newcomers = []
    for _ in range(members):
        for group, names in scenario.groups.items():
            scenario.stop(names[0])
            newcomers.append(come_back(scenario, instances, group))
        scenario.settle()
        assert homes(scenario, instances) == before
    commands = commands_since(scenario, generations, len(newcomers))
    assert {event["option"] for event in commands} == {"start-fetcher"}
    commanded = [event["member"] for event in commands]
    assert sorted(name.rsplit("-", 5)[0] for name in commanded) == sorted(newcomers)
    verify_unmoved(scenario, began_us)


@pytest.mark.parametrize("members", [15, pytest.param(40, marks=pytest.mark.long)])
def test_a_rolling_restart_of_many_members_moves_none_of_their_partitions(scenario: Scenario, members: int) -> None:
    """Restart the consumers of one process one by one with their instance ids, as a deployment would."""
    scenario.add_coordinator()
    scenario.add_topic("t", 5 * members)
    group = scenario.add_group(INCREMENTAL, 0)
    own = {"session_timeout_ms": 6_000}  # none crashes here, and all share an interpreter
    applications = {f"pod-{n}": scenario.join_here(group, group_instance_id=f"pod-{n}", **own) for n in range(members)}
    scenario.settle()
    before, generations, began_us = by_instance(scenario, group), generations_of(scenario), scenario.now_us()
    assert sorted(map(len, before.values())) == [5] * members
    for instance, application in list(applications.items()):
        scenario.end_application(application)
        applications[instance] = scenario.join_here(group, group_instance_id=instance, **own)
        scenario.settle()
    assert by_instance(scenario, group) == before
    sent = commands_since(scenario, generations, members)
    assert [(event["option"], event["partition_count"]) for event in sent] == [("start-fetcher", 5)] * members
    assert not any(application.lost or application.revoked for application in applications.values())
    verify_unmoved(scenario, began_us)


def by_instance(scenario: Scenario, group: str) -> dict[str, frozenset[TopicPartition]]:
    """Return the partitions of each instance."""
    return {
        str(member.registration.instance_id): frozenset(member.owners.partitions)
        for member in scenario.report(group).members
        if member.registration is not None and member.owners is not None
    }


@pytest.mark.parametrize(("members", "partitions"), SIZES)
def test_killed_members_get_back_what_they_had_when_their_sessions_are_over(
    scenario: Scenario, members: int, partitions: int
) -> None:
    instances = begin(scenario, members, partitions)
    before, began_us = homes(scenario, instances), scenario.now_us()
    for _ in range(2):
        for group, names in scenario.groups.items():
            scenario.lab.kill(names[0])
            come_back(scenario, instances, group)
        scenario.settle()
        assert homes(scenario, instances) == before
    verify_unmoved(scenario, began_us)


def test_a_plan_gives_nobody_what_waits_for_a_member_that_is_away(scenario: Scenario) -> None:
    instances = begin(scenario, 3, 6)
    for group, names in scenario.groups.items():
        scenario.stop(names[0])
        scenario.wait_group("one that is away", group, lambda report: len(report.members) == 2)
        report = scenario.report(group)
        foreseen = foresee(scenario.lab.zk, report, report.settings, None)
        assert (foreseen.moves, foreseen.unassigned, sorted(foreseen.after.values())) == ([], 0, [2, 2, 2])
        assert foreseen.notes[0].startswith("static members that are away: 1;")
        come_back(scenario, instances, group)
    scenario.verify()


def test_of_two_live_members_with_one_instance_id_the_older_is_told_so_and_ends(scenario: Scenario) -> None:
    instances = begin(scenario, 2, 6)
    before = homes(scenario, instances)
    for group, names in scenario.groups.items():
        older = names[0]
        come_back(scenario, instances, group)
        scenario.wait_end(older)
        (line,) = [line for line in scenario.log_lines(older) if "pod-0" in line]
        assert line.startswith("Error: group_instance_id pod-0: ")
    scenario.settle()
    assert homes(scenario, instances) == before
    scenario.verify()
