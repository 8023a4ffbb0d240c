"""Which topics members read or hold: those that subscribe alike are counted once, however many they are."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Mapping

from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.assignment.model import Member
from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.registration import WHITE_LIST, Registration
from zkrebalancer.rebalance.interests import Interests
from zkrebalancer.rebalance.planning import Planning
from zkrebalancer.rebalance.subscriptions import Subscriptions
from zkrebalancer.rebalance.view import GroupView
from zkrebalancer.rebalance.view import Member as Known

MEMBERS, TOPICS = 60, 50
MAPPINGS: list[Mapping[str, int]] = [{}, {"a": 1}, {"a": 1}, {"a": 1, "b": 1}, {"c": 2}]  # two are equal, not the same
CHANGES = st.lists(
    st.tuples(
        st.sampled_from("xyz"),
        st.one_of(st.none(), st.tuples(st.sampled_from(range(5)), st.sets(st.sampled_from("abcd")))),
    )
)


class Counting(Counter[str]):
    """Counts how many topics were counted."""

    looks = 0

    def update(self, topics: Collection[str] | None = None) -> None:  # type: ignore[override]
        self.looks += len(topics or ())
        super().update(topics or ())


@given(CHANGES)
def test_interests_agree_with_a_plain_model(changes: list[tuple[str, tuple[int, set[str]] | None]]) -> None:
    """In `Interests.replace`, take back before adding, or count what is held and read as well."""
    interests, members = Interests(), dict[str, Member]()
    for name, wanted in changes:
        before = members.pop(name, None)
        if wanted is not None:
            members[name] = Member(MAPPINGS[wanted[0]], {(topic, 0): 0 for topic in wanted[1]})
        interests.replace(before, members.get(name))
        held = {topic for member in members.values() for topic, _number in member.owned}
        assert interests.topics == held.union(*(member.threads for member in members.values()))


@given(st.lists(st.sampled_from(range(5)), max_size=8))
def test_it_is_told_when_the_first_reader_of_a_topic_comes_and_the_last_one_goes(chosen: list[int]) -> None:
    """In `Interests.add`, or in `remove`, always return False."""
    interests, present = Interests(), list[Mapping[str, int]]()
    for number in chosen:
        known = set[str]().union(*present)
        assert interests.add(MAPPINGS[number]) == bool(MAPPINGS[number].keys() - known)
        present.append(MAPPINGS[number])
    while present:
        gone = present.pop()
        assert interests.remove(gone) == bool(gone.keys() - set[str]().union(*present))
    assert not interests.topics


def test_a_copy_goes_on() -> None:
    """In `Interests.__setstate__`, keep the identities: tests copy whole worlds."""
    interests, member = Interests(), Member({"a": 1}, {})
    interests.replace(None, member)
    there, same = copy.deepcopy((interests, member))
    there.replace(same, Member({"b": 1}, {}))
    assert (set(there.topics), set(interests.topics)) == ({"b"}, {"a"})


def test_members_that_subscribe_alike_cost_no_look_at_each_of_their_topics() -> None:
    """In `Interests.add`, count each time: a thousand members with ten thousand topics took three seconds of the loop.

    All are examined again whenever a topic is created, which took two.
    """
    subscriptions = Subscriptions()
    for number in range(TOPICS):
        subscriptions.set_topic(f"t{number}", Topic(frozenset({0}), f"id-{number}"))
    view = GroupView("g", subscriptions.topics)
    for number in range(MEMBERS):
        described = Registration(WHITE_LIST, {"^t": 1}, "0", f"c{number}", "h", 6_000)
        member = Known(
            f"c{number}", registration=described, owners=OwnersRecord(0, None, {(f"t{number % TOPICS}", 0): 0})
        )
        member.given = None
        view.members[member.consumer] = member
        view.refresh(member.consumer)
    planning = Planning(view, subscriptions, print)
    counts = planning._interests._counts, planning._drain._readers._counts = Counting(), Counting()
    planning.begin()
    while not planning.look():
        pass
    assert planning.topics == set(subscriptions.topics)
    assert [each.looks for each in counts] == [TOPICS, TOPICS]
