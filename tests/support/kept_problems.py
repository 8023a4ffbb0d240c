"""What a group keeps of its problem between rebalances, against the same made from nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zkrebalancer.assignment.columns import Strategy
from zkrebalancer.assignment.transition import Transition, place
from zkrebalancer.rebalance.effects import Compute
from zkrebalancer.rebalance.group import Group
from zkrebalancer.rebalance.planning import Planning


def assert_kept_as_made_anew(groups: Mapping[str, Group], task: Compute) -> None:
    """The problem that was just handed out is the one that a look at every consumer gives."""
    if task.group not in groups:
        return  # deleted, or resigned, in the same step
    group = groups[task.group]
    anew = Planning(group.view, group._subscriptions, lambda _text: None)
    anew._resetting = group.planning._resetting  # as it was when the planning began
    for consumer in group.view.members:
        anew._look_at(consumer)
    anew._look_at_static_members()
    members = anew._members | anew._absent
    assert task.problem.members == members, f"group {group.name}: what is kept of it is not true"
    names = {topic for member in members.values() for topic in member.threads}
    names |= {topic for member in members.values() for topic, _partition in member.owned}
    assert task.problem.topics.keys() == names & group.view.topics.keys()
    assert group.planning._outside == anew._outside
    assert group.planning._stale_holders == anew._stale_holders


def assert_placed_as_anew(strategy: Strategy, task: Compute, transition: Transition) -> None:
    """The answer that rests on the columns of before is the one that the whole problem gives."""
    anew = place(strategy, task.problem, everything=task.everything)
    assert anew.columns.consumers == transition.columns.consumers
    for name in ("member", "thread"):
        assert np.array_equal(getattr(anew, name), getattr(transition, name)), name
    assert anew.stops == transition.stops
    assert anew.starts == transition.starts
