"""Who is interested in which topic."""

from __future__ import annotations

import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Multi, SetContent
from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.errors import PatternError
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.registration import STATIC, WHITE_LIST, Registration, decode, encode
from zkrebalancer.protocol.settings import GroupSettings
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


def test_large_subscriptions_that_change_do_not_fill_the_leaders_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Kept.keep`, do not look at sizes; in `_Resolved.size_bytes`, leave out one of the two."""
    monkeypatch.setattr(subscriptions, "MAX_SHARED_BYTES", 1_000_000)
    monkeypatch.setattr(subscriptions, "MAX_LONG_BYTES", 1_000_000)
    known = Subscriptions()
    for number in range(20):
        names = {f"{number}-{each}": 1 for each in range(2_000)}
        assert known.resolve(Registration("static", names, "", "c", "h", 10_000)) == {}
        assert len(known._resolved) <= 2
        assert len(known._long) <= 2
    assert known._resolved.size_bytes <= 1_000_000
    for number in range(9_000):
        known.set_topic(f"t{number}", Topic(frozenset({0}), "i"))
    for number in range(10):
        assert len(known.resolve(wildcard(f"^t|{number}$"))) == 9_000
        assert len(known._resolved) <= 2


def test_expressions_that_change_do_not_fill_the_leaders_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Subscriptions._filter`, keep one that is too long, or leave out its length or its looks in the size."""
    monkeypatch.setattr(subscriptions, "MAX_FILTER_BYTES", 50_000)
    known = Subscriptions()
    for number in range(9):
        with pytest.raises(PatternError, match="characters"):
            known.resolve(wildcard(f"{number}" + "x" * 10_000))
    assert len(known._filters) == 0
    for number in range(9):
        with pytest.raises(PatternError, match="does not compile"):
            known.resolve(wildcard(f"{number}(" + "x" * 9_000))
        assert len(known._filters) <= 5
    for number in range(9):
        known.resolve(wildcard(rf"{number}(\w?){{500}}"))
    assert len(known._filters) == 1
    known.clear()
    assert len(known._filters) + len(known._resolved) + len(known._long) == 0


def test_who_cannot_be_read_may_hold_anything_for_its_subscription_may_have_changed() -> None:
    view = GroupView("g", {})
    registration = Registration("static", {"u": 1}, "", "a", "host", 10_000)
    view.members["a-1"] = Member("a-1", registration, owners=None, given=None)
    view.refresh("a-1")
    assert not view.is_free_for("b-1", ("t", 0))


def test_who_cannot_be_read_holds_what_it_was_given_and_nothing_else() -> None:
    """Also if only a command cannot be read: it may be a start. In `Member.held`, use `known` alone."""
    view = GroupView("g", {})
    member = view.members["a-1"] = Member("a-1", given={("t", 0): 0})
    view.refresh("a-1")
    assert view.holders(("t", 0)) == ("a-1",)
    assert view.is_free_for("b-1", ("t", 1))
    member.owners, member.unreadable_commands = OwnersRecord(1, None, {}), True
    view.refresh("a-1")
    assert view.holders(("t", 0)) == ("a-1",)
    assert not member.blocked_topics()


def test_what_a_pattern_matches_is_found_some_topics_at_a_time_and_again_when_topics_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `Subscriptions.resolve_some`, forget the changes, or that too many were missed; in `look`, the limit."""
    monkeypatch.setattr(subscriptions, "MAX_CHANGES", 5)
    known, topic = Subscriptions(), Topic(frozenset({0}), "i")
    for number in range(20):
        known.set_topic(f"t{number:02}", topic)
    assert [known.resolve_some(wildcard("1"), 8) for _ in range(4)] == [8, 8, 4, 0]
    known.set_topic("t01", None)
    known.set_topic("u1", topic)
    known.set_topic("u2", topic)
    assert known.resolve_some(wildcard("1"), 8) == 3
    found = known.resolve(wildcard("1"))
    assert list(found) == [*(f"t1{number}" for number in range(10)), "u1"]
    known.set_topic("u3", topic)
    assert known.resolve(wildcard("1")) is found, "nothing that concerns it has changed"
    for number in range(6):
        known.set_topic(f"v{number}", topic)
    assert known.resolve_some(wildcard("1"), 100) == 28
    assert list(known.resolve(wildcard("1"))) == [*found, "v1"]


