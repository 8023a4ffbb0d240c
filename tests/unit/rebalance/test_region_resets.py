"""Resets of a consistent region: what orders one, what it waits for, and what its end tells."""

from __future__ import annotations

from dataclasses import replace

from tests.support.region_world import SETTINGS, RegionWorld
from tests.support.world import GROUP
from zkrebalancer.region.documents import MAX_REASON, RESET, UNKNOWN, Round

T = [("t", number) for number in range(4)]


def test_a_lost_member_resets_the_others_and_records_flow_when_all_that_is_held_is_answered_for() -> None:
    region = RegionWorld("a", "b")
    number = region.complete_checkpoint()
    region.lose("a")
    region.run()
    wanted = replace(region.orders()[-3], members={"b": region.zxid("b")}, open=None, pending="member a is lost")
    assert region.orders()[-2:] == [
        wanted,
        replace(wanted, id=number + 1, reset=number + 1, pending=None, open=Round(number + 1, RESET, ("b",))),
    ]
    assert region.events("reset_ordered") == [{"round": number + 1, "reason": "member a is lost"}]
    region.pass_time(400)
    region.answer("b", dict.fromkeys(T, 5))
    region.pass_time(1_600)
    assert len(region.world.owned()["b-1"]) == len(T)
    assert region.order() == replace(region.orders()[-2], open=None)
    assert region.events("reset_completed") == [
        {"round": number + 1, "member_count": 1, "elapsed_us": 400_000, "reason": "all are reset"}
    ]
    assert not region.warnings()
    assert region.merge().id == number  # it is still what the next reset begins with


def test_a_reset_waits_for_partitions_that_come_late_and_is_over_with_their_answer() -> None:
    region = RegionWorld("a", "b")
    region.ask("reset", "a", "of the test")
    region.run()
    region.world.add_agent("c")
    region.pass_time(2_000)
    region.answer("a", region.held("a", 0))
    region.answer("b", region.held("b", 0))
    region.run()
    moved = region.world.owned()["c-1"].keys()
    assert region.region.reason.startswith("c-1 holds t/")
    assert not region.warnings()
    region.world.leave(region.world.agents["c"])
    region.world.agents["c"].alive = False
    region.pass_time(2_000)
    for name in "ab":
        region.answer(name, {tp: 0 for tp in region.held(name, 0) if tp in moved}, piece=1, pieces=2)
    region.run()
    assert region.order().open is None
    assert region.events("reset_completed")[0]["reason"] == "all are reset"


def test_a_stranger_is_named_when_the_time_for_a_reset_is_over() -> None:
    region = RegionWorld("a", "b")
    region.world.add_agent("stranger")
    region.pass_time(2_000)
    region.ask("reset", "a", "of the test")
    region.run()
    region.answer_all(0)
    region.pass_time(SETTINGS.reset_ms - 1)
    assert not region.warnings()
    region.pass_time(1)
    (warning,) = region.warnings()
    assert warning.startswith(f"group {GROUP}: region: stranger-1 holds t/")
    assert region.order().open is not None
    region.pass_time(310_000)  # a reconciliation: the answers are read again, and nobody is late before that
    assert region.children("members") == ["a", "b"]


def test_members_that_do_not_reset_in_time_lose_their_registration_and_another_reset_follows() -> None:
    region = RegionWorld("a", "b", "c")
    region.ask("reset", "a", "of the test")
    region.run()
    region.answer("a", region.held("a", 0))
    region.pass_time(SETTINGS.reset_ms - 1)
    assert region.children("members") == ["a", "b", "c"]
    assert region.region.reason == "waits for b to reset"
    region.pass_time(1)
    assert region.children("members") == ["a"]
    assert region.warnings() == [f"group {GROUP}: region: b has not reset in time; its registration is removed"]
    assert region.order().open == Round(2, RESET, ("a",))
    assert [one["reason"] for one in region.events("reset_ordered")] == ["of the test", "member b is lost, and 1 more"]
    assert [one["reason"] for one in region.events("reset_abandoned")] == ["member b is lost, and 1 more"]


def test_a_member_that_registers_again_at_once_was_lost_all_the_same() -> None:
    """Its process may be another one. In `Region._members_listed`, read only names that are new."""
    region = RegionWorld("a", "b")
    before = region.zxid("b")
    region.world.zk.end(region.sessions["b"])
    region.register("b")
    region.run()
    assert region.zxid("b") > before
    assert [one["reason"] for one in region.events("reset_ordered")] == ["member b is lost"]
    assert region.order().members == {name: region.zxid(name) for name in "ab"}


def test_answers_to_a_reset_that_contradict_each_other_order_another_one() -> None:
    region = RegionWorld("a", "b")
    region.ask("reset", "a", "of the test")
    region.run()
    region.answer("a", region.held("a", 5) | region.held("b", 6))
    region.answer("b", region.held("b", 7))
    region.run()
    (abandoned,) = region.events("reset_abandoned")
    (warning,) = region.warnings()
    assert warning == f"group {GROUP}: region: a reset is void: {abandoned['reason']}"
    assert region.order().open == Round(2, RESET, ("a", "b"))
    assert region.events("reset_ordered")[-1] == {"round": 2, "reason": abandoned["reason"]}


def test_reasons_are_stored_and_told_up_to_their_limit() -> None:
    region = RegionWorld("a", "b")
    region.world.set_topic("x" * 249, 1)
    region.ask("reset", "a", "r" * (MAX_REASON + 1))
    region.run()
    far = {("x" * 249, 0): 1}
    region.answer("a", region.held("a", 5) | far)
    region.answer("b", region.held("b", 7) | dict.fromkeys(far, 2))
    region.run()
    told = [*region.events("reset_ordered"), *region.events("reset_abandoned")]
    assert [one["reason"] for one in told] == ["r" * MAX_REASON, "x" * MAX_REASON, "x" * MAX_REASON]
    assert "x" * MAX_REASON in [order.pending for order in region.orders()]


def test_a_reset_to_the_beginning_forgets_the_checkpoint() -> None:
    region = RegionWorld("a", "b")
    number = region.complete_checkpoint()
    region.ask("reset-initial", "a")
    region.run()
    region.answer_all(0)
    assert region.order().complete is None
    assert region.children("merged") == []
    region.pass_time(SETTINGS.every_ms)
    region.answer("a", region.held("a", UNKNOWN))
    region.answer("b", region.held("b", 3))
    region.run()
    assert region.merge().offsets == region.held("b", 3)  # no offset of the forgotten checkpoint
    assert region.order().complete == number + 2
