"""What a coordinator shows of itself: health, figures of groups, and metrics as Prometheus wants them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import gevent
import pytest
from prometheus_client.core import Metric

from tests.support.groups import world_with
from tests.support.page_site import shards_of
from tests.support.world import GROUP, World
from zkrebalancer.coordinator import monitor as monitor_module
from zkrebalancer.coordinator.metrics import CAUSES, MAX_GAP_US, Lasting, Present, Recorded
from zkrebalancer.coordinator.monitor import Monitor
from zkrebalancer.coordinator.service_levels import ServiceLevels
from zkrebalancer.gateway import metrics as gateway_metrics
from zkrebalancer.group_protocol.figures import GroupFigures
from zkrebalancer.protocol.calls import Connected, Done, Replied, RepliedAll, RepliedInRow, Reply, Suspended
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.protocol.shards import WHOLE, Number, Shard
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.effects import Emit, EventField
from zkrebalancer.rebalance.election import Identity
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.notify import Notifier
from zkrebalancer.runtime.vitals import Vitals
from zkrebalancer.topic_mirror import metrics as mirror_metrics

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
EVENTS = PAGE.with_name("events.md")


def monitor_of(world: World) -> Monitor:
    monitor = Monitor(shards_of(world.leader().machine), Vitals(6_000, Notifier({})))
    monitor.observed = Recorded()
    monitor.handling(Connected(1, 6_000))
    return monitor


def collected(monitor: Monitor) -> dict[str, Metric]:
    return {metric.name: metric for metric in Present(monitor, lambda: 0, lambda: 0).collect()}


def value(metrics: dict[str, Metric], name: str, **labels: str) -> float:
    (found,) = (one.value for one in metrics[f"zkrebalancer_coordinator_{name}"].samples if one.labels == labels)
    return found


def test_a_member_that_does_not_answer_shows_in_the_figures_of_its_group() -> None:
    world = world_with(GroupSettings(), "a", partitions=4)
    monitor = monitor_of(world)
    metrics = collected(monitor)
    assert [value(metrics, name) for name in ("members", "partitions", "partitions_unowned")] == [1, 4, 0]
    assert (value(metrics, "groups", state="idle"), value(metrics, "leader")) == (1, 1)
    world.agents["a"].silent = True
    world.set_topic("t", 6)
    world.pass_time(1_000)
    metrics = collected(monitor)
    assert [value(metrics, name) for name in ("commands_pending", "partitions", "partitions_unowned")] == [1, 6, 0]
    assert value(metrics, "groups", state="moving") == 1
    (figures,) = monitor.figures()
    assert figures.line().startswith(f"group {GROUP}: moving for ")
    assert "1 members, 6 partitions, 0 of them without an owner, 1 pending commands" in figures.line()


def test_partitions_that_wait_for_a_static_member_have_no_owner() -> None:
    world = world_with(GroupSettings(), partitions=4)
    world.add_agent("a", instance_id="i")
    world.add_agent("b")
    world.pass_time(1_000)
    world.kill_agent(world.agents["a"])
    world.pass_time(7_000)
    assert value(collected(monitor_of(world)), "partitions_unowned") == 2


def test_only_partitions_that_stay_without_an_owner_add_up_to_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Present.collect`, note each group, or none."""
    now_s = [0]
    monkeypatch.setattr(clock, "steady_us", lambda: now_s[0] * 1_000_000)
    world = world_with(GroupSettings(static_grace_ms=60_000), partitions=4)
    world.add_agent("a", instance_id="i")
    world.add_agent("b")
    world.pass_time(1_000)
    present = Present(monitor_of(world), lambda: 0, lambda: 0)

    def found(at_s: int) -> float:
        now_s[0] = at_s
        return value({metric.name: metric for metric in present.collect()}, "partitions_unowned_seconds_max")

    assert found(10) == 0
    world.kill_agent(world.agents["a"])
    world.pass_time(7_000)
    assert [found(20), found(80)] == [0, 60]
    world.add_agent("c", instance_id="i")
    world.pass_time(1_000)
    assert found(140) == 0


def test_groups_that_are_without_an_owner_in_turn_do_not_add_up() -> None:
    """In `Lasting.longest_us`, forget no group, or ask for any group at each reading."""
    lasting = Lasting()
    found = [lasting.longest_us(names, at) for at, names in enumerate(["ab", "bc", "bd", "ac", "", "b", "b"])]
    assert found == [0, 1, 2, 0, 0, 0, 1]


def test_a_pause_of_the_readings_is_not_taken_for_a_time_without_an_owner() -> None:
    """In `Lasting.longest_us`, do not look at the time of the reading before."""
    lasting = Lasting()
    hour_us = 3_600_000_000
    assert [lasting.longest_us("a", at_us) for at_us in (1, hour_us, hour_us + MAX_GAP_US)] == [0, 0, MAX_GAP_US]


