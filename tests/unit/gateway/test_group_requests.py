"""Members of a group that has others at the brokers are refused, each with the error that makes its client let go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import gevent
import pytest

from tests.support.deadlines import WITHIN_S
from tests.unit.gateway.model_session import ModelSession
from tests.unit.gateway.wire import ANYBODY
from zkrebalancer.gateway.dialing import Dialer
from zkrebalancer.gateway.group_requests import LONGEST_HOLD_S, OFFSETS_SLICE, GroupRequests
from zkrebalancer.gateway.groups import Groups
from zkrebalancer.gateway.lanes import OffsetStore
from zkrebalancer.gateway.links import KEYS, Links
from zkrebalancer.gateway.membership import Membership
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.offset_answers import refused_topics
from zkrebalancer.gateway.offsets import UpstreamOffsets
from zkrebalancer.gateway.room import Arrived, Room
from zkrebalancer.gateway.security import Upstream
from zkrebalancer.group_protocol.answers import (
    Answer,
    ConsumerGroupHeartbeatAnswer,
    DeletedGroup,
    DeleteGroupsAnswer,
    DescribedGroup,
    DescribeGroupsAnswer,
    HeartbeatAnswer,
    JoinGroupAnswer,
    LeaveGroupAnswer,
    ListedGroup,
    ListGroupsAnswer,
    OffsetCheckAnswer,
    OffsetDeleteAnswer,
)
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header

SERVED_SINCE_US = 10
OURS: dict[str, Answer] = {
    "JoinGroup": JoinGroupAnswer(ErrorCode.NONE, "m"),
    "Heartbeat": HeartbeatAnswer(ErrorCode.NONE),
    "LeaveGroup": LeaveGroupAnswer(ErrorCode.NONE),
    "ConsumerGroupHeartbeat": ConsumerGroupHeartbeatAnswer(ErrorCode.NONE),
}


def answered(
    name: str,
    fields: dict[str, Any],
    decision: Answer,
    *,
    is_elsewhere: bool,
    since_us: int = SERVED_SINCE_US,
    does_hang: bool = False,
) -> dict[str, Any]:
    """Return the answer to a request about which the machine decides like this; `does_hang`: the brokers."""

    def receive(_request: object, _version: int, _client: object, when_answered: Any) -> None:
        when_answered(decision)

    def send(_group: str, _name: str, fields: Any, when_answered: Any) -> None:
        """Store nothing if the group has members at the brokers, as they do."""
        error = ErrorCode.UNKNOWN_MEMBER_ID if is_elsewhere else ErrorCode.NONE
        if not does_hang:
            when_answered({"topics": refused_topics(fields["topics"], error)})

    def has_taken_over_since(since_us: int, _group: str) -> bool:
        return since_us < SERVED_SINCE_US

    play = SimpleNamespace(
        receive=receive, is_settled=True, has_taken_over_since=has_taken_over_since, holds=lambda _group: False
    )
    groups = cast("Groups", play)
    store = SimpleNamespace(
        may_be_elsewhere=lambda _group: is_elsewhere, was_elsewhere=lambda _group: is_elsewhere, send=send
    )
    version = {"JoinGroup": 5, "OffsetCommit": 8}.get(name, 1)
    asked = GroupRequests(groups, cast("OffsetStore", store), Metrics(), Room())
    header = Header(KEYS[name], version, 1, "c")
    content = codec.encode(f"{name}Request", version, {"group_id": "g", **fields})
    answer = asked.answer(Arrived(header, content), replace(ANYBODY, since_us=since_us))
    return codec.decode(f"{name}Response", version, answer)


def error_of(name: str, fields: dict[str, Any], decision: Answer | None = None, *, is_elsewhere: bool) -> ErrorCode:
    return ErrorCode(answered(name, fields, decision or OURS[name], is_elsewhere=is_elsewhere)["error_code"])


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("JoinGroup", {"member_id": ""}, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("JoinGroup", {"member_id": "m"}, ErrorCode.NONE),  # refused, a cooperative client would read on
        ("Heartbeat", {"member_id": "m"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("ConsumerGroupHeartbeat", {"member_id": "m", "member_epoch": 0}, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("ConsumerGroupHeartbeat", {"member_id": "m", "member_epoch": 3}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("ConsumerGroupHeartbeat", {"member_id": "m", "member_epoch": -1}, ErrorCode.NONE),
        ("LeaveGroup", {"member_id": "m"}, ErrorCode.NONE),
    ],
)
def test_who_is_refused_while_the_group_has_members_at_the_brokers(
    name: str, fields: dict[str, Any], expected: ErrorCode
) -> None:
    assert error_of(name, fields, is_elsewhere=True) is expected
    assert error_of(name, fields, is_elsewhere=False) is ErrorCode.NONE


def test_a_client_that_needs_ids_which_topics_lack_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """In `_ask_machine`, do not complain: the gateway's log would not say why its clients end."""
    refused = ConsumerGroupHeartbeatAnswer(ErrorCode.UNSUPPORTED_VERSION, "Topic t has no id.")
    fields = {"member_id": "m", "member_epoch": 0}
    assert error_of("ConsumerGroupHeartbeat", fields, refused, is_elsewhere=False) is ErrorCode.UNSUPPORTED_VERSION
    assert caplog.messages == ["group g: a client of the KIP-848 protocol is refused: Topic t has no id."]


