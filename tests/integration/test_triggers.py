"""Each trigger of a rebalance, in both modes at once: the group settles, and nothing is lost or duplicated."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from tests.integration.commands import run
from tests.integration.scenario import MODES, PARTITIONS, Event, Scenario, owners_of
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL, GroupSettings


def test_a_consumer_joins(scenario: Scenario) -> None:
    """Two consumers with three partitions each give up one each; in eager mode, all six are stopped."""
    scenario.begin()
    scenario.join_all()
    scenario.settle()
    wanted = {INCREMENTAL: 2, EAGER: PARTITIONS}
    scenario.lab.wait_for("the events of all stops", lambda: sum(stopped(scenario).values()) >= sum(wanted.values()))
    assert stopped(scenario) == wanted
    for group in scenario.groups:
        require_history(scenario, group)
    scenario.verify()
    logged = "\n".join(scenario.log_lines(*scenario.coordinators))
    for group in scenario.groups:
        for told in ("joined", "planned because of member-joined", "finished after", "left: closed"):
            assert re.search(f" INFO group {group}: .*{told}", logged), (group, told)


def stopped(scenario: Scenario) -> dict[str, int]:
    """Return how many partitions were stopped for the third member in each mode, as far as events are written."""
    found = dict.fromkeys(MODES, 0)
    for rebalance in scenario.events("rebalance_planned", member_count=3):
        for event in scenario.events("fetcher_stopped", group=rebalance["group"], generation=rebalance["generation"]):
            found[rebalance["mode"]] += len(event["partitions"])
    return found


def require_history(scenario: Scenario, group: str) -> None:
    """Require that the recorded rebalances are those of the events."""
    describe = ("zkrebalancer", "groups", "describe", group, "--zookeeper", scenario.lab.cluster.zookeeper, "--history")

    def finished() -> dict[int, Event]:
        return {event["generation"]: event for event in scenario.events("rebalance_finished", group=group)}

    def past() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(run(*describe, "--json").stdout)["history"]
        return found

    scenario.lab.wait_for("the history", lambda: len(past()) == len(finished()))
    requested = {event["cause_id"]: event["trigger"] for event in scenario.events("rebalance_requested", group=group)}
    for each in past():
        event = finished()[each["generation"]]
        recorded = each["outcome"], each["moved"], each["settled_ms"], each["late"], each["pause_ms_max"]
        times = event["settled_us"] / 1_000, event["late_members"], event["pause_us_max"] / 1_000
        assert recorded == (event["outcome"], event["moved_count"], *times)
        assert each["reasons"][0]["kind"] == requested[event["cause_id"]]
    shown = run(*describe, "1")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert past()[-1]["reasons"][0]["kind"] in shown.stdout
    assert len(json.loads(run(*describe, "1", "--json").stdout)["history"]) == 1


def test_a_consumer_leaves(scenario: Scenario) -> None:
    scenario.begin(members=3)
    leaving = [scenario.take_out(group) for group in scenario.groups]
    scenario.lab.stop(*leaving)
    scenario.verify()
    assert {event["reason"] for event in scenario.events("member_left")} >= {"closed"}


def test_a_consumer_is_killed(scenario: Scenario) -> None:
    scenario.begin(members=3)
    for group in scenario.groups:
        scenario.lab.kill(scenario.take_out(group))
    scenario.verify()
    assert [event["reason"] for event in scenario.events("member_left", reason="expired")] == ["expired"] * 2


def test_a_consumer_is_frozen_past_its_session_and_thawed(scenario: Scenario) -> None:
    """Its session has expired: it reports the lost partitions and joins again as a new consumer."""
    scenario.begin()
    frozen = {group: scenario.take_out(group) for group in scenario.groups}
    for name in frozen.values():
        scenario.lab.freeze(name)
    scenario.settle()
    for group, name in frozen.items():
        scenario.lab.thaw(name)
        scenario.groups[group].append(name)
    scenario.verify()


def test_an_operator_evicts(scenario: Scenario) -> None:
    """The agent still runs: it loses its partitions, and joins again as a new consumer."""
    scenario.begin(modes=[INCREMENTAL])
    (group,) = scenario.groups
    consumer = min(member.consumer for member in scenario.report(group).members)
    evict = ("zkrebalancer", "groups", "evict", group, consumer, "--zookeeper", scenario.lab.cluster.zookeeper)
    foreseen = json.loads(run(*evict, "--dry-run", "--json").stdout)
    assert (foreseen["evicted"], foreseen["has_leader"]) == (False, True)
    assert foreseen["partitions"]
    done = run(*evict, "--yes", "--json")
    assert json.loads(done.stdout) == {**foreseen, "evicted": True}
    assert f" evicted {consumer} from group {group}" in done.stderr
    scenario.wait_group("it is gone", group, lambda report: consumer not in {m.consumer for m in report.members})
    scenario.wait_group("it is back", group, lambda report: len(report.members) == 2)
    scenario.verify()
    assert [event["member"] for event in scenario.events("member_left", reason="evicted")] == [consumer]


def test_partitions_are_added(scenario: Scenario) -> None:
    scenario.begin()
    scenario.grow_topic(scenario.topic("t"), PARTITIONS + 3)
    scenario.verify()
    assert {event["trigger"] for event in scenario.events("rebalance_requested")} >= {"partitions-added"}


def test_a_topic_appears_that_a_wildcard_matches(scenario: Scenario) -> None:
    scenario.pattern = f"^t{scenario.number}-"
    scenario.begin()
    scenario.add_topic("new", 3)
    scenario.verify()
    assert len(scenario.events("rebalance_requested", trigger="topic-created")) >= len(MODES)


def test_a_topic_is_deleted(scenario: Scenario) -> None:
    scenario.pattern = f"^t{scenario.number}-"
    scenario.begin()
    gone = scenario.add_topic("gone", 3)
    scenario.settle()
    scenario.delete_topic(gone)
    scenario.verify()
    assert len(scenario.events("rebalance_requested", trigger="topic-deleted")) >= len(MODES)


def test_a_topic_is_deleted_and_created_again(scenario: Scenario) -> None:
    """Its new records reuse the old offsets; all are read, from the first."""
    scenario.begin()
    scenario.delete_topic(scenario.topic("t"))
    scenario.settle()
    began_us = scenario.now_us()
    scenario.add_topic("t")
    scenario.settle()
    settled_us = scenario.now_us()  # the last consumer to be closed takes over what the others have read
    scenario.verify()
    started = scenario.events("fetcher_started", since_us=began_us, until_us=settled_us)
    before = scenario.events("fetcher_started", until_us=began_us)
    assert {event["member"] for event in started} == {event["member"] for event in before}
    assert {position for event in started for position in event["positions"]} == {0}


def test_the_strategy_is_changed(scenario: Scenario) -> None:
    """Change from sticky to range, which gives the last consumer other partitions."""
    scenario.begin(members=1)
    scenario.join_all()
    scenario.settle()
    for group, mode in zip(scenario.groups, MODES, strict=True):
        scenario.lab.configure(group, GroupSettings(mode=mode, strategy="range"))
        scenario.wait_event("rebalance_requested", group=group, trigger="settings-changed")
    scenario.settle()
    for group in scenario.groups:
        scenario.wait_group("in order", group, lambda report: is_range(owners_of(report)))
    scenario.verify()


def is_range(owners: Mapping[tuple[str, int], str]) -> bool:
    """Whether the first consumer by name has the first half."""
    return [owners[partition] for partition in sorted(owners)] == sorted(owners.values())


def test_the_mode_is_changed(scenario: Scenario) -> None:
    """The next rebalance uses the new mode; the change itself moves nothing."""
    scenario.begin()
    before = {group: owners_of(scenario.report(group)) for group in scenario.groups}
    for group, mode in zip(scenario.groups, reversed(MODES), strict=True):
        scenario.lab.configure(group, GroupSettings(mode=mode))
        scenario.wait_event("rebalance_requested", group=group, trigger="settings-changed")
    assert {group: owners_of(scenario.report(group)) for group in scenario.groups} == before
    scenario.join_all()
    scenario.verify()
    modes = {group: scenario.events("rebalance_planned", group=group)[-1]["mode"] for group in scenario.groups}
    assert list(modes.values()) == list(reversed(MODES))


def test_an_operator_asks(scenario: Scenario) -> None:
    """The request is handled; nothing has to move, so it leads to no plan."""
    scenario.begin()
    for group in scenario.groups:
        result = run("zkrebalancer", "groups", "rebalance", group, "--zookeeper", scenario.lab.cluster.zookeeper)
        assert (result.returncode, result.stderr.count("\n")) == (0, 1), result.stderr
        assert result.stderr.endswith(f" requested a check, in group {group}\n")
        scenario.wait_event("rebalance_requested", group=group, trigger="operator-request")
    verdict = scenario.verify()
    assert "operator-request" not in {rebalance.cause for rebalance in verdict.rebalances}


def test_consumers_with_several_threads(scenario: Scenario) -> None:
    scenario.threads = 2
    scenario.begin()
    scenario.join_all()
    scenario.settle()
    for group in scenario.groups:
        owners = [member.owners for member in scenario.report(group).members if member.owners]
        threads = Counter(thread for record in owners for thread in record.partitions.values())
        assert set(threads) == {0, 1}
    scenario.verify()


def test_a_consumer_changes_its_subscription(scenario: Scenario) -> None:
    """It stays the same consumer and keeps the remaining topics; later it subscribes to all again."""
    scenario.begin(members=0)
    second = scenario.add_topic("u")
    applications = {group: scenario.join_here(group) for group in scenario.groups}
    scenario.join_all()
    scenario.settle()
    first = scenario.topic("t")
    # Not by events, of which some may not be in their files yet.
    registered = {group: set(owners_of(scenario.report(group)).values()) for group in scenario.groups}
    for application in applications.values():
        application.subscribe([first])
    for group, application in applications.items():
        scenario.wait_group("the change", group, partial(reads_only, client=application.name, topic=first))
    scenario.settle()
    for application in applications.values():
        application.subscribe([first, second])
    scenario.verify()
    assert {group: consumers(scenario, group) for group in scenario.groups} == registered
    assert not any(application.lost for application in applications.values())


def consumers(scenario: Scenario, group: str) -> set[str]:
    """Return the consumers that ever got partitions in a group."""
    return {event["member"] for event in scenario.events("fetcher_started", group=group)}


def reads_only(report: GroupReport, client: str, topic: str) -> bool:
    """Whether a client owns partitions of this topic and of no other."""
    return {name for (name, _), consumer in owners_of(report).items() if consumer.startswith(client)} == {topic}
