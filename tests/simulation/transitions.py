"""Counts transitions of groups and members (`rebalance/states.py`) and of agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from consumer_agent.membership import state_machine
from consumer_agent.membership.state_machine import StateMachine
from zkrebalancer.rebalance import states
from zkrebalancer.rebalance.states import GroupState, MemberState
from zkrebalancer.rebalance.story import Story
from zkrebalancer.rebalance.view import Member


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count every transition in the block."""
    taken: Counter[str] = Counter()
    go, go_member, move = Story.go, Member.go, StateMachine._move

    def count_group(story: Story, state: GroupState, at_us: int, reason: str) -> None:
        taken[f"group {story.state.value} -> {state.value}"] += 1
        go(story, state, at_us, reason)

    def count_member(member: Member, state: MemberState) -> None:
        if state is not member.state:
            taken[f"member {member.state.value} -> {state.value}"] += 1
        go_member(member, state)

    def count_agent(agent: StateMachine, state: state_machine.State) -> None:
        taken[f"agent {agent.state.value} -> {state.value}"] += 1
        move(agent, state)

    with (
        mock.patch.object(Story, "go", count_group),
        mock.patch.object(Member, "go", count_member),
        mock.patch.object(StateMachine, "_move", count_agent),
    ):
        yield taken


def legal() -> list[str]:
    """Return every transition that the tables allow."""
    group = [f"group {a.value} -> {b.value}" for a, after in states.TRANSITIONS.items() for b in after]
    member = [f"member {a.value} -> {b.value}" for a, after in states.MEMBER_TRANSITIONS.items() for b in after]
    agent = [f"agent {a.value} -> {b.value}" for a, after in state_machine.TRANSITIONS.items() for b in after]
    return sorted(group) + sorted(member) + sorted(agent)