def test_a_member_that_has_to_join_again_hears_only_afterwards_that_it_is_unknown() -> None:
    """Otherwise its client would forget its id before it joins, and be refused as a newcomer with its partitions."""
    joining = HeartbeatAnswer(ErrorCode.REBALANCE_IN_PROGRESS)
    assert error_of("Heartbeat", {"member_id": "m"}, joining, is_elsewhere=True) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("is_classic_member", "expected"), [(True, ErrorCode.REBALANCE_IN_PROGRESS), (False, ErrorCode.UNKNOWN_MEMBER_ID)]
)
def test_a_classic_member_whose_commit_the_brokers_refuse_joins_again(
    expected: ErrorCode, *, is_classic_member: bool
) -> None:
    offsets = {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]}
    decision = OffsetCheckAnswer(ErrorCode.NONE, is_classic_member)
    for is_elsewhere, error in ((True, expected), (False, ErrorCode.NONE)):
        answer = answered("OffsetCommit", offsets, decision, is_elsewhere=is_elsewhere)
        assert answer["topics"][0]["partitions"][0]["error_code"] == error


@pytest.mark.parametrize(
    ("since_us", "expected"), [(SERVED_SINCE_US - 1, ErrorCode.NOT_COORDINATOR), (SERVED_SINCE_US, ErrorCode.NONE)]
)
def test_a_commit_that_may_be_older_than_the_group_is_served_is_refused(since_us: int, expected: ErrorCode) -> None:
    """In `GroupRequests.answer`, store it: the gateway that served the group meanwhile may have stored a later one."""
    offsets = {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]}
    answer = answered("OffsetCommit", offsets, OffsetCheckAnswer(ErrorCode.NONE), is_elsewhere=False, since_us=since_us)
    assert answer["topics"][0]["partitions"][0]["error_code"] == expected
    beat = answered("Heartbeat", {"member_id": "m"}, OURS["Heartbeat"], is_elsewhere=False, since_us=since_us)
    assert beat["error_code"] == ErrorCode.NONE


