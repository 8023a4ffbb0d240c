"""A preview of a rebalance shows the coordinator's decision, and moves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from tests.support.groups import LONG_NAMES, a_group_with_a_large_share, world_with
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.assignment.explanation import Explanation
from zkrebalancer.assignment.loads import to_offsets
from zkrebalancer.assignment.model import Racks
from zkrebalancer.observe import inspection
from zkrebalancer.operations import loads
from zkrebalancer.operations.foresight import Foreseen, UnknownPartitionError, foresee, foresee_one
from zkrebalancer.operations.loads import StoredLoads
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.errors import UnknownStrategyError
from zkrebalancer.protocol.settings import INCREMENTAL, GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

T0, T1, T2, T3 = (("t", number) for number in range(4))
FROZEN = GroupSettings(frozen=True)


def client_of(world: World) -> BlockingZk:
    return cast("BlockingZk", ModelClient(world.zk))


def foreseen(world: World, under: GroupSettings | None = None, kafka: dict[str, str] | None = None) -> Foreseen:
    report = inspection.read_group(client_of(world), GROUP)
    return foresee(client_of(world), report, under or report.settings, kafka)


def explained(world: World, partition: tuple[str, int]) -> tuple[Explanation, list[str]]:
    return foresee_one(client_of(world), inspection.read_group(client_of(world), GROUP), partition, None)


def with_all_on_a(*others: str, group: GroupSettings = GroupSettings()) -> World:  # noqa: B008  # it is frozen
    """A world where `a` has all partitions of `t`, and others have just registered; the coordinator is gone."""
    world = world_with(group, "a")
    world.kill_coordinator(world.leader())
    for name in others:
        world.add_agent(name)
    world.run()
    return world


def test_a_group_at_rest_stays_as_it_is() -> None:
    found = foreseen(world_with(GroupSettings(), "a", "b"))

    assert (found.moves, found.before, found.after) == ([], {"a-1": 2, "b-1": 2}, {"a-1": 2, "b-1": 2})
    assert (found.unassigned, found.notes) == (0, [])


def test_a_new_consumer_would_get_its_half() -> None:
    found = foreseen(with_all_on_a("b"))

    assert {(before, after) for _partition, before, after in found.moves} == {("a-1", "b-1")}
    assert [partition for partition, _before, _after in found.moves] == sorted({m[0] for m in found.moves})
    assert (len(found.moves), found.before, found.after) == (2, {"a-1": 4, "b-1": 0}, {"a-1": 2, "b-1": 2})


def test_it_is_what_the_coordinator_then_does() -> None:
    world = with_all_on_a("b", "c")
    found = foreseen(world)
    world.add_coordinator()
    world.pass_time(10_000)

    assert {name: len(owned) for name, owned in world.owned().items()} == found.after
    assert found.moves


def test_a_frozen_group_gives_only_what_nobody_has() -> None:
    world = with_all_on_a("b")
    world.set_topic("t", 5)

    found = foreseen(world, FROZEN)

    assert found.moves == [(("t", 4), None, "b-1")]
    assert found.notes == ["the group is frozen: only partitions without an owner are assigned"]


def test_partitions_that_nobody_would_get_are_counted() -> None:
    world = with_all_on_a()
    world.leave(world.agents["a"])

    found = foreseen(world)

    assert (found.moves, found.before, found.after, found.unassigned) == ([], {}, {}, 0)


def test_what_a_static_member_had_waits_for_it() -> None:
    world = world_with(GroupSettings())
    member = world.add_agent("s", instance_id="s-1")
    world.pass_time(2_000)
    assert len(world.owned()["s-1"]) == 4
    world.add_agent("b")
    world.pass_time(2_000)
    assert world.owned()["s-1"]
    world.kill_agent(member)
    world.pass_time(1_000)

    found = foreseen(world)

    assert found.moves == []
    assert "static members that are away: 1; their partitions stay reserved for a while" in found.notes
    assert sum(found.before.values()) == sum(found.after.values()) == 4
    assert found.before == found.after


def test_a_strategy_that_there_is_not() -> None:
    with pytest.raises(UnknownStrategyError):
        foreseen(with_all_on_a(), GroupSettings(strategy="nonsense"))


def test_a_pin_that_holds_nothing_is_told() -> None:
    """In `foresee`, tell nothing of pins: a wrong number was accepted without a word."""
    under = GroupSettings(strategy="balanced", options={"pinned": {"t": [0, 9], "u": [1]}})
    assert "pinned, but no member owns it: t 9, u 1" in foreseen(with_all_on_a(), under).notes
    right = replace(under, options={"pinned": {"t": [0, 3]}})
    assert [note for note in foreseen(with_all_on_a(), right).notes if "pinned" in note] == []
    assert foreseen(with_all_on_a(), replace(under, strategy="sticky")).notes == []


def test_a_strategy_that_weighs_says_what_is_not_known() -> None:
    found = foreseen(with_all_on_a("b"), GroupSettings(strategy="balanced"))

    assert found.notes == ["balanced weighs lag, rates and racks, which are not known here; use --bootstrap"]
    assert found.after == {"a-1": 2, "b-1": 2}
    assert foreseen(with_all_on_a("b"), GroupSettings(strategy="sticky")).notes == []


@pytest.mark.parametrize(
    ("expected", "refused", "notes"),
    [
        ({}, None, ["rates are known to the coordinator only; lag is as of now"]),
        ({"t": [9.0, 1.0, 1.0, 1.0]}, None, ["rates are those of the group's weights; lag is as of now"]),
        (
            {},
            "weights: nonsense",
            [
                "rates are known to the coordinator only; lag is as of now",
                "weights are not used: weights: nonsense",
            ],
        ),
    ],
)
def test_a_strategy_that_weighs_is_told_lag_and_rates(
    monkeypatch: pytest.MonkeyPatch, expected: dict[str, list[float]], refused: str | None, notes: list[str]
) -> None:
    asked: list[object] = []

    def read_loads(_zk: object, kafka: object, group: str, topics: dict[str, int]) -> StoredLoads:
        asked.append((kafka, group, dict(topics)))
        ends, committed = to_offsets(topics, {T0: 9_000}), to_offsets(topics, {T0: 0})
        return StoredLoads(0, ends, committed, expected, refused, Racks())

    monkeypatch.setattr(loads, "read_loads", read_loads)
    world = with_all_on_a("b")

    found = foreseen(world, GroupSettings(strategy="balanced"), {"bootstrap.servers": "k:1"})

    assert asked == [({"bootstrap.servers": "k:1"}, GROUP, {"t": 4})]
    assert found.notes == notes
    if expected:  # one partition weighs three times the others together
        assert sorted(found.after.values()) == [1, 3]


def test_why_one_partition_is_where_it_is() -> None:
    world = world_with(GroupSettings(), "a", "b")
    report = inspection.read_group(client_of(world), GROUP)
    owner = next(name for name, owned in world.owned().items() if T2 in owned)

    explanation, notes = foresee_one(client_of(world), report, T2, None)

    assert (explanation.holder, explanation.target, notes) == (owner, owner, [])


@pytest.mark.parametrize("partition", [("t", 4), ("t", -1), ("u", 0)])
def test_a_partition_that_the_group_does_not_read_cannot_be_explained(partition: tuple[str, int]) -> None:
    world = world_with(GroupSettings(), "a")
    report = inspection.read_group(client_of(world), GROUP)
    with pytest.raises(UnknownPartitionError, match=f"{partition[0]}-{partition[1]}: group g reads and holds no topic"):
        foresee_one(client_of(world), report, partition, None)


def test_in_a_frozen_group_what_somebody_has_stays() -> None:
    world = with_all_on_a("b", group=FROZEN)
    world.set_topic("t", 5)
    report = inspection.read_group(client_of(world), GROUP)
    for partition in (T0, T1, T2, T3):
        explanation, _notes = foresee_one(client_of(world), report, partition, None)
        assert (explanation.holder, explanation.target, explanation.reason) == ("a-1", "a-1", "the group is frozen")
    explanation, _notes = foresee_one(client_of(world), report, ("t", 4), None)
    assert (explanation.holder, explanation.target) == (None, "b-1")
    assert explanation.reason != "the group is frozen"


def test_topics_that_cannot_be_read_are_as_if_they_were_not() -> None:
    world = world_with(GroupSettings(), "a")
    client = ModelClient(world.zk)
    client.create(paths.topic("broken"), b"[")
    client.create(f"{paths.BROKER_TOPICS}/a b", b'{"partitions":{"0":[1]}}')

    assert foreseen(world).moves == []
    assert set(inspection.read_topics(client_of(world))) == {"t"}


def test_settings_that_are_not_written_yet_decide() -> None:
    world = with_all_on_a("b")
    world.configure(settings.encode(FROZEN))

    assert len(foreseen(world, GroupSettings()).moves) == 2
    assert foreseen(world).moves == []


def test_a_strategy_that_weighs_nothing_asks_kafka_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "read_loads", None)
    found = foreseen(with_all_on_a("b"), GroupSettings(strategy="sticky"), {"bootstrap.servers": "k:1"})
    assert (found.after, found.notes) == ({"a-1": 2, "b-1": 2}, [])


def test_a_plan_that_was_approved_is_not_said_to_wait() -> None:
    """In `foresee`, compare with no generation."""
    waiting = GroupSettings(approve_moves_above=0)
    world = with_all_on_a("b")
    (note,) = foreseen(world, waiting).notes
    assert note.startswith("2 partitions would leave their members")
    generation = inspection.read_group(client_of(world), GROUP).generation
    approved = replace(waiting, approved_moves=2, approved_generation=generation)
    assert foreseen(world, approved).notes == []


@pytest.mark.parametrize(
    ("names", "group", "moved", "notes"),
    [
        ("ab", GroupSettings(drained_members=("a-1",)), 2, []),
        (
            "ab",
            GroupSettings(drained_members=("a-1",), frozen=True),
            0,
            [
                "the group is frozen: only partitions without an owner are assigned",
                "a-1 is drained, and keeps 2 partitions: the group is frozen",
            ],
        ),
        (
            "a",
            GroupSettings(drained_members=("a-1",)),
            0,
            ["a-1 is drained, and keeps 4 partitions: no other member can get them"],
        ),
    ],
)
def test_what_a_drained_member_would_keep_is_told_with_the_reason(
    names: str, group: GroupSettings, moved: int, notes: list[str]
) -> None:
    found = foreseen(world_with(GroupSettings(), *names), group)
    assert (len(found.moves), found.notes) == (moved, notes)
    assert {(before, after) for _partition, before, after in found.moves} <= {("a-1", "b-1")}


def test_why_a_partition_leaves_a_drained_member_or_stays_there() -> None:
    for names, reason in (("ab", "a-1 is drained"), ("a", "a-1 is drained, but no other member can get it")):
        world = world_with(GroupSettings(), *names)
        (partition, *_others) = sorted(world.owned()["a-1"])
        world.configure(settings.encode(GroupSettings(drained_members=("a-1",))))
        report = inspection.read_group(client_of(world), GROUP)
        explanation, notes = foresee_one(client_of(world), report, partition, None)
        assert (explanation.holder, explanation.reason) == ("a-1", reason)
        assert notes == ["a-1 is drained: it gets nothing that another member reads"]


@pytest.mark.parametrize("drained", ["a-1", "b-1"])
def test_who_can_be_told_nothing_keeps_what_it_holds_as_the_coordinator_then_does(drained: str) -> None:
    """In `_read_problem`, do not ask what the leader publishes; in `foresee_one`, whether the holder keeps it."""
    world = world_with(GroupSettings(), "a", "b", partitions=6)
    world.zk.denied.add(("", paths.channel(GROUP, "b-1"), Right.CREATE))
    world.add_agent("c")
    world.pass_time(5_000)
    group = GroupSettings(drained_members=(drained,))
    found = foreseen(world, group)
    assert (found.before["b-1"], found.after["b-1"]) == (3, 3)
    assert "the coordinator may not read or command b-1, which keeps what it holds" in found.notes
    report = inspection.read_group(client_of(world), GROUP)
    explanation, _notes = foresee_one(client_of(world), report, min(world.owned()["b-1"]), None)
    assert (explanation.holder, explanation.target) == ("b-1", "b-1")
    assert "keeps what it holds" in explanation.reason

    world.configure(settings.encode(group))
    world.pass_time(10_000)
    assert {name: len(owned) for name, owned in world.owned().items()} == found.after


def test_what_else_is_refused_to_the_coordinator_or_to_the_operator_is_told() -> None:
    """In `_out_of_reach`, tell only of members; or let an error of what the leader publishes be one of the preview."""
    world = world_with(GroupSettings(), "a")
    world.kill_coordinator(world.leader())
    world.zk.denied.add(("", paths.generation(GROUP), Right.READ))
    world.add_coordinator()
    world.pass_time(5_000)
    world.zk.denied.clear()
    told = f"ZooKeeper refuses {paths.generation(GROUP)} to the coordinator, which may therefore do something else"
    assert foreseen(world).notes == [told]
    world.zk.denied.add(("", paths.COORDINATOR_OBSTACLES, Right.READ))
    (note,) = foreseen(world).notes
    assert note.startswith("which members the coordinator may not read or command is not known: ")


def test_a_newcomer_that_can_be_told_nothing_is_no_target() -> None:
    """In `foresee_one`, take the target of the explanation, which knows of no such member."""
    world = world_with(GroupSettings(), "a", "c", partitions=6)
    world.zk.denied.add(("", paths.channel(GROUP, "b-1"), Right.CREATE))
    world.add_agent("b")
    world.pass_time(5_000)
    found = [explained(world, ("t", number)) for number in range(6)]
    assert {why.holder for why, _notes in found} == {"a-1", "c-1"}
    assert all(why.target == why.holder for why, _notes in found)
    assert "b-1 gets nothing more" in {why.reason for why, _notes in found}
    assert {*found[0][1]} == {"the coordinator may not read or command b-1, which keeps what it holds"}


def test_what_the_leader_does_not_publish_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_out_of_reach`, look only at the obstacles that are published."""
    monkeypatch.setattr("zkrebalancer.rebalance.obstacles.MAX_OBSTACLES", 0)
    world = world_with(GroupSettings(), "a", "b", partitions=6)
    world.zk.denied.add(("", paths.channel(GROUP, "b-1"), Right.CREATE))
    world.add_agent("c")
    world.pass_time(5_000)
    told = "the leader does not publish 1 of its obstacles, perhaps of this group; its log has them"
    assert told in foreseen(world).notes
    ModelClient(world.zk).set(paths.COORDINATOR_OBSTACLES, b"?")
    (note,) = foreseen(world).notes
    assert note.startswith("which members the coordinator may not read or command is not known: ")


