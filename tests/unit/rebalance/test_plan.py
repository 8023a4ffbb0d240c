"""A member's next step from what it has, what it shall have, and what is free; and who is served when."""

from __future__ import annotations

from random import Random

import pytest

from zkrebalancer.assignment import STRATEGIES
from zkrebalancer.assignment import model as problems
from zkrebalancer.assignment.transition import place
from zkrebalancer.protocol.cluster_nodes import Topic
from zkrebalancer.protocol.command import Cause, StopFetcher
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL
from zkrebalancer.rebalance import plan as plans
from zkrebalancer.rebalance.plan import Deviations, Plan, Share, Start, Stop, Vacancies, make_plan, next_step
from zkrebalancer.rebalance.view import GroupView, Member

CAUSE = Cause("id", "member-joined")
Held = dict[str, dict[TopicPartition, int]]


def plan_for(held: Held, partitions: int, mode: str = INCREMENTAL, fenced: frozenset[str] = frozenset()) -> Plan:
    """Plan anew, by number, for consumers that hold these partitions of one topic; the fenced take no part."""
    view = GroupView("g", {})
    for name, owned in held.items():
        view.members[name] = Member(name, owners=OwnersRecord(1, None, owned))
        view.refresh(name)
    members = {name: problems.Member({"t": 1}, owned) for name, owned in held.items() if name not in fenced}
    problem = problems.Problem({"t": partitions}, members)
    transition = place(STRATEGIES["round_robin"], problem, everything=mode == EAGER)
    deviations = Deviations(mode, {name: {} for name in fenced}, fenced, {}, keeps_held=False)
    plan = make_plan(view, Vacancies(), transition, deviations, CAUSE, 0, 2)
    assert plan is not None
    return plan


def step(plan: Plan, held: Held, consumer: str) -> Stop | Start | None:
    """Return the next step of a consumer; what another one has is not free."""
    others = {tp for name, owned in held.items() if name != consumer for tp in owned}
    return next_step(plan, consumer, held[consumer], lambda tp: tp not in others)[0]


def test_what_moves_is_stopped_first_and_starts_when_it_is_free() -> None:
    held: Held = {"a": {("t", 0): 0, ("t", 1): 0}, "b": {}}
    plan = plan_for(held, 2)
    assert step(plan, held, "b") is None
    assert step(plan, held, "a") == Stop(frozenset({("t", 1)}))
    del held["a"]["t", 1]
    assert step(plan, held, "a") is None
    assert step(plan, held, "b") == Start({("t", 1): 0})


def test_a_step_that_was_lost_or_done_in_part_is_taken_again() -> None:
    """The step depends on nothing but what a consumer has: asked twice, it is the same."""
    held: Held = {"a": {}}
    plan = plan_for(held, 3)
    whole = Start({("t", 0): 0, ("t", 1): 0, ("t", 2): 0})
    assert [step(plan, held, "a"), step(plan, held, "a")] == [whole, whole]
    held["a"]["t", 1] = 0
    assert step(plan, held, "a") == Start({("t", 0): 0, ("t", 2): 0})


def test_in_an_eager_plan_all_stop_everything_before_anything_starts() -> None:
    held: Held = {"a": {("t", 0): 0}, "b": {("t", 1): 0, ("t", 2): 0}, "c": {}}
    plan = plan_for(held, 3, EAGER)
    assert [step(plan, held, name) for name in "abc"] == [Stop(None), Stop(None), None]
    held["a"] = {}
    assert not plan.acknowledged("a", StopFetcher("1", 1, 2, CAUSE, None), 0)
    assert step(plan, held, "a") is None
    held["b"] = {}
    assert plan.acknowledged("b", StopFetcher("2", 1, 2, CAUSE, None), 0)
    assert all(isinstance(step(plan, held, name), Start) for name in "abc")


def test_the_death_of_the_last_that_others_wait_for_lets_them_start() -> None:
    held: Held = {"a": {("t", 0): 0}, "b": {}}
    plan = plan_for(held, 2, EAGER)
    assert plan.drop("a")
    assert isinstance(step(plan, {"b": {}}, "b"), Start)


def test_a_stop_of_an_older_plan_does_not_count_for_this_one() -> None:
    held: Held = {"a": {("t", 0): 0}, "b": {}}
    plan = plan_for(held, 2, EAGER)
    assert not plan.acknowledged("a", StopFetcher("1", 1, 1, CAUSE, None), 0)
    assert step(plan, held, "a") == Stop(None)