def test_a_commit_does_not_hold_up_heartbeats_while_brokers_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait behind it on their connection."""
    monkeypatch.setattr("zkrebalancer.gateway.group_requests.LONGEST_HOLD_S", 0.01)
    offsets = {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]}
    with gevent.Timeout(WITHIN_S):
        answer = answered(
            "OffsetCommit", offsets, OffsetCheckAnswer(ErrorCode.NONE), is_elsewhere=False, does_hang=True
        )
    assert answer["topics"][0]["partitions"][0]["error_code"] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("does_hang", [False, True])
def test_offsets_of_many_groups_are_fetched_at_once(monkeypatch: pytest.MonkeyPatch, *, does_hang: bool) -> None:
    """In `GroupRequests._fetch`, ask for one group after the other, or begin the time anew for each.

    If brokers are away, each group waits for seconds, and tools ask for thousands.
    """
    if does_hang:
        monkeypatch.setattr("zkrebalancer.gateway.group_requests.LONGEST_HOLD_S", 0.05)
    asked: list[str] = []
    waiting: list[Callable[[], None]] = []

    def receive(_request: object, _version: int, _client: object, when_answered: Any) -> None:
        when_answered(OffsetCheckAnswer(ErrorCode.NONE))

    def send(group: str, _name: str, _fields: object, when_answered: Any) -> None:
        found = {"error_code": 0, "topics": [{"name": group, "partitions": []}], "groups": []}
        asked.append(group)
        waiting.append(lambda: when_answered(found))

    play, store = SimpleNamespace(receive=receive), SimpleNamespace(send=send)
    one = GroupRequests(cast("Groups", play), cast("OffsetStore", store), Metrics(), Room())
    names = [f"g{number}" for number in range(2 * OFFSETS_SLICE)]
    content = codec.encode("OffsetFetchRequest", 8, {"groups": [{"group_id": name, "topics": None} for name in names]})
    header = Header(KEYS["OffsetFetch"], 8, 1, "c")
    answering = gevent.spawn(one.answer, Arrived(header, content), ANYBODY)
    gevent.sleep(0)
    assert asked == names[:OFFSETS_SLICE]
    while not does_hang and not answering.ready():
        for answer in [waiting.pop() for _ in range(len(waiting))]:  # the last one first
            answer()
        gevent.sleep(0)
    groups = codec.decode("OffsetFetchResponse", 8, answering.get(timeout=WITHIN_S))["groups"]
    assert [group["group_id"] for group in groups] == names
    if does_hang:
        assert asked == names[:OFFSETS_SLICE]
        assert {group["error_code"] for group in groups} == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    else:
        assert [group["topics"][0]["name"] for group in groups] == names


def deleted(
    topics: list[str], decision: OffsetDeleteAnswer, outcome: dict[str, Any] | ErrorCode
) -> tuple[ErrorCode, dict[tuple[str, int], int], list[str]]:
    """Return the error, that of each partition, and the topics that the store was asked to delete."""
    asked: list[str] = []

    def send(_group: str, _name: str, fields: Any, when_answered: Any) -> None:
        asked.extend(topic["name"] for topic in fields["topics"])
        when_answered(outcome)

    play = SimpleNamespace(
        receive=lambda _request, _version, _client, when_answered: when_answered(decision),
        is_settled=True,
        has_taken_over_since=lambda *_any: False,
    )
    one = GroupRequests(cast("Groups", play), cast("OffsetStore", SimpleNamespace(send=send)), Metrics(), Room())
    fields = {"group_id": "g", "topics": [{"name": name, "partitions": [{"partition_index": 1}]} for name in topics]}
    content = codec.encode("OffsetDeleteRequest", 0, fields)
    found = one.answer(Arrived(Header(KEYS["OffsetDelete"], 0, 1, "c"), content), ANYBODY)
    answer = codec.decode("OffsetDeleteResponse", 0, found)
    errors = {
        (t["name"], one["partition_index"]): one["error_code"] for t in answer["topics"] for one in t["partitions"]
    }
    return ErrorCode(answer["error_code"]), errors, asked


@pytest.mark.parametrize(
    "outcome", [ErrorCode.GROUP_ID_NOT_FOUND, {"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "topics": []}]
)
def test_offsets_of_a_group_that_has_none_are_deleted(outcome: dict[str, Any] | ErrorCode) -> None:
    """In `_delete_offsets`, pass on that the store has no such group: tools would say that it does not exist."""
    known = OffsetDeleteAnswer(ErrorCode.NONE, frozenset({"t"}))
    expected = {("t", 1): int(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC), ("u", 1): 0}
    error, errors, asked = deleted(["u"], known, outcome)
    assert (error, errors, asked) == (ErrorCode.NONE, {("u", 1): 0}, ["u"])
    error, errors, asked = deleted(["t"], known, outcome)
    assert (error, errors, asked) == (ErrorCode.NONE, {("t", 1): int(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)}, [])
    error, errors, asked = deleted(["t", "u"], known, outcome)
    assert (error, errors, asked) == (ErrorCode.NONE, expected, ["u"])
    unknown = OffsetDeleteAnswer(ErrorCode.GROUP_ID_NOT_FOUND)
    assert deleted(["u"], unknown, outcome)[0] is ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_that_could_not_be_deleted_are_not_called_deleted() -> None:
    """In `_delete_offsets`, take any error of the store for a group that it does not know."""
    known, error = OffsetDeleteAnswer(ErrorCode.NONE), ErrorCode.COORDINATOR_NOT_AVAILABLE
    for outcome in (error, {"error_code": error, "topics": []}):
        assert deleted(["u"], known, outcome) == (error, {}, ["u"])


def test_offsets_are_deleted_in_the_step_in_which_their_group_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_delete_groups`, wait for the deletions before: a group's next members would commit, and lose that."""
    monkeypatch.setattr("zkrebalancer.gateway.group_requests.OFFSETS_SLICE", 3)
    decisions: dict[str, Callable[[Answer], None]] = {}
    deletions: dict[str, Callable[[Any], None]] = {}

    def receive(request: Any, _version: int, _client: object, when_answered: Any) -> None:
        (name,) = request.groups_names
        decisions[name] = when_answered

    def decide(name: str, error: ErrorCode) -> None:
        decisions[name](DeleteGroupsAnswer((DeletedGroup(name, error),)))

    def send(group: str, _name: str, fields: Any, when_answered: Any) -> None:
        assert fields == {"groups_names": [group]}
        deletions[group] = when_answered

    store, play = SimpleNamespace(send=send), SimpleNamespace(receive=receive)
    one = GroupRequests(cast("Groups", play), cast("OffsetStore", store), Metrics(), Room())
    content = codec.encode("DeleteGroupsRequest", 1, {"groups_names": ["a", "b", "used", "a", "later"]})
    header = Header(KEYS["DeleteGroups"], 1, 1, "c")
    answering = gevent.spawn(one.answer, Arrived(header, content), ANYBODY)
    gevent.sleep(0)
    assert list(decisions) == ["a", "b", "used"]  # the others are decided about when it is their turn
    decide("b", ErrorCode.NONE)
    decide("used", ErrorCode.NON_EMPTY_GROUP)
    assert list(deletions) == ["b"]  # although nothing is known about the first
    decide("a", ErrorCode.GROUP_ID_NOT_FOUND)
    deletions["a"]({"results": [{"group_id": "a", "error_code": 0}]})
    deletions["b"]({"results": [{"group_id": "b", "error_code": int(ErrorCode.GROUP_ID_NOT_FOUND)}]})
    while "later" not in decisions:
        gevent.sleep(0.001)
    decide("later", ErrorCode.GROUP_ID_NOT_FOUND)
    deletions["later"](ErrorCode.COORDINATOR_NOT_AVAILABLE)
    results = codec.decode("DeleteGroupsResponse", 1, answering.get(timeout=WITHIN_S))["results"]
    assert [(result["group_id"], ErrorCode(result["error_code"])) for result in results] == [
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.NONE),
        ("used", ErrorCode.NON_EMPTY_GROUP),
        ("later", ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ]


