"""Updated columns equal columns read from scratch; transitions contain the right stops and starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support import examples
from tests.unit.assignment.problems import CONSUMER_NAMES, TOPIC_NAMES, holding, placed, problems
from zkrebalancer.assignment import decide
from zkrebalancer.assignment.claims import current_owners
from zkrebalancer.assignment.columns import NOBODY, Columns, to_columns
from zkrebalancer.assignment.model import Member, Problem, to_racks
from zkrebalancer.assignment.placement import to_threads
from zkrebalancer.assignment.sticky import sticky
from zkrebalancer.assignment.transition import to_transition
from zkrebalancer.assignment.updating import updated


def contents(columns: Columns) -> Iterator[tuple[str, object]]:
    """Yield all contents, but not the numbering of subscriptions and racks, which may differ."""
    for each in fields(columns):
        value = getattr(columns, each.name)
        if each.name not in {"subscription", "threads", "rack", "rack_names", "rack_sets", "rack_set"}:
            yield each.name, value.tolist() if isinstance(value, np.ndarray) else value
    yield "threads", columns.threads[columns.subscription].tolist()
    yield "racks", [columns.rack_names[rack] if rack != NOBODY else None for rack in columns.rack.tolist()]
    sets = [{name for name, is_in in zip(columns.rack_names, row, strict=True) if is_in} for row in columns.rack_sets]
    yield "replicas", [sets[number] for number in columns.rack_set.tolist()]


@given(problem=problems())
def test_holders_are_the_current_owners(problem: Problem) -> None:
    columns = to_columns(problem)
    held = {
        (columns.topics[columns.topic[row]], row - int(columns.first[columns.topic[row]])): columns.consumers[member]
        for row, member in enumerate(columns.holder.tolist())
        if member != NOBODY
    }
    assert held == current_owners(problem)
    for row, (holder, owner) in enumerate(zip(columns.holder.tolist(), columns.owner.tolist(), strict=True)):
        topic = columns.topics[columns.topic[row]]
        reads = holder != NOBODY and topic in problem.members[columns.consumers[holder]].threads
        assert owner == (holder if reads else NOBODY)


replicas = st.dictionaries(st.sampled_from(TOPIC_NAMES), st.lists(st.sets(st.sampled_from("abc")), max_size=3))


@examples.times(3)
@given(
    before=problems(),
    other=problems(),
    changed=st.sets(st.sampled_from(CONSUMER_NAMES)),
    rack=st.sampled_from("ab"),
    racks=st.tuples(replicas, replicas),
)
def test_updated_columns_equal_a_full_read(
    before: Problem, other: Problem, changed: set[str], rack: str, racks: tuple[dict[str, list[set[str]]], ...]
) -> None:
    named = {name: replace(m, rack="a") for name, m in before.members.items()}
    before = replace(before, members=named, racks=to_racks(racks[0]))
    members = {name: member for name, member in before.members.items() if name not in changed}
    members |= {name: replace(m, rack=rack, capacity=2.0) for name, m in other.members.items() if name in changed}
    after = replace(before, members=members, racks=to_racks(racks[1]))
    assert dict(contents(updated(to_columns(before), after, changed))) == dict(contents(to_columns(after)))


def test_an_update_does_not_read_unchanged_members() -> None:
    """The claims of an unchanged member come from the columns, not from the problem."""
    group = Problem({"t": 6}, {"c1": Member({"t": 1}, {}), "c2": Member({"t": 1}, {})})
    settled = holding(group, decide("sticky", group))
    wrong = replace(settled, members={**settled.members, "c1": Member({"t": 1}, {}), "c3": Member({"t": 2}, {})})
    columns = updated(to_columns(settled), wrong, ["c3"])
    assert columns.consumers == ("c1", "c2", "c3")
    assert columns.holder.tolist() == [0, 1, 0, 1, 0, 1]
    assert columns.threads[columns.subscription].tolist() == [[1], [1], [2]]


def test_an_old_claim_of_a_changed_member_does_not_beat_a_newer_one() -> None:
    newer = Member({"t": 1}, {("t", 0): 0}, generation=5)
    older = Member({"t": 1}, {("t", 0): 0, ("t", 1): 0}, generation=4)
    group = Problem({"t": 2}, {"c1": newer, "c2": Member({"t": 1}, {})})
    after = replace(group, members={"c1": newer, "c2": older})
    assert updated(to_columns(group), after, ["c2"]).holder.tolist() == [0, 1]


@given(problem=problems())
def test_a_transition_contains_all_stops_and_starts(problem: Problem) -> None:
    columns = to_columns(problem)
    target = sticky(columns)
    transition = to_transition(columns, target, to_threads(columns, target))
    starts = {
        (consumer, thread, *partition)
        for consumer, partitions in transition.starts.items()
        for partition, thread in partitions.items()
    }
    stops = {(consumer, *tp) for consumer, partitions in transition.stops.items() for tp in partitions}
    wanted = set(placed(decide("sticky", problem)))
    held = {
        (owner, problem.members[owner].owned[topic, partition], topic, partition)
        for (topic, partition), owner in current_owners(problem).items()
    }
    assert starts == wanted - held
    assert stops == {(consumer, *partition) for consumer, _thread, *partition in held - wanted}
    for consumer in columns.consumers:
        share = {(consumer, thread, *partition) for partition, thread in transition.share(consumer).items()}
        assert share == {place for place in wanted if place[0] == consumer}
    assert all(transition.receiver((topic, number)) == consumer for consumer, _thread, topic, number in wanted)
