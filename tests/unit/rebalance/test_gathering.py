"""A start waits for its consumer's other partitions while they are being released, but not for long."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from tests.support.groups import DEFAULTS, events, world_with
from tests.support.world import GROUP, World
from zkrebalancer.protocol import settings
from zkrebalancer.protocol.command import Cause, StartFetcher, StopFetcher
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.settings import EAGER, GroupSettings
from zkrebalancer.rebalance import gathering
from zkrebalancer.rebalance.effects import Now
from zkrebalancer.rebalance.gathering import GATHER_US, RECENT_MS, Gathering, releasing
from zkrebalancer.rebalance.plan import Plan
from zkrebalancer.rebalance.scheduler import Scheduler
from zkrebalancer.rebalance.view import GroupView, Member, PendingCommand

GATHER_MS = GATHER_US // 1_000
CAUSE = Cause("id", "member-joined")
OLD = ("a", "b", "c")


class Case:
    """Members `a`, `b` and `c`, each with a stop of its partition of topic `t` to answer."""

    def __init__(self) -> None:
        self.scheduler, self.view = Scheduler(), GroupView("g", {})
        for number, name in enumerate(OLD):
            stop = StopFetcher(name, 1, 1, CAUSE, frozenset({("t", number)}))
            owners = OwnersRecord(1, None, {("t", number): 0})
            self.view.members[name] = Member(name, owners=owners, pending=[PendingCommand(stop, "/node")])
            self.view.refresh(name)
        self.candidates: OrderedDict[str, None] = OrderedDict()
        self.woken_ms: list[int] = []
        self.gathering = Gathering(self.scheduler.part("g"), self.view, self.candidates, self._go_on)

    def _go_on(self) -> None:
        self.woken_ms.append(self.now_ms)

    @property
    def now_ms(self) -> int:
        return self.scheduler.now.mono_us // 1_000

    def at(self, now_ms: int) -> None:
        """Let time pass, with the timers that become due."""
        while (due_us := self.scheduler.next_deadline_us()) is not None and due_us <= now_ms * 1_000:
            self.scheduler.now = Now(due_us, due_us // 1_000)
            self.scheduler.run_next_due()
        self.scheduler.now = Now(now_ms * 1_000, now_ms)

    def waits(self, receiver: str, *numbers: int) -> bool:
        return self.gathering.waits(receiver, [("t", number) for number in numbers])

    def releasing(self, *numbers: int) -> set[str]:
        return releasing(self.view, [("t", number) for number in numbers], self.scheduler.now)


def test_a_start_waits_until_the_last_member_has_answered() -> None:
    case = Case()
    assert case.waits("n", 0, 1)
    case.at(5)
    case.gathering.answered("a")
    case.gathering.answered("c")
    assert not case.candidates
    case.gathering.answered("b")
    assert [*case.candidates] == ["n"]
    assert case.scheduler.next_deadline_us() is None


def test_a_start_waits_for_a_slow_member_no_longer_than_that() -> None:
    case = Case()
    assert case.waits("n", 0)
    case.at(GATHER_MS - 1)
    assert not case.candidates
    case.at(GATHER_MS)
    assert [*case.candidates] == ["n"]
    assert case.woken_ms == [GATHER_MS]
    assert not case.waits("n", 0)


def test_the_wait_begins_with_the_first_free_partition() -> None:
    """In `Gathering.freed`, note no time: what became free while its consumer had a command to answer waits longer."""
    case = Case()
    case.gathering.freed("n")
    case.at(GATHER_MS - 5)
    assert case.waits("n", 0)
    case.at(GATHER_MS)
    assert case.woken_ms == [GATHER_MS]


def test_a_wait_that_ends_earlier_than_the_others_ends_in_time() -> None:
    """In `Gathering._wake`, keep the timer: the one that began to wait later, for an earlier time, waits too long."""
    case = Case()
    case.gathering.freed("early")
    case.at(5)
    assert case.waits("late", 0)
    case.at(10)
    assert case.waits("early", 1)
    case.at(GATHER_MS + 4)
    assert [*case.candidates] == ["early"]
    case.at(GATHER_MS + 5)
    assert case.woken_ms == [GATHER_MS, GATHER_MS + 5]
    assert [*case.candidates] == ["early", "late"]


def test_what_is_freed_makes_only_those_candidates_that_do_not_wait() -> None:
    case = Case()
    assert case.waits("n", 0, 1)
    case.gathering.freed("n")
    case.gathering.freed("m")
    assert [*case.candidates] == ["m"]


def test_after_a_start_the_next_one_may_wait_again() -> None:
    case = Case()
    assert case.waits("n", 0, 1)
    case.at(GATHER_MS)
    case.gathering.sent("n")
    assert case.scheduler.next_deadline_us() is None
    case.at(2 * GATHER_MS)
    assert case.waits("n", 1)


def test_a_new_plan_may_wait_for_others_but_prolongs_no_wait() -> None:
    """In `Gathering._forget`, forget the time, too: a plan every few milliseconds would delay a start for ever."""
    case = Case()
    assert case.waits("n", 0)
    case.at(GATHER_MS - 1)
    assert case.waits("n", 1)
    case.gathering.answered("a")
    assert not case.candidates
    case.at(GATHER_MS)
    assert case.woken_ms == [GATHER_MS]


def test_a_consumer_that_is_dropped_waits_for_nobody_and_nobody_for_it() -> None:
    case = Case()
    assert case.waits("n", 0)
    assert case.waits("a", 1)
    case.gathering.drop("a")
    assert [*case.candidates] == ["n"]
    case.gathering.answered("b")
    assert [*case.candidates] == ["n"]
    assert case.scheduler.next_deadline_us() is None


def test_a_reload_forgets_everything() -> None:
    case = Case()
    assert case.waits("n", 0)
    case.scheduler.forget("g")
    case.gathering.reset()
    case.gathering.answered("a")
    assert not case.candidates
    case.at(GATHER_MS)
    assert case.waits("n", 0)


def test_only_a_recent_stop_of_the_partition_is_waited_for() -> None:
    case = Case()
    assert case.releasing(0, 1) == {"a", "b"}
    assert case.releasing(3) == set(), "free, but for instance paused"
    stop = case.view.members["a"].pending[0]
    stop.command = StopFetcher("a", 1, 1, CAUSE, frozenset({("t", 7)}))
    assert case.releasing(0) == set()
    stop.command = StopFetcher("a", 1, 1, CAUSE, None)
    assert case.releasing(0) == {"a"}
    stop.command = StartFetcher("a", 1, 1, CAUSE, {("t", 7): 0})
    assert case.releasing(0) == set()
    case.view.members["b"].pending.clear()
    case.view.refresh("b")
    assert case.releasing(1) == set(), "it was sent nothing yet"
    case.at(RECENT_MS)
    assert case.releasing(2) == set()
    case.view.members["c"].pending[0].node = None
    assert case.releasing(2) == {"c"}, "it is being sent"


def test_a_member_that_is_being_evicted_is_not_waited_for() -> None:
    case = Case()
    case.view.members["a"].registered = False
    case.view.refresh("a")
    assert case.releasing(0) == set()


def test_a_partition_with_two_holders_is_not_waited_for() -> None:
    case = Case()
    case.view.members["b"].owners = OwnersRecord(1, None, {("t", 0): 0})
    case.view.refresh("b")
    assert case.releasing(0) == set()


# Sequences ----------------------------------------------------------------------------------------------------------


def joined(group: GroupSettings = DEFAULTS, *silent: str) -> World:
    """Return a group of three in which `n` has just joined, while these members do not answer."""
    world = world_with(group, *OLD, partitions=12)
    for name in silent:
        world.agents[name].silent = True
    world.add_agent("n")
    world.run()
    return world


def starts(world: World) -> list[object]:
    """Return how many partitions each start of `n` has."""
    is_start = {"member": "n-1", "option": "start-fetcher"}
    sent = events(world, "command_sent")
    return [event["partition_count"] for event in sent if is_start.items() <= event.items()]


def test_a_newcomer_gets_one_start_if_all_answer_at_once() -> None:
    world = joined()
    assert starts(world) == [3]
    assert world.leader().machine.scheduler.next_deadline_us() != world.now_us + GATHER_US


def test_a_slow_member_delays_the_start_of_the_others_partitions_and_then_its_own_start_is_sent_at_once() -> None:
    world = joined(DEFAULTS, "c")
    world.pass_time(GATHER_MS - 1)
    assert starts(world) == []
    world.pass_time(1)
    assert starts(world) == [2]
    world.pass_time(100)
    world.agents["c"].silent = False
    world.run()
    assert starts(world) == [2, 1]


def test_members_that_answer_within_the_time_share_a_start() -> None:
    world = joined(DEFAULTS, "b", "c")
    for name in "bc":
        world.pass_time(GATHER_MS // 2 - 1)
        assert starts(world) == []
        world.agents[name].silent = False
    world.run()
    assert starts(world) == [3]


def test_after_a_start_the_next_one_waits_anew() -> None:
    """In `Moving._send`, do not tell the gathering: the time of the first wait is over for the second one."""
    world = joined(DEFAULTS, "b", "c")
    world.pass_time(100)
    assert starts(world) == [1]
    for name in "bc":
        world.agents[name].silent = False
        world.pass_time(GATHER_MS // 2)
    assert starts(world) == [1, 2]


def test_the_death_of_the_member_that_is_waited_for_ends_the_wait() -> None:
    """In `Gathering.drop`, call `answered` for nobody: what the others have released waits all the same."""
    world = joined(DEFAULTS, "c")
    world.pass_time(1)
    assert starts(world) == []
    world.kill_agent(world.agents["c"])
    world.run()
    assert starts(world) == [3], "the plan gives it this part of what is free now"
    world.pass_time(10_000)
    world.assert_settled()


def test_the_death_of_the_newcomer_ends_its_wait() -> None:
    world = joined(DEFAULTS, "c")
    world.kill_agent(world.agents["n"])
    world.agents["c"].silent = False
    world.pass_time(10_000)
    assert starts(world) == []
    world.assert_settled()


def test_a_new_plan_meanwhile_prolongs_no_wait() -> None:
    world = joined(GroupSettings(rebalance_debounce_ms=15, rebalance_debounce_cap_ms=15), "b", "c")
    generation = world.generation()
    world.set_topic("t", 13)
    world.pass_time(GATHER_MS - 1)
    assert starts(world) == []
    assert len(events(world, "rebalance_planned")) > generation
    world.pass_time(1)
    assert starts(world) == [2]


def test_a_reload_meanwhile_loses_no_start_and_begins_the_wait_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Moving.reset`, let the gathering be."""
    monkeypatch.setattr(gathering, "RECENT_MS", 10**13)  # the model of ZooKeeper does not say when a node was created
    world = joined(DEFAULTS, "c")
    world.pass_time(GATHER_MS // 2)
    world.leader().machine.groups[GROUP].load("outdated")
    world.tick()
    world.pass_time(GATHER_MS - 1)
    assert starts(world) == []
    world.pass_time(1)
    assert starts(world) == [2]
    world.agents["c"].silent = False
    world.run()
    assert starts(world) == [2, 1]


def test_a_new_leader_finds_the_stop_and_loses_no_start() -> None:
    world = joined(DEFAULTS, "c")
    world.add_coordinator()
    world.run()
    world.kill_coordinator(world.leader())
    world.pass_time(10_000)
    assert starts(world) == [2]
    world.agents["c"].silent = False
    world.pass_time(100)
    assert starts(world) == [2, 1]
    world.assert_settled()


def test_a_member_that_has_not_answered_for_long_is_not_waited_for() -> None:
    world = joined(DEFAULTS, "c")
    world.pass_time(RECENT_MS + 100)
    world.set_topic("t", 16)
    world.pass_time(DEFAULTS.rebalance_debounce_ms)
    assert sum(map(len, world.owned().values())) >= 15
    before = len(starts(world))
    world.pass_time(GATHER_MS)
    assert len(starts(world)) == before


def test_after_the_barrier_of_an_eager_group_nothing_waits() -> None:
    world = joined(GroupSettings(mode=EAGER), "c")
    world.pass_time(100)
    assert starts(world) == []
    world.agents["c"].silent = False
    world.run()
    assert starts(world) == [3]


def test_who_waits_holds_up_nobody_else() -> None:
    """`n` waits for `b`, which does not answer; `m`, of another topic and in the same plan, waits for nobody."""
    world = World()
    for topic in "tuv":
        world.set_topic(topic, 6)
    world.create_group(settings.encode(DEFAULTS))
    world.add_coordinator()
    for name, topic in {"a": "t", "b": "t", "c": "u", "d": "u"}.items():
        world.add_agent(name, {topic: 1})
    world.pass_time(2_000)
    world.agents["b"].silent = True
    for name, topic in {"first": "v", "n": "t", "m": "u"}.items():  # the others join within the debounce time
        world.add_agent(name, {topic: 1})
        world.run()
    world.pass_time(DEFAULTS.rebalance_debounce_ms)
    owned = world.owned()
    assert (len(owned["m-1"]), len(owned["n-1"])) == (2, 0)
    world.pass_time(GATHER_MS)
    assert len(world.owned()["n-1"]) == 1


@pytest.mark.parametrize("count", [10, 40])
def test_an_answer_is_not_a_reason_to_examine_all_that_the_newcomer_lacks(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Gathering.freed`, make every receiver a candidate: all of its share is examined at each answer."""
    world = world_with(DEFAULTS, *(f"m{number}" for number in range(count)), partitions=count * (count + 1))
    examined: list[str] = []
    difference = Plan.difference

    def noting(self: Plan, consumer: str, has: dict[TopicPartition, int]) -> object:
        examined.append(consumer)
        return difference(self, consumer, has)

    monkeypatch.setattr(Plan, "difference", noting)
    world.add_agent("n")
    world.pass_time(1)
    assert starts(world) == [count]
    assert examined.count("n-1") < 8
