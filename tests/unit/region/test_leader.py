"""What the leader orders: each rule alone, as one step from an order and what is seen to the next order."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import pytest

from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.region import documents
from zkrebalancer.region.documents import CHECKPOINT, RESET, Contribution, Order, Request, Round, Settings
from zkrebalancer.region.leader import Next, Seen, decide, made_anew
from zkrebalancer.region.merge import Answers

SETTINGS = Settings("billing", "group", every_ms=10_000, reset_ms=60_000)
IDLE = Order(id=4, reset=2, complete=4, pieces=1, members={"a": 11, "b": 12})
HELD: Mapping[str, AbstractSet[TopicPartition]] = {"a-1": {("t", 0)}, "b-1": {("t", 1)}}


def seen(answers: Answers | None = None, **other: Any) -> Seen:
    known: dict[str, Any] = {
        "settings": SETTINGS,
        "registered": {"a": 11, "b": 12},
        "requests": {},
        "answers": answers,
        "holdings": HELD,
        "is_at_rest": True,
        "since_us": 0,
        "now_us": 1_000_000,
    }
    return Seen(**{**known, **other})


def answered(order: Order, *names: str) -> Answers:
    assert order.open is not None
    found = Answers(order.open)
    for name in names:
        offsets = dict.fromkeys(HELD.get(f"{name}-1", ()), 5)
        found.add(name, Contribution(order.open.id, 0, 1, f"{name}-1", offsets))
    return found


def opened(kind: str) -> Order:
    reset = 5 if kind == RESET else 2
    return replace(IDLE, id=5, reset=reset, open=Round(5, kind, ("a", "b")))


def test_a_member_is_admitted_by_an_order_before_it_may_process() -> None:
    decision = decide(IDLE, seen(registered={"a": 11, "b": 12, "c": 13}))
    assert (decision.next, decision.order) == (Next.WRITE, replace(IDLE, members={"a": 11, "b": 12, "c": 13}))


def test_a_lost_member_ends_the_open_round_and_makes_a_reset_pending() -> None:
    for order in (IDLE, opened(CHECKPOINT), opened(RESET)):
        decision = decide(order, seen(registered={"a": 11}))
        assert decision.next is Next.WRITE
        assert (decision.order.open, decision.order.pending) == (None, "member b is lost")
        assert decision.order.members == {"a": 11}


def test_a_member_that_registered_again_was_lost_first() -> None:
    """Its process may be another one, and the first one's effects are in no checkpoint."""
    decision = decide(IDLE, seen(registered={"a": 11, "b": 99}))
    assert decision.order.pending == "member b is lost"
    assert decide(decision.order, seen(registered={"a": 11, "b": 99})).order.members == {"a": 11, "b": 99}


def test_a_pending_reset_is_ordered_at_once_under_a_new_id() -> None:
    decision = decide(replace(IDLE, pending="why"), seen(is_at_rest=False))
    assert decision.order == replace(IDLE, id=5, reset=5, open=Round(5, RESET, ("a", "b")))


def test_a_reset_is_over_when_all_have_answered_for_all_that_they_hold_at_rest() -> None:
    order = opened(RESET)
    assert decide(order, seen(answered(order, "a"))).reason == "waits for b to reset"
    complete = answered(order, "a", "b")
    assert decide(order, seen(complete, is_at_rest=False)).next is Next.WAIT
    assert decide(order, seen(complete, holdings={**HELD, "a-1": {("t", 0), ("t", 9)}})).next is Next.WAIT
    assert decide(order, seen(complete)).next is Next.FLOW
    assert decide(order, seen(complete)).order.open is None


def test_who_has_not_reset_in_time_is_evicted() -> None:
    order = opened(RESET)
    decision = decide(order, seen(answered(order, "a"), now_us=60_000_000))
    assert (decision.next, decision.names) == (Next.EVICT, ("b",))


def test_a_reset_during_a_reset_is_another_one() -> None:
    """Bug #148 of the source: a reset that came while one was under way was swallowed."""
    order = opened(RESET)
    wanted = {"reset-0": Request("reset", "a", "partitions were lost")}
    after = decide(order, seen(answered(order, "a", "b"), requests=wanted)).order
    assert (after.open, after.pending) == (None, "partitions were lost")
    again = decide(after, seen()).order
    assert (again.reset, again.open) == (6, Round(6, RESET, ("a", "b")))


