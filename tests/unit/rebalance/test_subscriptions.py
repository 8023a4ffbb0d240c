"""Who is interested in which topic."""

from __future__ import annotations

import pytest

from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.registration import WHITE_LIST, Registration
from zkrebalancer.rebalance import subscriptions
from zkrebalancer.rebalance.subscriptions import Subscriptions
from zkrebalancer.rebalance.view import GroupView, Member


def wildcard(expression: str) -> Registration:
    return Registration(WHITE_LIST, {expression: 1}, "", "c", "h", 10_000)


def test_consumers_that_come_with_ever_new_wildcards_do_not_fill_the_leaders_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "MAX_CACHED_FILTERS", 3)
    monkeypatch.setattr(subscriptions, "MAX_SHARED", 3)
    known = Subscriptions()
    known.set_topic("t1", Topic(frozenset({0}), "i"))
    for number in range(20):
        assert known.resolve(wildcard(f"^t1|{number}$")) == {"t1": 1}
        assert len(known._filters) <= 3
        assert len(known._resolved) <= 3


def test_who_cannot_be_read_may_hold_anything_for_its_subscription_may_have_changed() -> None:
    view = GroupView("g", {})
    registration = Registration("static", {"u": 1}, "", "a", "host", 10_000)
    view.members["a-1"] = Member("a-1", registration, owners=None)
    view.refresh("a-1")
    assert not view.is_free_for("b-1", ("t", 0))
