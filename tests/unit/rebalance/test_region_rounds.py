"""The leader's part of a consistent region: what it orders, in which order, and what it tells about each round."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.groups import read_paths, world_with
from tests.support.region_world import ORDER, SETTINGS, RegionWorld
from tests.support.world import GROUP
from tests.support.zk_model import Right
from zkrebalancer.protocol import paths
from zkrebalancer.protocol import settings as group_settings
from zkrebalancer.protocol.calls import Create, Multi
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.effects import Emit, EventField
from zkrebalancer.region import documents
from zkrebalancer.region.documents import CHECKPOINT, RESET, UNKNOWN, Merge, Order, Round
from zkrebalancer.region.limits import FIRST_CHECKPOINT_MS

T = [("t", number) for number in range(4)]


def test_a_group_without_a_region_reads_none() -> None:
    world = world_with(GroupSettings(), "a")
    asked = read_paths(world)
    world.zk.perform(Multi((Create(f"{paths.group(GROUP)}/other"),)))
    world.pass_time(1_000_000)
    assert paths.group(GROUP) in asked
    assert not [path for path in asked if "region" in path]


# ---- a checkpoint


def test_members_are_admitted_in_one_order_and_nothing_else_happens_before_a_checkpoint_is_due() -> None:
    region = RegionWorld("a", "b")
    members = {"a": region.zxid("a"), "b": region.zxid("b")}
    assert region.orders() == [Order(), Order(members=members)]
    region.pass_time(SETTINGS.every_ms - 1)
    assert (region.region.reason, len(region.orders())) == ("flows", 2)
    region.pass_time(1)
    assert region.orders()[2:] == [Order(id=1, open=Round(1, CHECKPOINT, ("a", "b")), members=members)]


def test_a_checkpoint_is_complete_with_the_last_answer_and_told_with_its_duration() -> None:
    region = RegionWorld("a", "b")
    number = region.open_checkpoint()
    ordered = Emit("region_checkpoint_ordered", GROUP, None, None, {"round": number, "reason": "a checkpoint is due"})
    assert ordered in region.world.events
    region.pass_time(300)
    region.answer("a", region.held("a", 5))
    region.run()
    assert region.region.reason == "waits for the checkpoint of b"
    region.pass_time(200)
    region.answer("b", region.held("b", 6))
    region.run()
    assert region.merge() == Merge(
        number, region.held("a", 5) | region.held("b", 6), {"t": "id-1"}, {"a": number, "b": number}
    )
    completed: dict[str, EventField] = {
        "round": number,
        "member_count": 2,
        "elapsed_us": 500_000,
        "reason": "all have stored their checkpoints",
    }
    assert Emit("region_checkpoint_completed", GROUP, None, None, completed) in region.world.events
    assert not region.events("checkpoint_abandoned")
    assert not region.warnings()


def test_a_checkpoint_is_due_though_the_group_is_read_again_more_often() -> None:
    """Idle groups are, every few minutes. In `RoundTimes.read`, begin the time anew."""
    region = RegionWorld("a", "b", settings=replace(SETTINGS, every_ms=700_000))
    region.pass_time(699_000)
    assert len(region.orders()) == 2
    region.pass_time(1_000)
    assert region.orders()[2].open == Round(1, CHECKPOINT, ("a", "b"))


def test_leaders_that_change_more_often_than_a_checkpoint_is_due_do_not_prevent_all() -> None:
    """In `_maybe_checkpoint`, leave out `knows_last`: each leader would begin to count anew, also after a void one."""
    region = RegionWorld("a", "b", settings=replace(SETTINGS, every_ms=3_600_000))
    region.pass_time(3_000_000)
    region.replace_leader()
    region.pass_time(FIRST_CHECKPOINT_MS)
    assert region.order().open == Round(1, CHECKPOINT, ("a", "b"))
    region.replace_leader()
    assert region.order().open is None
    region.pass_time(FIRST_CHECKPOINT_MS)
    assert region.order().open == Round(2, CHECKPOINT, ("a", "b"))
    region.pass_time(SETTINGS.reset_ms)
    assert region.order().complete is None
    region.pass_time(2 * FIRST_CHECKPOINT_MS)
    last = region.order().open
    assert last is not None
    assert last.id > 2
    region.answer_all()
    assert region.order().complete == last.id
    region.pass_time(3_599_000)
    assert region.order().open is None
    region.pass_time(1_000)
    assert region.order().open == Round(last.id + 1, CHECKPOINT, ("a", "b"))


@pytest.mark.parametrize("moves", [False, True])
def test_a_checkpoint_that_lasts_while_its_group_is_read_again_is_void_only_if_something_moves(moves: bool) -> None:
    """A plan is made then. In `RoundTimes.begin`, do not note it; in `has_moved`, return False."""
    region = RegionWorld("a", "b", settings=replace(SETTINGS, reset_ms=700_000))
    region.set(paths.group(GROUP), group_settings.encode(GroupSettings(strategy="round_robin")))
    region.run()
    number = region.open_checkpoint()
    region.answer("a", region.held("a", 5))
    region.run()
    if moves:
        hidden = "", paths.ids(GROUP), Right.READ
        region.world.zk.denied.add(hidden)  # no watch tells of the newcomer
        region.world.add_agent("c")
        region.run()
        region.world.zk.denied.remove(hidden)
    region.pass_time(310_000)
    assert len(region.world.owned()) == 2 + moves
    reasons = [one["reason"] for one in region.events("checkpoint_abandoned")]
    assert reasons == (["a rebalance overtook the checkpoint"] if moves else [])
    if not moves:
        region.answer("b", region.held("b", 6))
        region.run()
        assert region.order().complete == number


def test_who_does_not_reset_loses_its_registration_though_the_group_is_read_again_more_often() -> None:
    region = RegionWorld("a", "b", settings=replace(SETTINGS, reset_ms=700_000))
    region.ask("reset", "a")
    region.pass_time(699_000)
    assert region.order().open == Round(1, RESET, ("a", "b"))
    region.pass_time(2_000)
    assert region.order().open != Round(1, RESET, ("a", "b"))


def test_the_next_checkpoint_is_due_after_the_end_of_the_last_one() -> None:
    """In `RoundTimes.changed`, keep `since_us`."""
    region = RegionWorld("a", "b")
    region.open_checkpoint()
    region.pass_time(700)
    region.answer_all()
    region.pass_time(SETTINGS.every_ms - 1)
    assert region.order().open is None
    region.pass_time(1)
    assert region.order().open == Round(2, CHECKPOINT, ("a", "b"))


def test_an_answer_may_come_in_pieces_and_in_any_order() -> None:
    region = RegionWorld("a", "b")
    region.open_checkpoint()
    region.answer("b", region.held("b", 5))
    first, *others = region.held("a", 7).items()
    region.answer("a", dict(others), piece=1, pieces=2)
    region.run()
    assert region.order().complete is None
    region.answer("a", dict([first]), piece=0, pieces=2)
    region.run()
    assert region.merge().offsets == region.held("a", 7) | region.held("b", 5)


def test_answers_to_another_round_do_not_count() -> None:
    region = RegionWorld("a", "b")
    number = region.open_checkpoint()
    region.write(Create(paths.region(GROUP, "contributions", "77")))
    for name in "ab":
        region.answer(name, region.held(name, 5), number=77)
    region.run()
    assert region.order().open == Round(number, CHECKPOINT, ("a", "b"))
    region.answer_all()
    assert region.order().complete == number


def test_nodes_that_are_no_pieces_are_not_read_as_answers() -> None:
    region = RegionWorld("a", "b")
    region.open_checkpoint()
    for node in ("a", "a.x", "junk"):
        region.contribute(node, b"foreign")
    region.run()
    assert not region.warnings()
    region.answer_all()
    assert region.order().complete == 1


def test_who_stores_no_checkpoint_in_time_makes_it_void_and_the_next_one_is_ordered_as_usual() -> None:
    region = RegionWorld("a", "b")
    number = region.open_checkpoint()
    region.answer("b", region.held("b", 5))
    region.pass_time(SETTINGS.reset_ms - 1)
    assert region.order().open is not None
    region.pass_time(1)
    assert (region.order().open, region.order().complete, region.order().pending) == (None, None, None)
    assert region.events("checkpoint_abandoned") == [
        {
            "round": number,
            "member_count": 2,
            "elapsed_us": SETTINGS.reset_ms * 1_000,
            "reason": "a stored no checkpoint in time",
        }
    ]
    assert region.children("contributions") == []
    assert region.complete_checkpoint() == number + 1


def test_no_checkpoint_is_ordered_until_the_group_is_at_rest() -> None:
    region = RegionWorld("a", "b")
    region.world.agents["a"].silent = True
    region.world.set_topic("t", 8)
    region.pass_time(SETTINGS.every_ms)
    assert (region.order().open, region.region.reason) == (None, "waits until the group is at rest")
    region.world.agents["a"].silent = False
    region.run()
    assert region.order().open is not None


def test_a_rebalance_voids_the_open_checkpoint_and_another_one_is_complete_afterwards() -> None:
    region = RegionWorld("a", "b")
    number = region.open_checkpoint()
    region.world.agents["b"].silent = True
    region.world.set_topic("t", 8)
    region.run()
    region.answer("a", region.held("a", 5))
    region.run()
    region.world.agents["b"].silent = False
    region.pass_time(1_000)
    assert [one["reason"] for one in region.events("checkpoint_abandoned")] == ["a rebalance overtook the checkpoint"]
    region.complete_checkpoint()
    assert region.order().complete == number + 1
    assert len(region.merge().offsets) == 8


def test_answers_that_contradict_each_other_void_the_round_and_are_named() -> None:
    region = RegionWorld("a", "b")
    region.open_checkpoint()
    region.answer("a", region.held("a", 5) | region.held("b", 6))
    region.answer("b", region.held("b", 7))
    region.run()
    (tp, *_others) = sorted(region.held("b", 7))
    text = f"t/{tp[1]} continues at 6 for a, and at 7 for b"
    assert region.warnings() == [f"group {GROUP}: region: a checkpoint is void: {text}"]
    assert [one["reason"] for one in region.events("checkpoint_abandoned")] == [text]
    assert (region.order().open, region.order().pending) == (None, None)
    assert region.complete_checkpoint() == 2


def test_a_stranger_is_named_once_it_has_voided_two_checkpoints_in_a_row() -> None:
    """At first it may be a partition that has just come to a member."""
    region = RegionWorld("a", "b")
    region.world.add_agent("stranger")
    region.pass_time(2_000)
    (tp, *_others) = sorted(region.world.owned()["stranger-1"])
    text = f"stranger-1 holds t/{tp[1]} and has not answered for it; all members of the group must be in the region"

    def voided() -> list[str]:
        region.pass_time(SETTINGS.every_ms)
        region.answer_all()
        return region.warnings()

    assert voided() == []
    assert voided() == [f"group {GROUP}: region: {text}"]
    assert {one["reason"] for one in region.events("checkpoint_abandoned")} == {text}
    region.world.leave(region.world.agents["stranger"])
    region.world.agents["stranger"].alive = False
    region.pass_time(2_000)
    region.complete_checkpoint()
    region.world.agents["stranger"].alive = True
    region.pass_time(2_000)
    assert voided() == [f"group {GROUP}: region: {text}"]  # a checkpoint was complete since


def test_a_member_that_is_away_keeps_its_copy_and_an_unknown_position_its_offset_also_under_the_next_leader() -> None:
    """In `Region._order_read`, do not read the merge."""
    region = RegionWorld("a", "b")
    first = region.complete_checkpoint(5)
    region.ask("leave", "b")
    region.run()
    assert region.order().open == Round(first + 1, CHECKPOINT, ("a", "b"), leaving=("b",))
    region.answer_all(6)
    assert (set(region.order().members), dict(region.order().left)) == ({"a"}, {"b": region.zxid("b")})
    region.lose("b")
    region.pass_time(2_000)
    region.replace_leader()
    region.pass_time(SETTINGS.every_ms)
    region.answer("a", region.held("a", UNKNOWN) | {("t", 0): 9})
    region.run()
    merge = region.merge()
    assert merge.states == {"a": first + 2, "b": first + 1}
    assert merge.offsets == dict.fromkeys(T, 6) | {("t", 0): 9}
    assert not region.events("reset_ordered")


# ---- requests


@pytest.mark.parametrize(
    ("kind", "opened"),
    [
        ("checkpoint", Round(1, CHECKPOINT, ("a", "b"))),
        ("reset", Round(1, RESET, ("a", "b"))),
        ("reset-initial", Round(1, RESET, ("a", "b"))),
        ("leave", Round(1, CHECKPOINT, ("a", "b"), leaving=("b",))),
    ],
)
def test_a_request_is_fulfilled_at_once_and_deleted_by_the_order_that_answers_it(kind: str, opened: Round) -> None:
    region = RegionWorld("a", "b")
    region.ask(kind, "b")
    region.run()
    assert region.order().open == opened
    assert region.children("requests") == []
    region.answer_all(0)
    assert (region.order().open, region.order().pending) == (None, None)  # it is not fulfilled twice
    assert not region.warnings()


def test_a_request_that_waits_while_no_coordinator_leads_is_fulfilled_by_the_next_one() -> None:
    region = RegionWorld("a", "b")
    region.world.kill_coordinator(region.world.leader())
    region.ask("reset", "b", "of the test")
    region.world.add_coordinator()
    region.run()
    assert region.events("reset_ordered") == [{"round": 1, "reason": "of the test"}]
    assert region.children("requests") == []


# ---- the next leader


def test_the_next_leader_abandons_an_open_checkpoint_and_orders_another_one() -> None:
    """Parts of its merge may be stored, and what moved before is unknown."""
    region = RegionWorld("a", "b")
    number = region.open_checkpoint()
    region.answer("a", region.held("a", 5))
    region.replace_leader()
    assert region.order().open is None
    (abandoned,) = region.events("checkpoint_abandoned")
    assert (abandoned["round"], abandoned["reason"]) == (number, "its leader did not complete it")
    assert not region.events("reset_ordered")
    assert region.complete_checkpoint() == number + 1


def test_the_next_leader_continues_an_open_reset_with_the_answers_so_far_and_the_whole_time() -> None:
    """In `Region._requests_listed`, do not list answers; in `Region.begin`, begin at 0."""
    region = RegionWorld("a", "b")
    region.ask("reset", "a", "of the test")
    region.run()
    region.answer("a", region.held("a", 0))
    region.pass_time(SETTINGS.reset_ms - 1)
    region.replace_leader()
    region.pass_time(SETTINGS.reset_ms - 1)
    assert region.children("members") == ["a", "b"]
    assert region.region.reason == "waits for b to reset"
    region.answer("b", region.held("b", 0))
    region.run()
    assert region.order().open is None
    assert [one["round"] for one in region.events("reset_completed")] == [1]
    assert len(region.events("reset_ordered")) == 1


def test_the_next_leader_admits_and_loses_who_came_and_went_meanwhile() -> None:
    region = RegionWorld("a", "b")
    region.world.kill_coordinator(region.world.leader())
    region.world.zk.end(region.sessions.pop("a"))
    region.register("c")
    region.world.add_coordinator()
    region.run()
    assert region.order().members == {"b": region.zxid("b"), "c": region.zxid("c")}
    assert region.order().open == Round(1, RESET, ("b", "c"))


def test_a_forced_region_waits_neither_for_the_group_nor_for_holders() -> None:
    """Kafka assigns its partitions: only its members know who holds them."""
    region = RegionWorld("a", "b", settings=replace(SETTINGS, recovery="forced"))
    region.world.agents["a"].silent = True
    region.world.set_topic("t", 8)  # the plan waits for `a`
    region.pass_time(SETTINGS.every_ms)
    region.answer("a", {("t", 0): 4})
    region.answer("b", {})
    region.run()
    assert (region.order().complete, region.merge().offsets) == (1, {("t", 0): 4})
    region.ask("reset", "a", "of the test")
    region.run()
    region.answer("a", {})
    region.answer("b", {})
    region.run()
    assert [one["round"] for one in region.events("reset_completed")] == [2]


def test_the_order_is_written_at_the_version_that_was_read() -> None:
    """So two leaders never both order."""
    region = RegionWorld("a", "b")
    region.complete_checkpoint()
    region.ask("reset", "a")
    region.run()
    region.answer_all(0)
    region.complete_checkpoint()
    assert region.world.zk.nodes[ORDER].version == len(region.orders()) - 1
    ids = [order.id for order in region.orders()]
    assert ids == sorted(ids)
    assert documents.decode_order(region.world.zk.nodes[ORDER].content) == region.orders()[-1]
