"""The two tables of states: what they forbid, and what they leave open."""

from __future__ import annotations

from enum import Enum

import pytest

from zkrebalancer.protocol.command import Cause, StopFetcher
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.rebalance.states import (
    MEMBER_TRANSITIONS,
    TRANSITIONS,
    GroupState,
    InvalidTransitionError,
    MemberState,
)
from zkrebalancer.rebalance.story import Story
from zkrebalancer.rebalance.view import GroupView, Member, PendingCommand

NOTHING = OwnersRecord(0, None, {})


def member_of(view: GroupView, name: str = "c") -> Member:
    member = view.members[name] = Member(name, owners=NOTHING)
    view.refresh(name)
    return member


def test_an_illegal_transition_tells_its_story() -> None:
    story = Story("g")
    story.go(GroupState.QUEUED, 1, "group-created")
    with pytest.raises(InvalidTransitionError, match=r"(?s)loading -> queued: group-created.*queued -> moving: a bug"):
        story.go(GroupState.MOVING, 2, "a bug")


@pytest.mark.parametrize(("table", "states"), [(TRANSITIONS, GroupState), (MEMBER_TRANSITIONS, MemberState)])
def test_every_state_can_be_reached(table: dict[Enum, frozenset[Enum]], states: type[Enum]) -> None:
    assert set(table) == set(states)
    assert set().union(*table.values()) == set(states)


def test_a_group_can_leave_every_state_and_a_member_all_but_the_last() -> None:
    assert all(TRANSITIONS.values())
    assert [state for state, after in MEMBER_TRANSITIONS.items() if not after] == [MemberState.GONE]


def test_the_state_of_a_member_follows_from_what_was_read_and_sent() -> None:
    view = GroupView("g", {})
    member = member_of(view)
    states = [member.state]
    member.pending.append(PendingCommand(StopFetcher("id", 1, 1, Cause("c", "k"), None), None))
    view.refresh("c")
    states.append(member.state)
    member.unreadable_commands = True
    view.refresh("c")
    states.append(member.state)
    member.registered = False
    view.touch("c")
    states.append(member.state)
    assert states == [MemberState.READY, MemberState.ANSWERING, MemberState.UNREADABLE, MemberState.UNREGISTERED]


def test_an_eviction_goes_on_whatever_is_read_until_it_is_called_off() -> None:
    view = GroupView("g", {})
    member = member_of(view)
    member.go(MemberState.EVICTING)
    view.refresh("c")
    states = [member.state]
    member.call_eviction_off()
    assert [*states, member.state] == [MemberState.EVICTING, MemberState.READY]


def test_a_consumer_that_was_struck_off_is_no_member_again() -> None:
    view = GroupView("g", {})
    member = member_of(view)
    member.registered = False
    view.touch("c")
    member.registered = True
    with pytest.raises(InvalidTransitionError, match="member c: unregistered -> ready"):
        view.touch("c")