def test_a_checkpoint_is_opened_when_it_is_due_and_the_group_at_rest() -> None:
    assert decide(IDLE, seen(now_us=9_999_999)).wake_us == 10_000_000
    assert decide(IDLE, seen(now_us=10_000_000, is_at_rest=False)).next is Next.WAIT
    decision = decide(IDLE, seen(now_us=10_000_000))
    assert decision.order == replace(IDLE, id=5, open=Round(5, CHECKPOINT, ("a", "b")))


def test_what_a_region_waits_for_because_a_node_is_hidden_has_to_be_known_at_once() -> None:
    """In `_maybe_checkpoint` or `_follow_reset`, tell only what is late, or nothing."""
    order = opened(RESET)
    hidden: dict[str, Any] = {"is_at_rest": False, "hidden": "/consumers/g"}
    for decision in (decide(IDLE, seen(**hidden)), decide(order, seen(answered(order, "a", "b"), **hidden))):
        assert (decision.next, decision.is_obstacle) == (Next.WAIT, True)
        assert decision.reason == "neither a checkpoint nor a reset completes until /consumers/g may be read"
    decision = decide(IDLE, seen(is_at_rest=False))
    assert (decision.reason, decision.is_obstacle) == ("waits until the group is at rest", False)


def test_a_requested_checkpoint_is_due_at_once() -> None:
    decision = decide(IDLE, seen(requests={"checkpoint-1": Request("checkpoint", "a")}))
    assert decision.order.open == Round(5, CHECKPOINT, ("a", "b"))
    assert decision.requests == ("checkpoint-1",)


def test_a_checkpoint_is_complete_when_all_have_answered_for_all_that_is_held() -> None:
    order = opened(CHECKPOINT)
    assert decide(order, seen(answered(order, "a"))).next is Next.WAIT
    decision = decide(order, seen(answered(order, "a", "b")))
    assert (decision.next, decision.order.complete, decision.order.open) == (Next.COMPLETE, 5, None)


def test_a_checkpoint_is_void_if_a_plan_overtakes_it_or_a_partition_is_not_covered_or_time_is_over() -> None:
    order = opened(CHECKPOINT)
    complete = answered(order, "a", "b")
    for other in (
        seen(complete, is_at_rest=False),
        seen(answered(order, "a"), is_at_rest=False),  # the others may answer after partitions went there and back
        seen(complete, holdings={**HELD, "stranger-1": {("t", 7)}}),
        seen(answered(order, "a"), now_us=60_000_000),
    ):
        decision = decide(order, other)
        assert (decision.next, decision.order.open, decision.order.complete) == (Next.WRITE, None, 4)


def test_a_checkpoint_goes_on_while_a_plan_is_made_that_may_change_nothing() -> None:
    """In `_follow_checkpoint`, void it: the group is read again every few minutes, and planned then.

    Or name a rebalance if it is late: nothing has moved.
    """
    order = opened(CHECKPOINT)
    for answers, why in (
        (answered(order, "a"), "b stored no checkpoint in time"),
        (answered(order, "a", "b"), "the group was not at rest in time"),
    ):
        assert decide(order, seen(answers, is_at_rest=False, is_read_anew=True)).next is Next.WAIT
        late = decide(order, seen(answers, is_at_rest=False, is_read_anew=True, now_us=60_000_000))
        assert (late.next, late.order.open, late.reason) == (Next.WRITE, None, why)


def test_a_stranger_in_the_group_is_named() -> None:
    order = opened(RESET)
    decision = decide(order, seen(answered(order, "a", "b"), holdings={**HELD, "stranger-1": {("t", 7)}}))
    assert decision.reason.startswith("stranger-1 holds t/7 and has not answered for it")


def test_a_stranger_is_an_obstacle_and_a_partition_that_has_just_come_to_a_member_is_not() -> None:
    """Was so: after almost every crash, a member that had not answered for a partition yet was called a stranger."""
    holdings = {**HELD, "b-1": {("t", 1), ("t", 7)}}
    order = opened(RESET)
    soon, late = (
        decide(order, seen(answered(order, "a", "b"), holdings=holdings, now_us=at)) for at in (1, 60_000_000)
    )
    assert (soon.is_obstacle, soon.wake_us) == (False, 60_000_000)
    assert (late.next, late.is_obstacle) == (Next.WAIT, True)
    order = opened(CHECKPOINT)
    first = decide(order, seen(answered(order, "a", "b"), holdings=holdings))
    again = decide(order, seen(answered(order, "a", "b"), holdings=holdings, last_void=first.reason))
    assert (first.is_obstacle, again.is_obstacle) == (False, True)


