"""The text about a member that has not answered yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zkrebalancer.observe.obstacles import find_obstacles
from zkrebalancer.protocol.command import Cause, Command, StartFetcher, StopFetcher
from zkrebalancer.protocol.obstacles import REFUSED, PublishedObstacle
from zkrebalancer.protocol.ownership import EvictionRecord, OwnersRecord
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.view import GroupView, Member, PendingCommand

CAUSE = Cause("id", "member-joined")
STOP, START = StopFetcher("id", 1, 2, CAUSE, None), StartFetcher("id", 1, 2, CAUSE, {("t", 0): 0})


@pytest.mark.parametrize(
    ("command", "until_ms", "what"), [(STOP, 91_000, "a stop,"), (START, 31_000, "a start,")], ids=["stop", "start"]
)
def test_only_a_stop_has_the_time_that_its_member_asked_for(command: Command, until_ms: int, what: str) -> None:
    """In `obstacles._of_member`, take the limit of stops for starts."""
    registration = Registration("static", {"t": 1}, "0", "a", "h", 6_000, stop_timeout_ms=90_000)
    member = Member("a-1", registration, OwnersRecord(1, None, {}), pending=[PendingCommand(command, "node", 1_000)])
    view = replace(GroupView("g", {}, GroupSettings(rebalance_timeout_ms=30_000)), members={"a-1": member})
    (found,) = find_obstacles(view, is_led=True, published=[], unpublished=0)
    assert (found.kind, found.member, found.until_ms) == ("waiting", "a-1", until_ms)
    assert what in found.text


def test_a_group_that_is_frozen_and_paused() -> None:
    view = GroupView("g", {}, GroupSettings(frozen=True, starts_paused=True, paused_by="reset-1"))
    found = find_obstacles(view, is_led=True, published=[], unpublished=0)
    assert [each.kind for each in found] == ["paused", "frozen"]
    assert "by operation reset-1;" in found[0].text


def test_what_a_program_reads_of_an_obstacle() -> None:
    """Its member, path, right and end: what the text says, without parsing it."""
    unreadable = Member("a-1", None, None, given=None)
    record = EvictionRecord(1, {}, evicted_at_ms=1_000, lease_ms=2_000)
    view = replace(
        GroupView("g", {}, GroupSettings()), members={"a-1": unreadable}, evicted={"b-1": record, "c-1": None}
    )
    refused = PublishedObstacle("g", REFUSED, "no permission", "/consumers/groups/g", "READ")
    found = find_obstacles(view, is_led=True, published=[refused], unpublished=0)
    assert [(each.kind, each.member, each.path, each.right, each.until_ms) for each in found] == [
        (REFUSED, None, "/consumers/groups/g", "READ", None),
        ("unreadable", "a-1", None, None, None),
        ("unreadable", "a-1", None, None, None),
        ("lease", "b-1", None, None, 3_000),
        ("lease", "c-1", None, None, None),
    ]
