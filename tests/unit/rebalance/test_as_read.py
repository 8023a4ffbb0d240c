"""A small group at rest is recognized without a description of its members, and only if it is at rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.support.groups import world_with
from tests.support.world import GROUP
from zkrebalancer.protocol.cluster_nodes import UNREAD, Topic
from zkrebalancer.protocol.command import Cause, StopFetcher
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import EvictionRecord, OwnersRecord, StaticMember
from zkrebalancer.protocol.registration import STATIC, WHITE_LIST, Registration
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.planning import Planning
from zkrebalancer.rebalance.states import GroupState
from zkrebalancer.rebalance.subscriptions import Subscriptions
from zkrebalancer.rebalance.view import GroupView, Member, PendingCommand

PLAIN = Registration(STATIC, {"s": 1, "t": 1}, "0", "m", "h", 6_000)


class Case:
    """A group at rest, and what may be wrong with it."""

    def __init__(self, members: int, partitions: tuple[int, int]) -> None:
        self.subscriptions = Subscriptions()
        for name, count in zip("st", partitions, strict=True):
            self.subscriptions.set_topic(name, Topic(frozenset(range(count)), "id"))
        self.view = GroupView(GROUP, self.subscriptions.topics)
        every = [(topic, number) for topic in "st" for number in range(len(self.view.topics[topic].partitions))]
        for number in range(members):
            self.add(f"m{number}", dict.fromkeys(every[number::members], 0), PLAIN)

    def add(self, name: str, owned: dict[TopicPartition, int], registration: Registration) -> None:
        self.view.members[name] = Member(name, registration, OwnersRecord(1, "id", owned), given=owned)
        self.view.refresh(name)

    @property
    def first(self) -> Member:
        return self.view.members["m0"]

    def own(self, owned: dict[TopicPartition, int]) -> None:
        self.add("m0", owned, PLAIN)

    def owned(self) -> dict[TopicPartition, int]:
        return dict(self.view.held_by("m0"))

    def become(self, **changes: object) -> None:
        self.add("m0", self.owned(), PLAIN._replace(**changes))  # type: ignore[arg-type]

    def set(self, **changes: object) -> None:
        self.view.settings = replace(self.view.settings, **changes)  # type: ignore[arg-type]

    def change(self, **changes: object) -> None:
        for name, value in changes.items():
            setattr(self.first, name, value)
        self.view.refresh("m0")


def _stop() -> PendingCommand:
    return PendingCommand(StopFetcher("id", 1, 1, Cause("id", "retry"), None), "/node")


FAULTS: dict[str, Callable[[Case], object]] = {
    "a partition has no owner": lambda case: case.own(dict([*case.owned().items()][1:])),
    "a partition has two owners": lambda case: case.own({**case.owned(), **case.view.held_by("m1")}),
    "it owns nothing": lambda case: case.own({}),
    "another thread": lambda case: case.own(dict.fromkeys(case.owned(), 1)),
    "a partition that does not exist": lambda case: case.own({**case.owned(), ("t", 99): 0}),
    "a topic that does not exist": lambda case: case.own({**case.owned(), ("u", 0): 0}),
    "two threads": lambda case: case.become(subscription={"s": 2, "t": 2}),
    "another topic": lambda case: case.become(subscription={"s": 1}),
    "a pattern": lambda case: case.become(pattern=WHITE_LIST, subscription={"^[st]$": 1}),
    "an invalid pattern": lambda case: case.become(pattern=WHITE_LIST, subscription={"(": 1}),
    "a static member": lambda case: case.become(instance_id="i"),
    "no registration": lambda case: case.change(registration=None),
    "a command": lambda case: case.change(pending=[_stop()]),
    "a refused command": lambda case: case.change(is_refused=True),
    "its registration is gone": lambda case: case.change(registered=False),
    "an unreadable record": lambda case: case.change(owners=None),
    "drained": lambda case: case.set(drained_members=("m0",)),
    "a drained host": lambda case: case.set(drained_hosts=("h",)),
    "another strategy": lambda case: case.set(strategy="range"),
    "frozen": lambda case: case.set(frozen=True),
    "an evicted member": lambda case: case.view.evicted.update(dead=EvictionRecord(1, {("t", 0): 0}, 1, 1)),
    "a static member is away": lambda case: case.view.statics.update(
        i=(StaticMember("dead", frozenset({("t", 0)}), 1), 1)
    ),
    "a partition waits": lambda case: case.view.waiting_for.update({("t", 0): "i"}),
    "a partition more": lambda case: case.subscriptions.set_topic("t", Topic(frozenset(range(9)), "id")),
    "a gap": lambda case: case.subscriptions.set_topic("t", Topic(frozenset({0, 2}), "id")),
    "a topic that was never read": lambda case: case.subscriptions.set_topic("t", UNREAD),
    "a topic is gone": lambda case: case.subscriptions.set_topic("t", None),
    "offsets of a former topic": lambda case: case.view.incarnations.update(t="other czxid-9"),
}


def is_kept_by_the_whole_check(case: Case) -> bool:
    planning = Planning(case.view, case.subscriptions, lambda _text: None)
    planning.begin()
    while not planning.look():
        pass
    return planning.is_kept(planning.problem(), {m.consumer for m in case.view.members.values() if m.pending})


@given(
    st.integers(2, 4),
    st.tuples(st.integers(0, 4), st.integers(1, 6)),
    st.sets(st.sampled_from([*FAULTS]), max_size=2),
)
def test_a_group_that_is_kept_as_read_is_kept_by_the_whole_check(
    members: int, partitions: tuple[int, int], faults: set[str]
) -> None:
    """Leave any condition of `as_read` out."""
    case = Case(members, partitions)
    for fault in sorted(faults):
        FAULTS[fault](case)
    planning = Planning(case.view, case.subscriptions, lambda _text: None)
    planning.begin()
    is_kept = planning.is_kept_as_read()
    assert is_kept <= is_kept_by_the_whole_check(case)
    assert is_kept or faults


def test_a_new_leader_describes_the_members_of_a_group_at_rest_once_something_changes() -> None:
    """In `Planning.is_kept_as_read`, leave `_is_described` as it is; in `Planning.topics`, forget `_kept_topics`."""
    world = world_with(GroupSettings(), "a", "b", partitions=4)
    world.pass_time(1_000)
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(5_000)
    group = world.leader().machine.groups[GROUP]
    assert (group.state, [*group.planning.topics], group.planning._members) == (GroupState.IDLE, ["t"], {})
    assert not group.view.touched
    world.add_agent("c")
    world.pass_time(5_000)
    world.assert_settled()
    assert len(group.planning._members) == 3
    assert {len(owned) for owned in world.owned().values()} == {1, 2}