def test_groups_have_labels_only_if_that_is_switched_on() -> None:
    monitor = monitor_of(world_with(GroupSettings(), "a", partitions=4))
    assert not [name for name in collected(monitor) if name.startswith("zkrebalancer_coordinator_group_members")]
    monitor.show_groups(is_wanted=True)
    metrics = collected(monitor)
    assert value(metrics, "group_partitions", group=GROUP) == 4
    assert value(metrics, "group_state_age_seconds", group=GROUP, state="idle") >= 0


def test_requests_that_need_no_plan_do_not_push_causes_of_rebalances_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_module, "MAX_CAUSES", 2)
    monitor = monitor_of(world_with(GroupSettings(), "a"))
    monitor.emitted(Emit("rebalance_requested", "g", 1, "slow", {"trigger": "member-joined"}))
    monitor.emitted(Emit("rebalance_planned", "g", 1, "slow", {}))
    for number in range(5):
        monitor.emitted(Emit("rebalance_requested", "g", 1, f"idle-{number}", {"trigger": "reconciliation"}))
    assert monitor.emitted(Emit("command_sent", "g", 1, "slow", {})) == "member-joined"
    assert monitor.emitted(Emit("command_sent", "g", 1, "idle-0", {})) == "unknown"


def test_others_have_their_turn_while_groups_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_module, "MAX_LOOKS", 0)
    monitor = monitor_of(world_with(GroupSettings(), "a"))
    turns: list[str] = []
    other = gevent.spawn_later(0, turns.append, "other")
    assert len(list(monitor.figures())) == 1
    assert turns == ["other"]
    other.kill()


def test_a_rebalance_is_counted_with_its_cause_which_is_an_exemplar_of_the_histograms() -> None:
    monitor = monitor_of(world_with(GroupSettings(), "a"))
    fields: dict[str, EventField] = {
        "outcome": "finished",
        "moved_count": 2,
        "late_members": "",
        "settled_us": 30_000,
        "pause_us_max": 700,
    }
    monitor.emitted(Emit("rebalance_requested", "g", 1, "id-1", {"trigger": "member-joined"}))
    monitor.emitted(Emit("rebalance_finished", "g", 1, "id-1", fields))
    monitor.emitted(Emit("rebalance_finished", "g", 1, "id-0", {**fields, "outcome": "superseded"}))
    assert isinstance(monitor.observed, Recorded)
    samples = [one for metric in monitor.observed.registry.collect() for one in metric.samples]
    counted = {tuple(one.labels.values()): one.value for one in samples if one.name.endswith("rebalances_total")}
    counted = {labels: number for labels, number in counted.items() if number}
    assert counted == {("member-joined", "finished"): 1, ("unknown", "superseded"): 1}
    exemplars = {one.name: one.exemplar.labels for one in samples if one.exemplar is not None}
    expected = {"cause": "member-joined", "cause_id": "id-1"}
    prefix = "zkrebalancer_coordinator_rebalance"
    assert exemplars == {f"{prefix}_settle_seconds_bucket": expected, f"{prefix}_pause_seconds_bucket": expected}


def test_counters_of_events_begin_at_zero_because_a_first_value_of_one_is_no_growth() -> None:
    """In `Recorded`, `Metrics`, leave out the zeros: Prometheus' `increase` misses the first failure."""
    triggers = EVENTS.read_text().partition("\nTriggers: ")[2].partition("\n\n")[0]
    assert {*re.findall(r"`([\w-]+)`", triggers), "unknown"} == {*CAUSES}
    at_first = [*Recorded().registry.collect(), *shown_by_a_gateway()]
    zeros: dict[str, set[tuple[str, ...]]] = {}
    for sample in (one for metric in at_first for one in metric.samples if one.name.endswith("_total")):
        if sample.value == 0:
            zeros.setdefault(sample.name, set()).add(tuple(sample.labels.values()))
    outcomes = {(cause, outcome) for cause in CAUSES for outcome in ("finished", "superseded", "failed")}
    assert zeros["zkrebalancer_coordinator_rebalances_total"] == outcomes
    assert len(zeros["zkrebalancer_coordinator_region_rounds_total"]) == 2 * 2
    assert zeros["zkrebalancer_gateway_errors_total"] == {("upstream",), ("zookeeper",), ("group",)}


def test_rounds_of_regions_are_counted_and_only_completed_ones_are_measured() -> None:
    monitor = monitor_of(world_with(GroupSettings(), "a"))
    for kind, elapsed_us in (("checkpoint_completed", 30_000), ("checkpoint_abandoned", 9), ("reset_completed", 2_000)):
        monitor.emitted(Emit(f"region_{kind}", "g", None, None, {"round": 1, "elapsed_us": elapsed_us}))
    assert isinstance(monitor.observed, Recorded)
    samples = [one for metric in monitor.observed.registry.collect() for one in metric.samples]
    counted = {tuple(one.labels.values()): one.value for one in samples if one.name.endswith("region_rounds_total")}
    rounds = {("checkpoint", "completed"): 1, ("checkpoint", "abandoned"): 1, ("reset", "completed"): 1}
    assert counted == {**rounds, ("reset", "abandoned"): 0}
    spent_s = {one.labels["kind"]: one.value for one in samples if one.name.endswith("region_round_seconds_sum")}
    assert spent_s == {"checkpoint": 0.03, "reset": 0.002}