def test_a_fenced_consumer_is_told_to_stop_everything_also_where_that_is_nothing() -> None:
    held: Held = {"old": {}, "new": {}}
    plan = plan_for(held, 1, fenced=frozenset({"old"}))
    assert step(plan, held, "old") == Stop(None)
    plan.acknowledged("old", StopFetcher("1", 1, 2, CAUSE, None), 0)
    assert step(plan, held, "old") is None


def test_a_fenced_consumer_that_was_passed_over_is_told_all_the_same() -> None:
    """It could not be read at first. In `next_step`, stop its partitions only: it would stay, and be fenced again."""
    held: Held = {"old": {("t", 0): 0}, "new": {}}
    plan = plan_for(held, 1, EAGER, fenced=frozenset({"old"}))
    assert plan.pass_over("old")
    assert step(plan, held, "old") == Stop(None)
    held["old"] = {}
    assert step(plan, held, "old") is None


def test_a_consumer_with_another_thread_for_a_partition_stops_it_once_and_starts_it_once() -> None:
    held: Held = {"a": {("t", 0): 5}}
    plan = plan_for(held, 1)
    assert step(plan, held, "a") == Stop(frozenset({("t", 0)}))
    held["a"] = {}
    assert step(plan, held, "a") == Start({("t", 0): 0})
    held["a"] = {("t", 0): 0}
    assert step(plan, held, "a") is None


@pytest.mark.parametrize("mode", [INCREMENTAL, EAGER])
@pytest.mark.parametrize("seed", range(50))
def test_every_plan_ends_in_its_target_in_any_order_and_in_any_pieces(seed: int, mode: str) -> None:
    """Consumers step in a random order, and a command may carry less than the step: each is served in the end."""
    random = Random(seed)
    held: Held = {f"c{number}": {} for number in range(random.randrange(1, 5))}
    for number in range(random.randrange(1, 12)):
        if random.random() < 0.8:
            held[random.choice(sorted(held))]["t", number] = random.randrange(2)
    partitions = 1 + max((number for owned in held.values() for _topic, number in owned), default=0)
    for owned in held.values():
        owned.pop(("t", 0), None)
    held["c0"]["t", 0] = 7  # another thread than it shall be: there is something to do
    plan = plan_for(held, partitions, mode)
    for _ in range(1_000):
        name = random.choice(sorted(held))
        _do(plan, held, name, step(plan, held, name), random)
        member = Member(name, owners=OwnersRecord(2, None, held[name]))
        plan.look_at(member, lambda _partition: False)
        if not plan.unserved:
            break
    assert held == {name: plan.share(name) for name in held}


def _do(plan: Plan, held: Held, name: str, taken: Stop | Start | None, random: Random) -> None:
    """Let a consumer acknowledge a command that carries some of the step, at least one partition."""
    if isinstance(taken, Start):
        held[name] = held[name] | _some(taken.partitions, random)
        assert sum(len(owned) for owned in held.values()) == len({tp for owned in held.values() for tp in owned})
    elif isinstance(taken, Stop) and taken.partitions is None:
        held[name] = {}
        plan.acknowledged(name, StopFetcher("id", 1, plan.generation, CAUSE, None), 0)
    elif isinstance(taken, Stop):
        gone = _some(dict.fromkeys(taken.partitions or (), 0), random)
        held[name] = {tp: thread for tp, thread in held[name].items() if tp not in gone}


def _some(partitions: Share, random: Random) -> dict[TopicPartition, int]:
    chosen = random.sample(sorted(partitions), random.randint(1, len(partitions)))
    return {tp: partitions[tp] for tp in chosen}


def test_no_more_vacancies_are_kept_than_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Vacancies.note`, do not count those that are known already."""
    monkeypatch.setattr(plans, "MAX_VACANT", 3)
    vacancies = Vacancies()
    for number in range(0, 8, 2):
        vacancies.note("a", [("t", number), ("t", number + 1)], number)
        assert len(vacancies.by_partition) <= 3
    assert vacancies.fill([("t", 0), ("t", 1)], 10) == 10
    vacancies.note("b", [("t", 8), ("t", 9)], 10)
    assert vacancies.by_partition.keys() == {("t", 2), ("t", 8), ("t", 9)}


def test_what_no_longer_exists_is_no_vacancy_once_the_group_was_read() -> None:
    """In `Vacancies.follow`, keep everything that nobody holds: a topic of this name may come again days later."""
    vacancies, before = Vacancies(), GroupView("g", {})
    vacancies.note("a", [("t", 0), ("deleted", 0), ("t", 9)], 0)
    after = GroupView("g", {"t": Topic(frozenset({0, 1}), "id-1")})
    vacancies.follow(before, after, [], 1)
    assert vacancies.by_partition.keys() == {("t", 0)}
