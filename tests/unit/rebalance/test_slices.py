"""What one group can have in any number is handled in slices, between which other groups have their turn.

Counted are steps and calls, which are the same on every machine.
"""

from __future__ import annotations

from unittest import mock

import pytest

from tests.benchmarks.acknowledging import write
from tests.benchmarks.many_groups import ManyLab
from tests.support.groups import events, world_with
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Create
from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.ownership import StaticMember
from zkrebalancer.protocol.registration import STATIC, Registration
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance import plan, scheduler, static_members, subscriptions
from zkrebalancer.rebalance.subscriptions import Subscriptions
from zkrebalancer.rebalance.view import GroupView

MANY = 200
PER_STEP = 10
LAB_GROUP = "g00000"


def most_per_step(lab: ManyLab, count: str) -> int:
    """Run until everything has settled; return by how much a count has grown at most in one step."""
    most, before = 0, _count(lab, count)
    while lab.session.sent or lab.session.inbox or lab._computing or _is_soon(lab):
        lab.step_once()
        now = _count(lab, count)
        most, before = max(most, now - before), now
    return most


def _is_soon(lab: ManyLab) -> bool:
    deadline_us = lab.machine.scheduler.next_deadline_us()
    return deadline_us is not None and deadline_us < lab.now_us + 1_000_000


def _count(lab: ManyLab, what: str) -> int:
    if what == "topics":
        return len(lab.machine.subscriptions._topics_of.get(LAB_GROUP, ()))
    return sum(isinstance(name, tuple) and name[0] == "static" for _owner, name in lab.machine.scheduler.due)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> ManyLab:
    """Return a coordinator whose steps are short, with a member that names MANY topics and MANY static members away."""
    monkeypatch.setattr(scheduler, "MAX_WORK_PER_STEP", PER_STEP * static_members.WORK_OF_A_RECORD)
    monkeypatch.setattr(subscriptions, "TOPICS_PER_PART", PER_STEP)
    lab = ManyLab(1, MANY)
    named = {f"t{number:04}": 1 for number in range(MANY)}
    lab.join(LAB_GROUP, "big", Registration(STATIC, named, "0", "big", "h", 6_000))
    for number in range(MANY):
        record = ownership.encode_static(StaticMember(f"c{number}", frozenset(), None))
        write(lab.zk, Create(paths.static(LAB_GROUP, f"i{number}"), record))
    return lab


def test_thousands_of_static_members_that_are_away_are_adopted_a_few_per_step(lab: ManyLab) -> None:
    """In `Group._go_on_adopting`, do all at once."""
    assert 0 < most_per_step(lab, "static members") <= PER_STEP
    assert _count(lab, "static members") == MANY


def test_thousands_of_topics_that_one_member_names_are_noted_a_few_per_step(lab: ManyLab) -> None:
    """In `Group._go_on_adopting`, do all at once."""
    assert 0 < most_per_step(lab, "topics") <= PER_STEP * static_members.WORK_OF_A_RECORD
    assert _count(lab, "topics") == MANY


def test_a_group_that_is_read_anew_while_it_is_adopted_is_adopted_once(lab: ManyLab) -> None:
    """In `Group.load`, let the subscriptions be."""
    while not 0 < _count(lab, "topics") < MANY:
        lab.step_once()
    lab.reconnect()
    most_per_step(lab, "topics")
    groups = lab.machine.subscriptions.consumer_groups_per_topic
    assert {groups[f"t{number:04}"][LAB_GROUP] for number in range(2, MANY)} == {1}
    assert _count(lab, "static members") == MANY


def test_a_member_is_started_on_thousands_of_partitions_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `plan.next_step`, start all that is ready."""
    monkeypatch.setattr(plan, "MAX_STARTS", 3)
    world = world_with(GroupSettings(), "a", partitions=10)
    world.pass_time(1_000)
    world.assert_settled()
    assert [event["partition_count"] for event in events(world, "command_sent")] == [3, 3, 3, 1]


def test_the_key_of_a_long_subscription_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Subscriptions._key`, keep none."""
    known, key = Subscriptions(), mock.Mock(side_effect=subscriptions._key)
    monkeypatch.setattr(subscriptions, "LONG", 2)
    monkeypatch.setattr(subscriptions, "_key", key)
    for number in range(MANY):
        known.set_topic(f"t-{number}", Topic(frozenset({0}), "id"))
    long = Registration(STATIC, {f"t-{number}": 1 for number in range(MANY)}, "", "c", "h", 6_000)
    while known.resolve_some(long, PER_STEP) == PER_STEP:
        pass
    assert len(known.resolve(long)) == MANY
    assert key.mock_calls == [mock.call(long)]


def test_topics_whose_offsets_have_their_present_name_are_not_looked_at_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `OffsetMarks.stale_topics`, look at all of them."""
    view = GroupView("g", {f"t-{number}": Topic(frozenset({0}), "id") for number in range(MANY)})
    view.incarnations = dict.fromkeys([*view.topics, "gone"], "id")
    view.recorded_incarnations = {**view.incarnations, "t-7": "former"}
    view.incarnations["t-7"] = "former"
    is_stale = mock.Mock(side_effect=view.is_stale)
    monkeypatch.setattr(GroupView, "is_stale", is_stale)
    assert view.stale_topics() == {"t-7"}
    assert view.renamed_topics(MANY) == {}
    assert {call.args[-1] for call in is_stale.mock_calls} == {"t-7", "gone"}


def test_of_many_renamed_topics_only_those_of_one_write_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `OffsetMarks.renamed_topics`, look at all: with 10,000 topics that get ids, each of 157 writes took 60 ms."""
    view = GroupView("g", {f"t-{number}": Topic(frozenset({0}), f"id-{number} czxid-1") for number in range(MANY)})
    view.incarnations = dict.fromkeys(view.topics, "czxid-1")
    view.recorded_incarnations = dict(view.incarnations)
    names = mock.Mock(side_effect=view.names_to_store)
    monkeypatch.setattr(GroupView, "names_to_store", names)
    assert view.renamed_topics(2, but={"t-0"}) == {f"t-{number}": f"id-{number} czxid-1" for number in (1, 2)}
    assert names.call_count == 2