def test_a_coordinator_without_zookeeper_is_not_ready_and_leads_nobody() -> None:
    monitor = monitor_of(world_with(GroupSettings(), "a"))
    assert (monitor.health().faults, monitor.health().leads) == ([], True)
    monitor.handling(Suspended())
    assert (monitor.health().faults, monitor.health().leads) == (["ZooKeeper does not answer"], False)
    new = Monitor(shards_of(Coordinator(Identity(1, "h"))), Vitals(6_000, Notifier({})))
    new.handling(Connected(1, 6_000))
    assert new.health().faults == ["it neither leads nor is a standby yet: disconnected"]


def shown_by_a_coordinator() -> list[Metric]:
    monitor = monitor_of(world_with(GroupSettings(), "a"))
    monitor.show_groups(is_wanted=True)
    assert isinstance(monitor.observed, Recorded)
    return [*collected(monitor).values(), *monitor.observed.registry.collect(), *ServiceLevels(monitor).collect()]


def shown_by_a_gateway() -> list[Metric]:
    groups = [GroupFigures("g", "Stable", "classic", members=2, generation=7)]
    present = gateway_metrics.Present(dict.fromkeys(gateway_metrics.GAUGES, 0), groups, is_per_group=True)
    return list(gateway_metrics.registry(gateway_metrics.Metrics(), lambda: present).collect())


@pytest.mark.parametrize(
    ("title", "prefix", "shown"),
    [
        ("## Coordinator", "zkrebalancer_coordinator_", shown_by_a_coordinator()),
        ("## Gateway", "zkrebalancer_gateway_", shown_by_a_gateway()),
        ("## Topic mirror", "zkrebalancer_mirror_", list(mirror_metrics.registry(mirror_metrics.Seen()).collect())),
    ],
)
def test_every_metric_is_explained_and_documented(title: str, prefix: str, shown: list[Metric]) -> None:
    own = [metric for metric in shown if not metric.name.startswith("process_")]
    assert all(metric.documentation.endswith(".") for metric in own)
    section = PAGE.read_text().partition(title)[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    documented = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    names = {metric.name.removeprefix(prefix) + "_total" * (metric.type == "counter") for metric in own}
    assert names == documented


def test_the_shard_of_a_group_is_found_without_a_look_at_all_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Monitor.machine_of`, ask each shard: 100 ms of the loop for ten thousand groups in 200 shards."""
    world = world_with(GroupSettings(), "a")
    shards = shards_of(world.leader().machine)
    several = [SimpleNamespace(shard=shard, groups={}) for shard in Number(7).all(0)]
    shards.machines = tuple(cast("Coordinator", one) for one in several)
    names = [f"g-{number}" for number in range(50)]
    expected = {name: shard.number for name in names for shard in Number(7).all(0) if shard.has(name)}
    monkeypatch.setattr(Shard, "has", lambda _shard, group: pytest.fail(f"it looks for {group}"))
    monitor = Monitor(shards, Vitals(6_000, Notifier({})))
    found = {name: monitor.machine_of(name) for name in names}
    assert {name: one.shard.number for name, one in found.items() if one is not None} == expected


def test_others_have_their_turn_while_groups_with_service_levels_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `ServiceLevels._with`, look at all groups at once, at each scrape and each minute."""
    monkeypatch.setattr(monitor_module, "MAX_LOOKS", 10)
    turns: list[float] = []
    monkeypatch.setattr(monitor_module, "gevent", SimpleNamespace(sleep=turns.append))
    world = world_with(GroupSettings(slo={"pause_ms": 5}), "a")
    shards = shards_of(world.leader().machine)
    (group,) = shards.machines[0].groups.values()
    many = SimpleNamespace(shard=WHOLE, groups={f"g-{number}": group for number in range(95)})
    shards.machines = (cast("Coordinator", many),)
    levels = ServiceLevels(Monitor(shards, Vitals(6_000, Notifier({}))))
    list(levels.collect())
    assert len(turns) == 9


def test_answers_to_calls_for_people_are_found_among_those_to_the_core() -> None:
    """In `Monitor.handling`, look at the first reply only."""
    monitor, answered = monitor_of(world_with()), list[Replied]()
    monitor.answered = answered.append
    replies: list[Reply] = [Done(("a",)), Done(("b",))]
    monitor.handling(RepliedAll((RepliedInRow(7, replies), RepliedInRow(-3, replies), Replied(-9, replies[0]))))
    assert answered == [Replied(-3, replies[0]), Replied(-2, replies[1]), Replied(-9, replies[0])]
