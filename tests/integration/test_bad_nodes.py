"""Invalid nodes: each causes one log line and affects at most its consumer, never the group."""

from __future__ import annotations

import uuid

import pytest

from tests.integration.commands import run
from tests.integration.scenario import Scenario, owners_of, remove
from zkrebalancer.protocol import command, ownership, paths, registration
from zkrebalancer.protocol.calls import (
    ABSENT,
    Children,
    Content,
    Create,
    Delete,
    Done,
    Get,
    ListChildren,
    Multi,
    Operation,
    SetContent,
)
from zkrebalancer.protocol.command import MAX_COMMAND_BYTES
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.registration import WHITE_LIST, Registration
from zkrebalancer.protocol.settings import GroupSettings

POISON = b"\xc1 is no msgpack"
OVERSIZED = b"\x00" * (MAX_COMMAND_BYTES + 1)
NOTHING = ownership.encode_owners(OwnersRecord(0, None, {}))
REBALANCE_TIMEOUT_MS = 500


def write(scenario: Scenario, *operations: Operation) -> None:
    """Write in one transaction, as another program would."""
    assert isinstance(scenario.lab.zk.perform(Multi(operations)), Done)


def register_ghost(scenario: Scenario, group: str, content: bytes, owners: bytes = NOTHING) -> str:
    """Register a consumer that has only nodes; it lives as long as the lab's session."""
    ghost = f"ghost-{uuid.uuid4()}"
    write(
        scenario,
        Create(paths.channel(group, ghost)),
        Create(paths.ids(group, ghost), content, ephemeral=True),
        Create(paths.owners(group, ghost), owners, ephemeral=True),
    )
    return ghost


def end_session(scenario: Scenario, group: str, ghost: str) -> None:
    """Delete its nodes at once, as ZooKeeper does when a session ends.

    One after another would be somebody else's work: a consumer without a registration is evicted, and the eviction of
    one that cannot be read lasts for the longest lease, 40 s.
    """
    write(
        scenario,
        Delete(paths.ids(group, ghost)),
        Delete(paths.owners(group, ghost)),
        Delete(paths.channel(group, ghost)),
    )


def started_by(scenario: Scenario, group: str, consumer: str) -> set[TopicPartition]:
    """Return the partitions in a consumer's pending commands."""
    channel = paths.channel(group, consumer)
    listed = scenario.lab.zk.perform(ListChildren(channel))
    assert isinstance(listed, Children)
    contents = [scenario.lab.zk.perform(Get(f"{channel}/{name}"), ABSENT) for name in listed.names]
    return {
        tp for node in contents if isinstance(node, Content) for tp in command.decode(node.content).partitions or ()
    }


def warnings(scenario: Scenario, *texts: str) -> list[str]:
    """Return the warnings in the coordinators' logs that contain all of these texts."""
    lines = scenario.log_lines(*scenario.coordinators)
    return [line for line in lines if " WARNING " in line and all(text in line for text in texts)]


def wait_warning(scenario: Scenario, text: str) -> None:
    """Wait until a coordinator has warned with this text."""
    scenario.lab.wait_for(f"a line with {text}", lambda: bool(warnings(scenario, text)))


def wait_gone(scenario: Scenario, group: str, consumer: str) -> None:
    """Wait until no consumer has this name."""
    scenario.wait_group(
        f"end of {consumer}", group, lambda report: consumer not in {m.consumer for m in report.members}
    )


@pytest.mark.parametrize("content", [POISON, OVERSIZED], ids=["poison", "oversized"])
def test_a_command_that_cannot_be_read(scenario: Scenario, content: bytes) -> None:
    """It is quarantined, its consumer registers again, and everything is owned again."""
    scenario.begin()
    for group in scenario.groups:
        victim = scenario.report(group).members[0].consumer
        write(scenario, Create(f"{paths.channel(group, victim)}/{paths.COMMAND_PREFIX}", content, sequence=True))
        scenario.wait_event("command_quarantined", group=group, member=victim)
        wait_gone(scenario, group, victim)
        quarantined = scenario.lab.zk.perform(ListChildren(paths.quarantine(group)))
        assert isinstance(quarantined, Children)
        assert len(quarantined.names) == 1
    scenario.verify()


def test_an_ownership_record_that_cannot_be_read(scenario: Scenario) -> None:
    """A consumer whose record was changed gives up its session; its ownership is not guessed."""
    scenario.begin()
    victims = {group: scenario.report(group).members[0].consumer for group in scenario.groups}
    for group, victim in victims.items():
        write(scenario, SetContent(paths.owners(group, victim), b"{"))
    for group, victim in victims.items():
        wait_gone(scenario, group, victim)
    scenario.verify()


def test_a_registration_that_cannot_be_read(scenario: Scenario) -> None:
    """Its consumer gets nothing; the readable ones share everything."""
    scenario.begin()
    ghosts = [register_ghost(scenario, group, b'{"version": 1}') for group in scenario.groups]
    for ghost in ghosts:
        wait_warning(scenario, ghost)
    scenario.join_all()
    for group in scenario.groups:
        scenario.wait_group("shared by three", group, lambda report: len(set(owners_of(report).values())) == 3)
    for group, ghost in zip(scenario.groups, ghosts, strict=True):
        assert len(warnings(scenario, ghost, "gets nothing")) == 1
        end_session(scenario, group, ghost)
    scenario.verify()


