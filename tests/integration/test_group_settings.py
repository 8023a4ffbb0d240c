"""Settings changed at run time, previews of their plan, and loads read by the coordinator."""

from __future__ import annotations

import getpass
import json
import os
import platform

import pytest

from tests.integration.commands import Result, begin_cold, end, run
from tests.integration.scenario import Scenario
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.operations.weights import write_weights
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Children, Content, Done, Get, ListChildren, Multi, SetContent
from zkrebalancer.protocol.settings import INCREMENTAL
from zkrebalancer.protocol.weights import Weights, encode

HOT_RECORDS_PER_S = 400


def groups(scenario: Scenario, *arguments: str, json_wanted: bool = True) -> Result:
    zookeeper = ("--zookeeper", scenario.lab.cluster.zookeeper)
    return run("zkrebalancer", "groups", *arguments, *zookeeper, *(["--json"] if json_wanted else []))


def content_of(scenario: Scenario, path: str) -> bytes:
    node = scenario.lab.zk.perform(Get(path))
    assert isinstance(node, Content)
    return node.content


def write(scenario: Scenario, path: str, content: bytes) -> None:
    assert isinstance(scenario.lab.zk.perform(Multi((SetContent(path, content),))), Done)


def change_node(scenario: Scenario, group: str, values: dict[str, str]) -> dict[str, object]:
    """Write into the settings' node as another program does; return its content."""
    node = scenario.lab.zk.perform(Get(paths.group(group)))
    assert isinstance(node, Content)
    document = {**json.loads(node.content), **values}
    written = SetContent(paths.group(group), json.dumps(document).encode(), node.stat.version)
    assert isinstance(scenario.lab.zk.perform(Multi((written,))), Done)
    return document


def test_settings_are_shown_with_their_plan_and_then_take_effect(scenario: Scenario) -> None:
    """The previewed plan is carried out; `range` and `round_robin` differ, so one of them changes the assignment."""
    scenario.begin(modes=[INCREMENTAL])
    (group,) = scenario.groups
    note = {"note_of_another_program": "stays"}
    change_node(scenario, group, note)
    assert group in {one["group"] for one in json.loads(groups(scenario, "list").stdout)["groups"]}
    for strategy in ("range", "round_robin"):
        foreseen = json.loads(groups(scenario, "configure", group, f"strategy={strategy}", "--dry-run").stdout)
        assert (foreseen["applied"], foreseen["settings"]["strategy"]) == (False, strategy)
        if foreseen["plan"]["moves"]:
            break
    assert foreseen["plan"]["moves"]
    assert scenario.report(group).settings.strategy == "sticky"
    told = groups(scenario, "configure", group, f"strategy={strategy}", "rebalance_timeout_ms=20000", json_wanted=False)
    assert (told.returncode, told.stderr.count("\n")) == (0, 1), told.stderr
    changed = f'strategy from "sticky" to "{strategy}", rebalance_timeout_ms from 30000 to 20000'
    assert told.stderr.endswith(f" changed {changed}, in group {group}\n")
    assert f"{len(foreseen['plan']['moves'])} partitions would move" in told.stdout
    wanted = {(move["topic"], move["partition"]): move["to"] for move in foreseen["plan"]["moves"]}

    def is_as_foreseen(report: GroupReport) -> bool:
        holders = {tp: member.consumer for member in report.members if member.owners for tp in member.owners.partitions}
        return all(holders.get(partition) == consumer for partition, consumer in wanted.items())

    scenario.wait_group("what the plan said", group, is_as_foreseen)
    assert scenario.report(group).settings.rebalance_timeout_ms == 20_000
    assert change_node(scenario, group, {}).items() >= note.items()
    assert json.loads(groups(scenario, "plan", group).stdout)["moves"] == []
    scenario.verify()


@pytest.mark.parametrize(
    ("answer", "timeout_ms", "last_line"), [("y", 20_000, "configured"), ("n", 30_000, "no setting")]
)
def test_on_a_terminal_settings_are_written_after_a_yes(
    scenario: Scenario, answer: str, timeout_ms: int, last_line: str
) -> None:
    scenario.begin(modes=[INCREMENTAL], members=1)
    (group,) = scenario.groups
    keyboard, terminal = os.openpty()
    os.write(keyboard, f"{answer}\n".encode())
    arguments = ("configure", group, "rebalance_timeout_ms=20000", "--zookeeper", scenario.lab.cluster.zookeeper)
    told = end(begin_cold("zkrebalancer", "groups", *arguments, stdin=terminal))
    os.close(keyboard)
    os.close(terminal)
    assert (told.returncode, told.stderr.count(" audit: ")) == (0, int(answer == "y")), told.stderr
    assert last_line in told.stdout.splitlines()[-1]
    assert scenario.report(group).settings.rebalance_timeout_ms == timeout_ms
    scenario.verify()