OFFSETS = [{"name": "t", "partitions": []}]
NO_OFFSETS: dict[str, Any] = {"error_code": 0, "topics": [], "groups": []}


@pytest.mark.parametrize(
    ("outcome", "error", "state"),
    [
        (NO_OFFSETS, ErrorCode.GROUP_ID_NOT_FOUND, "Dead"),
        ({**NO_OFFSETS, "topics": OFFSETS}, ErrorCode.NONE, "Empty"),
        ({**NO_OFFSETS, "groups": [{"error_code": 0, "topics": OFFSETS}]}, ErrorCode.NONE, "Empty"),
        ({**NO_OFFSETS, "groups": [{"error_code": 69, "topics": []}]}, ErrorCode.GROUP_ID_NOT_FOUND, "Dead"),
        ({**NO_OFFSETS, "error_code": 15}, ErrorCode.COORDINATOR_NOT_AVAILABLE, ""),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR, ""),
        (None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ""),
    ],
)
def test_a_group_that_has_only_offsets_is_empty(
    monkeypatch: pytest.MonkeyPatch, outcome: dict[str, Any] | ErrorCode | None, error: ErrorCode, state: str
) -> None:
    """None: there is no answer; then nobody says that it is dead, either.

    In `_look_for_offsets`, ask on after the time is over: up to 100,000 groups at once, before the lease's renewal. Or
    give up earlier.
    """
    now_us = 0
    monkeypatch.setattr("zkrebalancer.gateway.group_requests.clock.steady_us", lambda: now_us)
    if outcome is None:
        monkeypatch.setattr("zkrebalancer.gateway.group_requests.LONGEST_HOLD_S", 0.01)
    names = [f"g{number}" for number in range(OFFSETS_SLICE + 1)]
    dead = (DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, name, "Dead", error_message="?") for name in names)
    used = DescribedGroup(ErrorCode.NONE, "used", "Dead", is_used=True)  # of KIP-848, with members
    decision = DescribeGroupsAnswer((*dead, used, DescribedGroup(ErrorCode.NONE, "s", "Stable")))
    asked: list[str] = []

    def send(group: str, name: str, _fields: Any, when_answered: Any) -> None:
        nonlocal now_us
        now_us += int(LONGEST_HOLD_S * 1e6) // len(names)
        asked.append(group)
        if outcome is not None:
            when_answered(outcome)

    def receive(request: Any, _version: int, _client: object, when_answered: Any) -> None:
        when_answered(DescribeGroupsAnswer(tuple(one for one in decision.groups if one.group_id in request.groups)))

    play = SimpleNamespace(receive=receive, is_settled=True)
    one = GroupRequests(cast("Groups", play), cast("OffsetStore", SimpleNamespace(send=send)), Metrics(), Room())
    content = codec.encode("DescribeGroupsRequest", 6, {"groups": [*names, "used", "s"]})
    found = one.answer(Arrived(Header(KEYS["DescribeGroups"], 6, 1, "c"), content), ANYBODY)
    groups = codec.decode("DescribeGroupsResponse", 6, found)["groups"]
    assert {(group["error_code"], group["group_state"]) for group in groups[:-2]} == {(int(error), state)}
    assert [group["group_state"] for group in groups[-2:]] == ["Dead", "Stable"]
    assert asked == (names[:OFFSETS_SLICE] if outcome is None else names)