def test_an_ownership_record_of_a_ghost_blocks_what_it_was_given_until_it_is_evicted(scenario: Scenario) -> None:
    """An unreadable member may hold all it was given; its eviction waits for its lease."""
    scenario.begin(members=1, rebalance_timeout_ms=REBALANCE_TIMEOUT_MS)
    timeout_ms = scenario.lab.session_timeout_ms
    known = Registration(
        pattern=registration.STATIC,
        subscription={scenario.topic("t"): 1},
        timestamp="0",
        client_id="ghost",
        host="nowhere",
        session_timeout_ms=timeout_ms,
    )
    ghosts = {group: register_ghost(scenario, group, registration.encode(known)) for group in scenario.groups}
    given = {}
    for group, ghost in ghosts.items():
        sent = scenario.wait_event("command_sent", group=group, member=ghost, option="start-fetcher")
        given[group] = sent["mono_us"], started_by(scenario, group, ghost)
        write(scenario, SetContent(paths.owners(group, ghost), b"{"))
    scenario.join_all()
    scenario.verify()
    for group, ghost in ghosts.items():
        evicted_us = scenario.events("member_left", group=group, member=ghost, reason="evicted")[0]["mono_us"]
        given_us, partitions = given[group]
        started_us = [
            event["mono_us"]
            for event in scenario.events("fetcher_started", group=group)
            if event["mono_us"] > given_us and partitions & {(event["topic"], number) for number in event["partitions"]}
        ]
        assert min(started_us) - evicted_us >= registration.lease_ms(timeout_ms) * 1_000


def test_a_wildcard_that_does_not_compile(scenario: Scenario) -> None:
    """One line names the consumer and the expression; the consumer gets nothing."""
    scenario.begin()
    broken = Registration(
        pattern=WHITE_LIST,
        subscription={"^t(": 1},
        timestamp="0",
        client_id="ghost",
        host="nowhere",
        session_timeout_ms=scenario.lab.session_timeout_ms,
    )
    ghosts = [register_ghost(scenario, group, registration.encode(broken)) for group in scenario.groups]
    for ghost in ghosts:
        wait_warning(scenario, ghost)
    scenario.join_all()
    for group in scenario.groups:
        scenario.wait_group("shared by three", group, lambda report: len(set(owners_of(report).values())) == 3)
    for group, ghost in zip(scenario.groups, ghosts, strict=True):
        assert len(warnings(scenario, ghost, "gets nothing", "^t(")) == 1
        end_session(scenario, group, ghost)
    scenario.verify()


@pytest.mark.parametrize(
    "content", [b'{"version": 1, "strategy": "nonsense"}', b"{", b'{"version": 1, "mode": "both"}']
)
def test_settings_that_make_no_sense(scenario: Scenario, content: bytes) -> None:
    """The group keeps its assignment, with one line of explanation, until they are corrected.

    An unknown strategy stops planning; with unreadable settings, the former ones stay in force.
    """
    scenario.begin()
    before = {group: owners_of(scenario.report(group)) for group in scenario.groups}
    for group in scenario.groups:
        write(scenario, SetContent(paths.group(group), content))
        wait_warning(scenario, f"group {group}:")
    scenario.join_all()
    if b"strategy" in content:
        for group in scenario.groups:
            scenario.wait_event("rebalance_requested", 3, group=group, trigger="retry")
        assert {group: owners_of(scenario.report(group)) for group in scenario.groups} == before
    else:
        scenario.settle()
    for group in scenario.groups:
        assert len(warnings(scenario, f"group {group}:")) == 1
        scenario.lab.configure(group, GroupSettings())
    scenario.verify()


def test_a_group_with_an_illegal_name(scenario: Scenario) -> None:
    """An agent refuses it; a node of that name causes one log line and is ignored."""
    scenario.begin()
    name = f"no group {scenario.number}"
    write(scenario, Create(paths.group(name)))
    wait_warning(scenario, name)
    scenario.join_all()
    scenario.settle()
    assert len(warnings(scenario, name, "not served")) == 1
    remove(scenario.lab.zk, paths.group(name))
    cluster = scenario.lab.cluster
    where = ("--zookeeper", cluster.zookeeper, "--bootstrap", cluster.bootstrap, "--topic", "t")
    for illegal in (name, "a/b", "..", "x" * 300):
        result = run("consumer-agent", "run", "--group", illegal, *where)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    scenario.verify()


def test_a_member_that_claims_what_it_was_never_given_takes_nothing(scenario: Scenario) -> None:
    """It is evicted for what it wrote into its record; no other member loses partitions or waits."""
    scenario.begin()
    topic = scenario.topic("t")
    known = Registration(
        pattern=registration.STATIC,
        subscription={"nothing": 1},
        timestamp="0",
        client_id="ghost",
        host="nowhere",
        session_timeout_ms=scenario.lab.session_timeout_ms,
    )
    claims = OwnersRecord(0, None, {(topic, number): 0 for number in range(scenario.topics[topic])})
    for group in scenario.groups:
        before = owners_of(scenario.report(group))
        ghost = register_ghost(scenario, group, registration.encode(known))
        write(scenario, SetContent(paths.owners(group, ghost), ownership.encode_owners(claims)))
        told = scenario.wait_event("false_claim", group=group, member=ghost)
        assert told["partition_count"] == len(claims.partitions)
        wait_warning(scenario, f"evicting {ghost}: it claims what it was never given: {topic}-0")
        wait_gone(scenario, group, ghost)
        assert owners_of(scenario.report(group)) == before
    scenario.verify()
