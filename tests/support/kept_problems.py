"""Compares the problem that a group keeps between rebalances with one built from scratch."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

from zkrebalancer.assignment.columns import Strategy
from zkrebalancer.assignment.transition import Transition, place
from zkrebalancer.rebalance.effects import Compute
from zkrebalancer.rebalance.group import Group
from zkrebalancer.rebalance.planning import Planning


def assert_kept_as_made_anew(groups: Mapping[str, Group], task: Compute) -> None:
    """Assert that the kept problem equals one built from every consumer."""
    if task.group not in groups:
        return  # the same step deleted the group, or the coordinator resigned
    group = groups[task.group]
    if group.view.touched or group.planning._is_all_touched:
        return  # a later event of the same step has changed the group
    anew = Planning(group.view, group._leadership.subscriptions, lambda _text: None)
    anew._resetting = group.planning._resetting  # as at the start of planning
    anew._drain.settings = group.planning._drain.settings
    for consumer in group.view.members:
        anew._look_at(consumer)
    anew._look_at_away(-sys.maxsize)
    if anew._consumers_of or group.view.statics:
        anew._look_at_static_members()
    for consumer, member in anew._drain.settled():
        anew._replace(consumer, member)
    members = anew._members | anew._absent
    assert task.problem.members == members, f"group {group.name}: the kept problem is outdated"
    names = {topic for member in members.values() for topic in member.threads}
    names |= {topic for member in members.values() for topic, _partition in member.owned}
    assert task.problem.topics.keys() == names & group.view.topics.keys()
    assert group.planning._outside == anew._outside
    assert task.keeping == anew.keeping
    assert group.planning._odd_holders == anew._odd_holders


def assert_placed_as_anew(strategy: Strategy, task: Compute, transition: Transition) -> None:
    """Assert that placing with kept columns gives the same transition as placing from scratch."""
    anew = place(strategy, task.problem, everything=task.everything, keeping=task.keeping)
    assert anew.columns.consumers == transition.columns.consumers
    for name in ("member", "thread"):
        assert np.array_equal(getattr(anew, name), getattr(transition, name)), name
    assert anew.stops == transition.stops
    assert anew.starts == transition.starts