def test_a_frozen_group_moves_after_unfreeze_and_an_empty_one_can_be_deleted(scenario: Scenario) -> None:
    scenario.begin(modes=[INCREMENTAL], members=1)
    (group,) = scenario.groups
    assert groups(scenario, "freeze", group).returncode == 0
    late = scenario.join(group)
    scenario.wait_group("the second one is registered", group, lambda report: len(report.members) == 2)
    foreseen = json.loads(groups(scenario, "unfreeze", group, "--dry-run").stdout)
    assert foreseen["plan"]["moves"]
    assert groups(scenario, "unfreeze", group).returncode == 0
    scenario.settle(group)
    (second,) = [m for m in scenario.report(group).members if m.registration and m.registration.client_id == late]
    assert second.owners is not None
    assert len(second.owners.partitions) == len(foreseen["plan"]["moves"])
    me = f"{getpass.getuser()}@{platform.node()}"
    shown = json.loads(groups(scenario, "describe", group, "--state").stdout)
    assert (shown["last_change"]["by"], shown["last_change"]["what"]) == (me, "changed frozen from true to false")
    scenario.lab.wait_for(
        "its author in the history", lambda: me in groups(scenario, "describe", group, "--history").stdout
    )
    frozen, thawed = "changed frozen from false to true", "changed frozen from true to false"

    def told() -> list[tuple[str, str]]:
        return [(each["by"], each["what"]) for each in scenario.events("operator_changed", group=group)]

    scenario.lab.wait_for("both events", lambda: told() == [(me, frozen), (me, thawed)])

    refused = groups(scenario, "delete", group, "--yes")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"group {group} has consumers" in refused.stderr
    assert second.consumer in refused.stderr
    empty = f"{group}-empty"
    assert groups(scenario, "create", empty, "frozen=true").returncode == 0

    def is_served(_report: GroupReport) -> bool:
        return isinstance(scenario.lab.zk.perform(Get(paths.generation(empty)), ABSENT), Content)

    scenario.wait_group("the leader serves it", empty, is_served)
    assert json.loads(groups(scenario, "delete", empty, "--yes").stdout)["deleted"]
    assert empty not in {one["group"] for one in json.loads(groups(scenario, "list").stdout)["groups"]}
    scenario.verify()


def test_a_drained_member_has_nothing_until_it_is_undrained(scenario: Scenario) -> None:
    scenario.begin(modes=[INCREMENTAL], members=2)
    (group,) = scenario.groups
    first = scenario.report(group).members[0]
    assert first.registration is not None
    owned = {member.consumer: member.owners.partitions for member in scenario.report(group).members if member.owners}
    foreseen = json.loads(groups(scenario, "drain", group, first.consumer, "--dry-run").stdout)
    assert {(move["topic"], move["partition"]) for move in foreseen["plan"]["moves"]} == owned[first.consumer].keys()
    unknown = groups(scenario, "drain", group, "nobody")
    assert (unknown.returncode, unknown.stdout, unknown.stderr.count("\n")) == (1, "", 1)
    told = groups(scenario, "drain", group, first.consumer)
    changed = f' changed drained_members from [] to ["{first.consumer}"], in group {group}\n'
    assert (told.returncode, told.stderr[-len(changed) :]) == (0, changed)

    def has_nothing(report: GroupReport) -> bool:
        return not any(tp for tp, thread in report.owned().items() if thread.startswith(first.consumer))

    scenario.wait_group("it has given everything away", group, has_nothing)
    lines = groups(scenario, "describe", group, "--state", json_wanted=False).stdout
    assert f"drained: member {first.consumer} is drained" in lines
    topic = next(iter(scenario.topics))
    explained = json.loads(groups(scenario, "explain", group, topic, "0").stdout)
    assert explained["notes"] == [f"{first.consumer} is drained: it gets nothing that another member reads"]
    host = first.registration.host
    assert groups(scenario, "drain", "--host", host).returncode == 0, "all are drained, so all have their share"
    assert groups(scenario, "undrain", "--host", host).returncode == 0
    assert groups(scenario, "undrain", group, first.consumer).returncode == 0
    scenario.verify()