@pytest.mark.parametrize("limit", [8, 10])
def test_subscriptions_that_do_not_fit_into_memory_together_are_resolved_all_the_same(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """In `resolve_some`, hold nothing for a group: each drops what the others have examined, and none is ever planned.

    Hold it only while topics are left: a group whose topics end with a step begins again.
    """
    monkeypatch.setattr(subscriptions, "MAX_SHARED", 2)
    known = Subscriptions()
    for number in range(100):
        known.set_topic(f"t{number:02}", Topic(frozenset({0}), "i"))
    left = {group: wildcard(f"^t|^{group}$") for group in "abcd"}
    for _ in range(100 // limit + 1):
        for group, registration in list(left.items()):
            if known.resolve_some(registration, limit, group) < limit:
                assert len(known.resolve(registration)) == 100
                del left[group]
    assert not left
    assert not known._under_way
    known.resolve_some(wildcard("t"), limit, "a")
    known.forget_group("a")
    assert not known._under_way
    known.resolve_some(wildcard("t"), limit, "b")
    known.forget_progress("b")
    assert not known._under_way


def test_a_topic_that_goes_while_a_pattern_is_matched_is_not_found() -> None:
    """In `_Resolved.look`, do not ask whether it exists."""
    known, topic = Subscriptions(), Topic(frozenset({0}), "i")
    for number in range(4):
        known.set_topic(f"t{number}", topic)
    known.resolve_some(wildcard("t"), 2)
    known.set_topic("t0", None)
    known.set_topic("t3", None)
    assert known.resolve(wildcard("t")) == {"t1": 1, "t2": 1}


def test_a_pattern_whose_matches_cost_much_is_matched_with_fewer_topics_at_a_time() -> None:
    """In `_Resolved.look`, count topics."""
    known, topic = Subscriptions(), Topic(frozenset({0}), "i")
    for number in range(100):
        known.set_topic(f"t{number:02}", topic)
    costly, steps = wildcard(r"^(\w?){500}$"), 1
    while known.resolve_some(costly, 500) >= 500:
        steps += 1
    assert steps > 50
    assert len(known.resolve(costly)) == 100
    cheap, steps = wildcard("^t"), 1
    while known.resolve_some(cheap, 500) >= 500:
        steps += 1
    assert steps == 1


@pytest.mark.parametrize("patterns", [[r"^(\w?){500}x$", "^y"], [f"^y{number}" for number in range(600)]])
def test_a_group_whose_patterns_cost_much_counts_as_concerned(patterns: list[str]) -> None:
    """In `Subscriptions.concerns`, match them all at once."""
    known = Subscriptions()
    for pattern in patterns:
        known.add("g", wildcard(pattern))
        known.add("h", wildcard("^y"))
    assert known.concerns("t", "g") is (len(patterns) > 2)
    assert not known.concerns("t", "h")
    known.add("g", wildcard(r"^(\w?){600}x$"))
    assert known.concerns("t", "g")


def static(*topics: str) -> Registration:
    return Registration(STATIC, dict.fromkeys(topics, 1), "", "c", "h", 10_000)


def test_a_subscription_with_many_topics_is_noted_as_a_whole_with_the_same_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `Subscriptions.add_in_parts`, note each topic: 40,000 take longer than other groups may wait."""
    monkeypatch.setattr(subscriptions, "MANY_TOPICS", 2)
    known, many = Subscriptions(), static("t", "u", "v")
    for group, registration in (("g", many), ("g", many), ("h", static("t", "u")), ("h", wildcard("^v"))):
        known.add(group, registration)
    assert {topic: set(groups) for topic, groups in known.consumer_groups_per_topic.items()} == {"t": {"h"}, "u": {"h"}}
    assert sorted(known.may_concern("t")) == sorted(known.may_concern("v")) == ["g", "h"]
    assert sorted(known.may_concern("w")) == ["h"], "its pattern may match"
    assert [known.concerns(topic, "g") for topic in "tuvw"] == [True, True, True, False]
    known.remove("g", many)
    assert known.concerns("v", "g"), "another consumer names it"
    known.replace("g", many, static("w"))
    assert [known.concerns(topic, "g") for topic in "tuvw"] == [False, False, False, True]
    known.add("g", many)
    known.forget_group("g")
    assert [known.concerns(topic, "g") for topic in "tuvw"] == [False] * 4
    known.add("g", many)
    known.clear()
    assert known.may_concern("t") == []


def test_a_long_registration_that_is_written_again_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Membership._registration_read`, keep the new object of an equal one: the former would be noted for ever."""
    monkeypatch.setattr(subscriptions, "MANY_TOPICS", 2)
    world = world_with(GroupSettings(), "a", "b")
    path, known = paths.ids(GROUP, "b-1"), world.leader().machine.subscriptions
    read = decode(world.zk.nodes[path].content)
    for topics in ("tuv", "tuv", "tuw", "tuw"):
        world.zk.perform(Multi((SetContent(path, encode(read._replace(subscription=dict.fromkeys(topics, 1)))),)))
        world.pass_time(1_000)
        assert [list(each.subscription) for each, _count in known._noted_whole[GROUP].values()] == [[*topics]]
    world.kill_agent(world.agents["b"])
    world.pass_time(60_000)
    assert not known._noted_whole


def test_those_that_subscribe_alike_share_what_is_found_and_others_do_not() -> None:
    """In `subscriptions._key`, leave out the numbers of threads."""
    known = Subscriptions()
    for topic in "tu":
        known.set_topic(topic, Topic(frozenset({0}), "i"))
    found = [
        known.resolve(static("t", "u")._replace(subscription=counts))
        for counts in ({"t": 1, "u": 1}, {"u": 1, "t": 1}, {"t": 2, "u": 2}, {"t": 1, "u": 2}, {"t": 2, "u": 1})
    ]
    assert found[0] is found[1]
    assert found[2:] == [{"t": 2, "u": 2}, {"t": 1, "u": 2}, {"t": 2, "u": 1}]