class Counted(dict[str, Any]):
    """Fields that count how often they are compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = None


def test_topics_whose_offsets_are_deleted_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_delete_offsets`, look for each topic in a list: 100,000 take a minute, and the gateway loses its session."""
    decode = codec.decode

    def decoded(name: str, version: int, content: bytes, *limit: int, **more: Any) -> dict[str, Any]:
        fields = decode(name, version, content, *limit, **more)
        return {**fields, "topics": [Counted(topic) for topic in fields["topics"]]}

    monkeypatch.setattr("zkrebalancer.gateway.group_requests.codec.decode", decoded)
    known = OffsetDeleteAnswer(ErrorCode.NONE, frozenset({"t"}))
    assert deleted(["t", "u"] * 100, known, {"error_code": 0, "topics": []})[2] == ["u"] * 100
    assert Counted.compared == 0


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"joined": "Stable", "kept": "Empty"}),
        ({"states_filter": ["EMPTY"], "types_filter": ["Classic"]}, {"joined": "Stable", "kept": "Empty"}),
        ({"states_filter": ["Stable"]}, {"joined": "Stable"}),
        ({"types_filter": ["consumer"]}, {"joined": "Stable"}),
    ],
)
def test_a_group_with_only_offsets_is_listed_as_at_a_broker(asked: dict[str, Any], expected: dict[str, str]) -> None:
    """In `GroupRequests.answer`, list only the groups of the machine; it has filtered its own."""
    answer = ListGroupsAnswer(ErrorCode.NONE, (ListedGroup("joined", "consumer", "Stable", "classic"),))
    play = SimpleNamespace(
        receive=lambda _request, _version, _client, when_answered: when_answered(answer),
        fence=lambda group: None if group == "elsewhere" else "fence",
        is_settled=True,
        names={"joined"},
    )

    def without_members(is_served: Callable[[str], bool]) -> list[str]:
        return [group for group in ("kept", "joined", "elsewhere") if is_served(group)]

    store = SimpleNamespace(without_members=without_members)
    one = GroupRequests(cast("Groups", play), cast("OffsetStore", store), Metrics(), Room())
    content = codec.encode("ListGroupsRequest", 5, asked)
    found = codec.decode(
        "ListGroupsResponse",
        5,
        one.answer(Arrived(Header(KEYS["ListGroups"], 5, 1, "c"), content), ANYBODY),
    )
    assert {group["group_id"]: group["group_state"] for group in found["groups"]} == expected
    assert found["error_code"] == ErrorCode.NONE


@pytest.mark.parametrize("is_at_gateway", [False, True])
def test_groups_are_not_listed_before_they_are_known(*, is_at_gateway: bool) -> None:
    """In `GroupRequests.answer`, return an empty list: a client would believe that there are no groups."""
    session = ModelSession()
    Membership(session, "gw", 1).refresh()
    groups = Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None)
    offsets = UpstreamOffsets(Links([], Dialer(Upstream())), Metrics(), groups.fence)
    requests = GroupRequests(groups, offsets, Metrics(), Room())
    header, content = Header(KEYS["ListGroups"], 5, 1, "c"), codec.encode("ListGroupsRequest", 5, {})

    def error() -> int:
        answer = requests.answer(Arrived(header, content), replace(ANYBODY, is_at_gateway=is_at_gateway))
        return int(codec.decode("ListGroupsResponse", 5, answer)["error_code"])

    assert error() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    groups.serve(0, [0])
    assert error() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    gevent.sleep(0)
    assert error() == ErrorCode.NONE
    groups.lose_all()
    assert error() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