def test_why_a_partition_is_where_it_is(scenario: Scenario) -> None:
    scenario.begin(modes=[INCREMENTAL])
    (group,) = scenario.groups
    topic = next(iter(scenario.topics))
    told = json.loads(groups(scenario, "explain", group, topic, "0").stdout)
    (holder,) = [m.consumer for m in scenario.report(group).members if m.owners and (topic, 0) in m.owners.partitions]
    assert told == {
        "group": group,
        "topic": topic,
        "partition": 0,
        "strategy": "sticky",
        "holder": holder,
        "target": holder,
        "reason": "kept",
        "alternative": None,
        "changes": {},
        "notes": [],
    }
    assert groups(scenario, "configure", group, "frozen=true", "strategy=balanced").returncode == 0
    frozen = json.loads(groups(scenario, "explain", group, topic, "0").stdout)
    assert (frozen["target"], frozen["reason"]) == (holder, "the group is frozen")
    assert groups(scenario, "configure", group, "frozen=").returncode == 0
    assert groups(scenario, "pin", group, topic, "0").returncode == 0
    pinned = json.loads(groups(scenario, "explain", group, topic, "0").stdout)
    assert (pinned["target"], pinned["reason"]) == (holder, "pinned")
    assert groups(scenario, "unpin", group, topic, "0").returncode == 0
    lines = groups(scenario, "explain", group, topic, "0", json_wanted=False).stdout.splitlines()
    assert lines[:2] == [f"owner of {topic}-0: {holder}", "balanced keeps it there: kept"]
    assert "the best alternative, the cost would change by: load +" in lines[2]
    for partition, code in (("99", 1), ("-1", 2), ("x", 2)):
        result = groups(scenario, "explain", group, topic, partition)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (code, "", 1), result.stderr
    scenario.verify()


def test_what_cannot_be_set_is_one_line_and_changes_nothing(scenario: Scenario) -> None:
    scenario.begin(modes=[INCREMENTAL], members=1)
    (group,) = scenario.groups
    for pairs, text in (
        (["strategy=fair"], "strategy 'fair' is unknown; known are range, round_robin"),
        (["mode=slow"], "mode 'slow' is not eager or incremental"),
        (["frozen=1"], "frozen must be true or false, not 1"),
        (["rebalance_timeout_ms=soon"], "rebalance_timeout_ms"),
        (["rebalance_timeout_ms=1"], "rebalance_timeout_ms"),
        (["speed=1"], "speed: there is no such setting; known are strategy, mode"),
        (["starts_paused=true"], "starts_paused: there is no such setting"),
        (["strategy"], "'strategy' is not KEY=VALUE"),
        (["strategy=balanced", "options.move_price=1"], "options.move_price: is unknown"),
        (["options.move_cost=dear"], "options.move_cost: must be a number"),
        (["options.pinned=" + "[" * 100_000], "options.pinned: must be an object"),
        (["mode=eager", "mode=incremental"], "mode is given twice"),
    ):
        result = groups(scenario, "configure", group, *pairs)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1), (pairs, result.stderr)
        assert text in result.stderr, (pairs, result.stderr)
    assert groups(scenario, "configure", "nobody", "mode=eager").returncode == 1
    settings = scenario.report(group).settings
    assert (settings.strategy, settings.options) == ("sticky", {})
    scenario.verify()


def test_balanced_gives_a_partition_that_gets_much_a_consumer_of_its_own(scenario: Scenario) -> None:
    """The coordinator reads ends and offsets twice, and then moves what is worth moving."""
    scenario.begin(modes=[INCREMENTAL])
    (group,) = scenario.groups
    topic = next(iter(scenario.topics))
    scenario.lab.start_producer("hot", {topic: range(1)}, HOT_RECORDS_PER_S)
    assert groups(scenario, "configure", group, "strategy=balanced", "options.catch_up_s=600").returncode == 0

    def stands_alone(report: GroupReport) -> bool:
        shares = [set(member.owners.partitions) for member in report.members if member.owners]
        return {(topic, 0)} in shares

    scenario.wait_group("a consumer of its own for the hot partition", group, stands_alone)
    note = groups(scenario, "plan", group, "--bootstrap", scenario.lab.cluster.bootstrap)
    assert "rates are known to the coordinator only" in json.loads(note.stdout)["notes"][0]
    scenario.lab.stop("hot")
    scenario.settle()


