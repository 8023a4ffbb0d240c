"""The queues of groups: each group once, in order of arrival, with its reason for waiting."""

from __future__ import annotations

from zkrebalancer.rebalance.turns import Turns


def taken(turns: Turns) -> list[tuple[str, str]]:
    return [turns.next() for _ in range(len(turns))]


def test_a_group_that_waits_keeps_its_turn_and_its_reason() -> None:
    """In `Turns.extend`, let the new reasons win."""
    turns = Turns()
    turns.add("b", "first")
    turns.extend(["a", "b", "c"], "second")
    turns.add("a", "third")
    assert taken(turns) == [("b", "first"), ("a", "second"), ("c", "second")]


def test_a_group_that_was_removed_and_comes_again_has_a_turn() -> None:
    """In `Turns.next`, leave those that do not wait any more in `_in_order`."""
    turns = Turns()
    turns.extend(["a", "b"], "first")
    turns.remove("a")
    assert turns.next() == ("b", "first")
    turns.add("a", "second")
    turns.add("b", "second")
    assert taken(turns) == [("a", "second"), ("b", "second")]


def test_a_reason_is_replaced_only_if_it_is_the_one_that_counts_less() -> None:
    """In `Turns.add`, replace any reason."""
    turns = Turns()
    turns.extend(["a", "b"], "less")
    turns.add("c", "more")
    for group in "bcd":
        turns.add(group, "new", instead_of="less")
    assert taken(turns) == [("a", "less"), ("b", "new"), ("c", "more"), ("d", "new")]
