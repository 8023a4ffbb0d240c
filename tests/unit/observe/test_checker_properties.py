"""Random correct histories pass; a single violation in such a history is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.observe.history import History
from zkrebalancer.observe.checker import Run, Verdict
from zkrebalancer.observe.reading import Problems

MEMBERS = ("a", "b", "c")
PARTITIONS = 3
STEPS = ("produce", "start", "deliver", "commit", "stop", "crash")
Step = tuple[str, int, int]  # name, partition, and a number that selects a member or a count
A_STEP = st.tuples(st.sampled_from(STEPS), st.integers(0, PARTITIONS - 1), st.integers(0, 5))


@dataclass
class Group:
    """Correct consumers that write their history; impossible steps do nothing."""

    history: History = field(default_factory=History)
    ends: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    positions: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    committed: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    owners: list[str | None] = field(default_factory=lambda: [None] * PARTITIONS)
    incarnation: int = 0

    def perform(self, step: Step) -> None:
        what, partition, number = step
        getattr(self, what)(partition, number)

    def produce(self, partition: int, number: int) -> None:
        if number:
            self.history.produced(self.ends[partition], self.ends[partition] + number - 1, partition)
            self.ends[partition] += number

    def start(self, partition: int, number: int) -> None:
        if self.owners[partition] is None:
            owner = self.owners[partition] = f"{MEMBERS[number % len(MEMBERS)]}-{self.incarnation}"
            self.positions[partition] = self.committed[partition]
            self.history.started(owner, self.committed[partition], partition=partition)

    def deliver(self, partition: int, number: int) -> None:
        owner, position = self.owners[partition], self.positions[partition]
        count = min(number, self.ends[partition] - position)
        if owner is not None and count:
            self.history.delivered(owner, position, position + count - 1, partition)
            self.positions[partition] += count

    def commit(self, partition: int, _number: int) -> None:
        owner = self.owners[partition]
        if owner is not None:
            self.committed[partition] = self.positions[partition]
            self.history.committed(owner, self.positions[partition], partition)

    def stop(self, partition: int, _number: int) -> None:
        owner = self.owners[partition]
        if owner is not None:
            self.history.stopped(owner, self.positions[partition], partition=partition)
            self.commit(partition, 0)
            self.owners[partition] = None

    def crash(self, partition: int, number: int) -> None:
        """Kill the owner; with an odd number, it first notices that its session is lost."""
        owner = self.owners[partition]
        if owner is None:
            return
        owned = [other for other in range(PARTITIONS) if self.owners[other] == owner]
        for other in owned if number % 2 else []:
            self.history.stopped(owner, self.positions[other], "lost", other)
        self.history.ended(owner)
        self.incarnation += 1
        for other in owned:
            self.owners[other] = None

    def finish(self) -> Verdict:
        """Start every unowned partition, deliver all remaining records, and judge."""
        for partition in range(PARTITIONS):
            self.start(partition, 0)
            self.deliver(partition, self.ends[partition])
        return self.history.verdict()


def played(steps: list[Step]) -> Group:
    group = Group()
    for step in steps:
        group.perform(step)
    return group


def owned(group: Group, partition: int) -> str:
    """Give the partition a new interval with at least two delivered records; return the owner."""
    group.stop(partition, 0)
    group.start(partition, 0)
    group.produce(partition, 2)
    group.deliver(partition, group.ends[partition])
    return str(group.owners[partition])


def overlap(group: Group, partition: int) -> None:
    owned(group, partition)
    group.history.started("thief", group.positions[partition], partition=partition)
    group.history.stopped("thief", group.positions[partition], partition=partition)


def lose(group: Group, partition: int) -> None:
    owned(group, partition)
    group.produce(partition, 2)
    group.positions[partition] += 1
    group.commit(partition, 0)


def deliver_twice(group: Group, partition: int) -> None:
    owned(group, partition)
    group.stop(partition, 0)
    group.committed[partition] -= 1


def redeliver_below_the_commit(group: Group, partition: int) -> None:
    owned(group, partition)
    group.commit(partition, 0)
    group.crash(partition, 0)
    group.committed[partition] -= 1


def go_back(group: Group, partition: int) -> None:
    owner = owned(group, partition)
    last = group.positions[partition] - 1
    group.history.delivered(owner, last, last, partition)


def deliver_unowned(group: Group, partition: int) -> None:
    owner = owned(group, partition)
    group.produce(partition, 1)
    group.stop(partition, 0)
    group.history.delivered(owner, group.positions[partition], group.positions[partition], partition)


@given(st.lists(A_STEP, max_size=60))
def test_a_correct_history_passes(steps: list[Step]) -> None:
    group = played(steps)
    verdict = group.finish()
    assert verdict.problems == ()
    assert verdict.produced == verdict.delivered == sum(group.ends)
    assert verdict.duplicated_outside_crash == verdict.lost == verdict.overlaps == verdict.out_of_order == 0


@pytest.mark.parametrize(
    ("violate", "find"),
    [
        (overlap, lambda verdict: verdict.overlaps == 1),
        (lose, lambda verdict: verdict.lost == 1),
        (deliver_twice, lambda verdict: verdict.duplicated_outside_crash == 1),
        (redeliver_below_the_commit, lambda verdict: verdict.duplicated_outside_crash == 1),
        (go_back, lambda verdict: verdict.out_of_order == 1),
        (deliver_unowned, lambda verdict: "without owning the partition" in verdict.problems[0]),
    ],
)
@given(
    before=st.lists(A_STEP, max_size=30), after=st.lists(A_STEP, max_size=30), partition=st.integers(0, PARTITIONS - 1)
)
def test_one_violation_anywhere_is_found(
    violate: Callable[[Group, int], None],
    find: Callable[[Verdict], bool],
    before: list[Step],
    after: list[Step],
    partition: int,
) -> None:
    group = played(before)
    violate(group, partition)
    for step in after:
        group.perform(step)
    verdict = group.finish()
    assert not verdict.ok
    assert find(verdict)


@pytest.mark.parametrize(("silent", "is_told"), [((), True), (("other",), True), (("g",), False)])
def test_who_wrote_no_events_hides_only_what_its_own_group_has_lost(silent: tuple[str, ...], is_told: bool) -> None:
    """In `Run.verdict`, report no loss at all once there is a silent group."""
    run = Run(Problems())
    for event in History().produced(0, 9).started("a", 0).delivered("a", 0, 8).events:
        run.apply(event)
    verdict = run.verdict(0, silent_groups=silent)
    assert verdict.lost == 1
    assert verdict.problems == (("group g, t/0: 1 records lost: offsets 9",) if is_told else ())