def test_balanced_reads_within_the_rack_if_that_is_worth_it(scenario: Scenario) -> None:
    """The only broker is in one rack, so the member in this rack reads everything."""
    scenario.begin(modes=[INCREMENTAL], members=0, strategy="balanced", options={"rack_cost": 100})
    (group,) = scenario.groups
    listed = scenario.lab.zk.perform(ListChildren(paths.BROKER_IDS))
    assert isinstance(listed, Children)
    (broker,) = listed.names
    path = f"{paths.BROKER_IDS}/{broker}"
    before = content_of(scenario, path)
    write(scenario, path, json.dumps({**json.loads(before), "rack": "r1"}).encode())
    near, far = scenario.join(group, rack="r1"), scenario.join(group, rack="r2")

    def near_has_all(report: GroupReport) -> bool:
        shares = {m.registration.client_id: m.owners.partitions for m in report.members if m.registration and m.owners}
        return {name: len(share) for name, share in shares.items()} == {near: sum(scenario.topics.values()), far: 0}

    scenario.wait_group("everything is read within the rack", group, near_has_all)
    foreseen = groups(scenario, "plan", group, "--bootstrap", scenario.lab.cluster.bootstrap)
    assert json.loads(foreseen.stdout)["moves"] == []
    write(scenario, path, before)
    assert groups(scenario, "configure", group, "strategy=sticky", "options.rack_cost=").returncode == 0
    scenario.verify()


def test_a_freeze_ends_at_its_time_and_a_large_plan_waits_for_a_yes(scenario: Scenario) -> None:
    scenario.begin(modes=[INCREMENTAL], members=1)
    (group,) = scenario.groups
    assert groups(scenario, "configure", group, "approve_moves_above=0").returncode == 0
    assert groups(scenario, "freeze", group, "--for", "1s").returncode == 0
    scenario.join(group)

    def waits(report: GroupReport) -> bool:
        return not report.settings.frozen and bool(obstacle(scenario, group, "unapproved"))

    scenario.wait_group("the freeze is over, and its plan waits", group, waits)
    assert obstacle(scenario, group, "unapproved") == ["unapproved"]
    before = scenario.report(group).owned()
    foreseen = json.loads(groups(scenario, "resume", group, "--dry-run").stdout)
    moves = {(each["topic"], each["partition"]) for each in foreseen["plan"]["moves"]}
    assert len(moves) == 3
    assert scenario.report(group).owned() == before
    assert groups(scenario, "resume", group).returncode == 0
    scenario.settle(group)
    after = scenario.report(group).owned()
    assert {partition for partition in before if before[partition] != after[partition]} == moves
    scenario.lab.wait_for("the end of the obstacle", lambda: not obstacle(scenario, group, "unapproved"))
    scenario.verify()


def obstacle(scenario: Scenario, group: str, kind: str) -> list[str]:
    """Return the obstacles of this kind that `describe --state` shows."""
    shown = json.loads(groups(scenario, "describe", group, "--state").stdout)["obstacles"]
    return [each["kind"] for each in shown if each["kind"] == kind]


def test_weights_take_the_place_of_measured_rates(scenario: Scenario) -> None:
    """Rates are equal, but the weights expect much of one partition; unreadable weights are reported."""
    scenario.begin(modes=[INCREMENTAL])
    (group,) = scenario.groups
    topic, partition_count = next(iter(scenario.topics.items()))
    bootstrap = ("--bootstrap", scenario.lab.cluster.bootstrap)
    write_weights(scenario.lab.zk, group, b'{"version":1}')
    assert groups(scenario, "configure", group, "strategy=balanced", "options.catch_up_s=600").returncode == 0
    told = json.loads(groups(scenario, "plan", group, *bootstrap).stdout)["notes"]
    assert "weights are not used: weights: slot_count must be an integer, not None" in told

    rates = [[float(HOT_RECORDS_PER_S)], *[[1.0]] * (partition_count - 1)]
    write_weights(scenario.lab.zk, group, encode(Weights(1, {topic: rates})))
    assert groups(scenario, "rebalance", group).returncode == 0

    def stands_alone(report: GroupReport) -> bool:
        shares = [set(member.owners.partitions) for member in report.members if member.owners]
        return {(topic, 0)} in shares

    scenario.wait_group("a consumer of its own for what is expected to be hot", group, stands_alone)
    told = json.loads(groups(scenario, "plan", group, *bootstrap).stdout)["notes"]
    assert told[0] == "rates are those of the group's weights; lag is as of now"
    scenario.verify()