def test_a_member_that_stores_no_checkpoint_twice_in_a_row_is_an_obstacle() -> None:
    """Else nobody is told that its application hangs, until a reset goes back for days."""
    order = opened(CHECKPOINT)
    first = decide(order, seen(answered(order, "a"), now_us=60_000_000))
    again = decide(order, seen(answered(order, "a"), now_us=60_000_000, last_void=first.reason))
    assert (first.is_obstacle, again.is_obstacle) == (False, True)


def test_who_leaves_gets_a_last_checkpoint_and_is_no_loss_afterwards() -> None:
    asked = decide(IDLE, seen(requests={"leave-0": Request("leave", "b", zxid=13)})).order
    assert asked.leaving == ("b",)
    order = decide(asked, seen()).order
    assert order.open == Round(5, CHECKPOINT, ("a", "b"), leaving=("b",))
    after = decide(order, seen(answered(order, "a", "b"))).order
    assert (after.members, after.left, after.complete) == ({"a": 11}, {"b": 12}, 5)
    for registered in ({"a": 11, "b": 12}, {"a": 11}):
        assert decide(after, seen(registered=registered)).next is Next.WAIT
    assert decide(after, seen(registered={"a": 11, "b": 40})).order.members == {"a": 11, "b": 40}
    later: dict[str, Any] = {"registered": {"a": 11}, "holdings": {"a-1": HELD["a-1"]}}
    order = decide(after, seen(now_us=10**15, **later)).order
    assert decide(order, seen(answered(order, "a"), **later)).order.left == {}  # else it grows until nothing fits


def test_a_former_process_that_asked_to_leave_does_not_make_its_successor_leave() -> None:
    """The successor would go on after the checkpoint with which it left, and lose what it processed then."""
    decision = decide(IDLE, seen(requests={"leave-0": Request("leave", "b", zxid=11)}))
    assert (decision.order, decision.requests) == (IDLE, ("leave-0",))
    decision = decide(IDLE, seen(requests={"leave-0": Request("leave", "c", zxid=13)}))  # of nobody
    assert (decision.order, decision.requests) == (IDLE, ("leave-0",))


def test_an_asking_member_that_processed_on_does_not_leave_with_a_checkpoint_that_was_opened_before() -> None:
    order = opened(CHECKPOINT)
    asked = decide(order, seen(answered(order, "a"), requests={"leave-0": Request("leave", "b", zxid=13)})).order
    after = decide(asked, seen(answered(order, "a", "b"))).order
    assert (after.members, after.leaving) == (IDLE.members, ("b",))


def test_a_reset_to_the_initial_state_names_no_checkpoint() -> None:
    after = decide(IDLE, seen(requests={"x": Request("reset-initial", "a", "begin anew")})).order
    assert (after.complete, after.pieces, after.pending) == (None, 0, "begin anew")


def test_who_wants_the_initial_state_gets_it_though_others_want_only_a_reset() -> None:
    """In `_with_requests`, begin anew only if all want it: who asked for it would go on from the checkpoint."""
    asked = {"x": Request("reset", "a", "first"), "y": Request("reset-initial", "b", "begin anew")}
    decision = decide(IDLE, seen(requests=asked))
    assert (decision.order.complete, decision.order.pieces, decision.requests) == (None, 0, ("x", "y"))


def test_a_classic_group_is_covered_by_what_its_members_say() -> None:
    order = opened(CHECKPOINT)
    assert decide(order, seen(answered(order, "a", "b"), holdings=None)).next is Next.COMPLETE


def test_an_order_that_was_lost_continues_above_all_former_rounds() -> None:
    """In `made_anew`, convert names with `int`, or allow any number."""
    names = ["4.0", "7.0", "7.1", "x.0", "9" * 5_000 + ".0", f"{2**62}.0", "²", ""]
    assert made_anew(names, 3) == Order(id=7, complete=7, pieces=2, pending="the order was lost")
    assert made_anew(names, 11).id == 12
    assert made_anew([], 0) == Order(id=1, complete=None, pieces=0, pending="the order was lost")
    assert documents.decode_order(documents.encode_order(made_anew(names, 3))).complete == 7


@pytest.mark.parametrize(
    "order", [Order(3, reset=4), Order(3, complete=4, pieces=1), Order(3, open=Round(4, RESET, ("a",)))]
)
def test_an_order_that_names_a_later_round_than_its_last_one_is_foreign(order: Order) -> None:
    """In `decode_order`, read it: no member would follow the next orders, whose numbers are lower."""
    with pytest.raises(NodeContentError, match="names a later round than its last one, 3"):
        documents.decode_order(documents.encode_order(order))
