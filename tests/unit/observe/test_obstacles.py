"""The text about a member that has not answered yet."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from zkrebalancer.observe.obstacles import MAX_SHOWN, find_obstacles
from zkrebalancer.observe.rebalances import RebalanceLog
from zkrebalancer.protocol.command import Cause, Command, StartFetcher, StopFetcher
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import MAX_EPOCH_MS
from zkrebalancer.protocol.obstacles import REFUSED, PublishedObstacle, decode
from zkrebalancer.protocol.ownership import EvictionRecord, OwnersRecord, StaticMember
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


def test_the_end_of_a_freeze_and_what_is_drained_are_named() -> None:
    """In `obstacles._of_settings`, forget the end, or that a freeze may have none; name the kind otherwise."""
    base = GroupSettings(drained_members=("a",), drained_hosts=("h",))
    frozen = replace(base, frozen=True, frozen_until_ms=1_763_000_000_000)
    found = find_obstacles(GroupView("g", {}, frozen), is_led=True, published=[], unpublished=0)
    assert [(each.kind, each.until_ms) for each in found] == [
        ("frozen", 1_763_000_000_000),
        ("drained", None),
        ("drained", None),
    ]
    assert found[0].text.startswith("frozen until 20")
    assert [each.text.split(":")[0] for each in found[1:]] == ["member a is drained", "host h is drained"]
    view = GroupView("g", {}, GroupSettings(frozen=True))
    (endless,) = find_obstacles(view, is_led=True, published=[], unpublished=0)
    assert (endless.until_ms, endless.text.split(":")[0]) == (None, "frozen")


def test_what_a_leader_publishes_in_a_wrong_form_is_refused_by_its_name() -> None:
    content = b'{"version": 1, "epoch": 1, "obstacles": [{"kind": "k", "reason": "r", "generation": "x"}]}'
    with pytest.raises(NodeContentError, match=r"^obstacles: generation"):
        decode(content)


def test_a_plan_whose_request_was_not_seen_has_an_unknown_cause() -> None:
    """In `RebalanceLog.planned`, give no cause."""
    log = RebalanceLog()
    counts = {"member_count": 1, "partition_count": 2, "moved_count": 0}
    log.planned({"group": "g", "generation": 1, "cause_id": "c", "mode": "eager", "mono_us": 1, **counts})
    assert [each.cause for each in log.rebalances] == ["unknown"]


def test_a_member_that_claims_too_much() -> None:
    member = Member("a-1", Registration("static", {"t": 1}, "0", "a", "h", 6_000), OwnersRecord(1, None, {}))
    member.false_claims = frozenset({("t", 0), ("t", 1)})
    view = replace(GroupView("g", {}, GroupSettings()), members={"a-1": member})
    (found,) = find_obstacles(view, is_led=True, published=[], unpublished=0)
    assert (found.kind, found.member) == ("false-claim", "a-1")


def test_what_waits_for_a_static_member_that_is_away_waits_until_when() -> None:
    """In `obstacles._of_absent`, yield nothing; or those that are back, or alive, or have nothing that waits."""
    had = frozenset({("t", 0), ("t", 1)})
    records = {
        "away": StaticMember("a-1", had, 5_000),
        "back": StaticMember("b-1", had, 5_000),
        "drained": StaticMember("d-1", had, 5_000),
        "gateway": StaticMember("g-1", had, 10**18, grace_ms=9_000),
        "here": StaticMember("h-1", had, None),
        "idle": StaticMember("i-1", frozenset({("t", 1)}), 5_000),
    }
    known = Registration("static", {"t": 1}, "0", "b", "h", 6_000, instance_id="back")
    view = replace(
        GroupView("g", {}, GroupSettings(drained_members=("drained", "gateway"))),
        members={"b-2": Member("b-2", known, OwnersRecord(1, None, {("t", 1): 0}))},
        statics={instance: (record, 0) for instance, record in records.items()},
    )
    view.refresh("b-2")
    found = find_obstacles(view, is_led=True, published=[], unpublished=0)
    away, gateway = [each for each in found if each.kind == "static"]
    text = "static member away is away: 1 of its partitions wait for it, until about 1970-01-01T00:00:05+00:00"
    assert (away.member, away.until_ms, away.text) == ("a-1", 5_000, f"{text}; `groups drain g away` ends that")
    assert (gateway.member, gateway.until_ms, "drain" in gateway.text) == ("g-1", MAX_EPOCH_MS, False)


def test_the_drained_host_of_a_static_member_that_is_away_is_known_to_its_leader_alone() -> None:
    """In `obstacles._of_absent`, ask for no host, so that a page advises what is done already; or have no doubt."""
    record = StaticMember("a-1", frozenset({("t", 0)}), 5_000)
    view = replace(GroupView("g", {}, GroupSettings(drained_hosts=("h",))), statics={"i": (record, 0)})
    known = Registration("static", {"t": 1}, "0", "a", "h", 6_000, instance_id="i")

    def ends() -> list[str]:
        found = find_obstacles(view, is_led=True, published=[], unpublished=0)
        return [each.text.partition("+00:00")[2] for each in found if each.kind == "static"]

    advice = "; `groups drain g i` ends that"
    assert ends() == [f", unless the leader saw it leave a drained host{advice}"]
    view.away["i"] = Member("a-1", known)
    assert ends() == []
    view.away["i"] = Member("a-1", known._replace(host="another"))
    assert ends() == [advice]


@pytest.mark.parametrize(("count", "more"), [(MAX_SHOWN, []), (MAX_SHOWN + 2, [2])])
def test_so_many_of_a_kind_are_shown_and_the_others_are_counted(count: int, more: list[int]) -> None:
    view = replace(GroupView("g", {}, GroupSettings()), evicted={f"c-{number}": None for number in range(count)})
    found = find_obstacles(view, is_led=True, published=[], unpublished=0)
    assert [each.more for each in found if each.more] == more
    assert len(found) == MAX_SHOWN + len(more)


def test_times_are_of_utc_wherever_the_operator_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    record = EvictionRecord(1, {}, evicted_at_ms=0, lease_ms=2_000)
    (found,) = find_obstacles(
        replace(GroupView("g", {}, GroupSettings()), evicted={"b-1": record}), is_led=True, published=[], unpublished=0
    )
    monkeypatch.undo()
    time.tzset()
    assert found.text.endswith("until about 1970-01-01T00:00:02+00:00")