def test_who_gets_no_more_topics_because_its_record_is_full_can_be_drained() -> None:
    """In `_out_of_reach`, count it among the members that cannot be commanded."""
    world = a_group_with_a_large_share(INCREMENTAL)
    world.act(world.add_agent("b", dict.fromkeys(LONG_NAMES, 1)))
    found = foreseen(world, GroupSettings(drained_members=("a-1",)))
    assert (found.before["a-1"] > 50, found.after) == (True, {"a-1": 0, "b-1": len(LONG_NAMES)})
    assert found.notes == [f"what a-1 may own does not fit into {paths.given(GROUP, 'a-1')}: it gets no more topics"]


def test_what_the_operator_may_not_read_is_not_laid_at_the_coordinators_door() -> None:
    """In `_why_it_stays`, return the first reason always."""
    world = world_with(GroupSettings(), "a", "b")
    partition = min(world.owned()["a-1"])
    world.kill_coordinator(world.leader())
    world.zk.denied.add(("", paths.channel(GROUP, "a-1"), Right.READ))
    why, _notes = explained(world, partition)
    assert (why.holder, why.target) == ("a-1", "a-1")
    assert why.reason == "a-1 may not be read with this login, so what it is to hold is not known"


def test_an_explanation_tells_that_the_plan_would_wait_for_an_operator() -> None:
    """In `foresee_one`, look at no limit."""
    world = with_all_on_a("b", group=GroupSettings(approve_moves_above=0))
    _why, (note,) = explained(world, T0)
    assert note.startswith("2 partitions would leave their members, more than approve_moves_above (0)")
