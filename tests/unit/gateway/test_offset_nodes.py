"""What a gateway remembers of nodes for offsets has a limit."""

from __future__ import annotations

import pytest

from zkrebalancer.gateway import offset_nodes
from zkrebalancer.gateway.offset_nodes import OffsetNodes


def note(nodes: OffsetNodes, group: str, count: int) -> None:
    nodes.of(group).note_nodes({("orders", number): 0 for number in range(count)})
    nodes.keep_within_limits(group)


def known(nodes: OffsetNodes, *groups: str) -> list[int]:
    return [len(nodes.of(group).nodes) for group in groups]


def test_groups_that_were_not_used_for_long_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `keep_within_limits`, count no nodes, or only those of one group."""
    monkeypatch.setattr(offset_nodes, "MAX_REMEMBERED", 10)
    nodes = OffsetNodes()
    for group in ("a", "b", "c"):
        note(nodes, group, 3)
    note(nodes, "a", 4)
    assert known(nodes, "b", "c", "a") == [3, 3, 4]
    note(nodes, "c", 4)
    assert known(nodes, "a", "c", "b") == [4, 4, 0]


def test_a_group_with_too_many_nodes_is_forgotten_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_nodes, "MAX_REMEMBERED", 10)
    nodes = OffsetNodes()
    note(nodes, "a", 11)
    assert known(nodes, "a") == [0]
    note(nodes, "a", 10)
    assert known(nodes, "a") == [10]


def test_a_forgotten_group_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `forget`, go on to count its nodes: ever fewer groups would be remembered."""
    monkeypatch.setattr(offset_nodes, "MAX_REMEMBERED", 10)
    nodes = OffsetNodes()
    note(nodes, "a", 6)
    nodes.forget("a")
    note(nodes, "b", 6)
    note(nodes, "c", 4)
    assert known(nodes, "a", "b", "c") == [0, 6, 4]


def test_groups_have_a_limit_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `keep_within_limits`, count nodes only: groups without offsets fill the memory."""
    monkeypatch.setattr(offset_nodes, "MAX_BOOKS", 2)
    nodes = OffsetNodes()
    for group in ("a", "b", "c"):
        note(nodes, group, 1)
    assert known(nodes, "a") == [0]
