"""Long requests leave others their turn."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import gevent
import gevent.event
import pytest

from tests.unit.gateway.model_session import ModelSession
from tests.unit.gateway.test_group_requests import answered
from tests.unit.gateway.wire import ANYBODY, Wire, describe_all
from zkrebalancer.gateway import translation
from zkrebalancer.gateway.group_requests import SLICES, GroupRequests
from zkrebalancer.gateway.groups import Groups
from zkrebalancer.gateway.lanes import OffsetStore
from zkrebalancer.gateway.links import KEYS
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.room import BYTES_PER_TURN, Arrived, Room
from zkrebalancer.gateway.turns import ITEMS_PER_TURN, LONG_NAME, in_turns
from zkrebalancer.group_protocol.answers import (
    ConsumerGroupDescribeAnswer,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribeGroupsAnswer,
    LeaveGroupAnswer,
    LeaveGroupMember,
    OffsetCheckAnswer,
)
from zkrebalancer.group_protocol.effects import TopicsRead
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.requests import DescribeGroupsRequest, SyncGroupRequest
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.group_protocol.topics import TOPICS_PER_TURN, Topic
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header
from zkrebalancer.kafka_protocol.readers import ELEMENTS_PER_TURN

MANY = 5 * ITEMS_PER_TURN


class Other:
    """Something else that the gateway has to do all the time, such as to renew its lease."""

    def __init__(self) -> None:
        self.turns = 0
        self._work = gevent.spawn(self._run)
        gevent.sleep(0)

    def _run(self) -> None:
        while True:
            self.turns += 1
            gevent.sleep(0)

    def stop(self) -> int:
        self._work.kill()
        return self.turns


def test_others_run_between_items() -> None:
    """In `in_turns`, do not pause."""
    other = Other()
    assert list(in_turns(range(MANY))) == [*range(MANY)]
    assert other.stop() >= 5


def test_others_run_while_a_large_request_is_read_and_while_its_answer_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `GroupRequests.answer`, decode or encode without pauses: 100,000 partitions take a tenth of a second each."""
    partitions = [{"partition_index": number, "committed_offset": 1} for number in range(MANY)]
    pauses: list[int] = []
    monkeypatch.setattr("zkrebalancer.gateway.group_requests.let_others_run", lambda: pauses.append(1))
    offsets = {"topics": [{"name": "t", "partitions": partitions}]}
    answered("OffsetCommit", offsets, OffsetCheckAnswer(ErrorCode.NONE), is_elsewhere=False)
    assert len(pauses) == 2 * MANY // ELEMENTS_PER_TURN


def test_others_run_while_a_client_asks_for_many_coordinators(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Connection._find_coordinator`, or for rights in `_ask`, read or write without pauses."""
    pauses: list[int] = []
    monkeypatch.setattr("zkrebalancer.gateway.connection.let_others_run", lambda: pauses.append(1))
    many = [f"g{number}" for number in range(2 * ELEMENTS_PER_TURN)]
    wire = Wire(describe_all, with_tls=False, asks_for_rights=True)
    try:
        wire.send(KEYS["FindCoordinator"], 4, codec.encode("FindCoordinatorRequest", 4, {"coordinator_keys": many}))
        assert len(codec.decode("FindCoordinatorResponse", 4, wire.received()[5:])["coordinators"]) == len(many)
    finally:
        wire.close()
    assert len(pauses) == 4 * 2, "of the request, the question for rights, and both answers"


@pytest.mark.parametrize(
    ("name", "asked", "answer"),
    [
        ("DescribeGroups", "groups", lambda name: DescribedGroup(ErrorCode.NONE, name, "Stable")),
        ("ConsumerGroupDescribe", "group_ids", lambda name: DescribedConsumerGroup(ErrorCode.NONE, name)),
        ("LeaveGroup", "members", lambda one: LeaveGroupMember(one.member_id, None, ErrorCode.NONE)),
    ],
)
def test_others_run_while_many_are_described_or_leave(
    monkeypatch: pytest.MonkeyPatch, name: str, asked: str, answer: Callable[[Any], Any]
) -> None:
    """In `GroupRequests._by_machine`, ask for all in one step: 100,000 take a second, and the lease waits."""
    steps: list[int | str] = []
    kinds = {"groups": DescribeGroupsAnswer, "group_ids": ConsumerGroupDescribeAnswer}

    def receive(request: Any, _version: int, _client: object, when_answered: Any) -> None:
        found = getattr(request, asked)
        steps.append(len(found))
        answers = tuple(map(answer, found))
        when_answered(kinds[asked](answers) if asked in kinds else LeaveGroupAnswer(ErrorCode.NONE, answers))

    monkeypatch.setattr("zkrebalancer.gateway.group_requests.let_others_run", lambda: steps.append("others"))
    at_once = SLICES[name][2]
    names = [f"n{number}" for number in range(2 * at_once + 1)]
    version = {"LeaveGroup": 5}.get(name, 0)
    given = [{"member_id": one} for one in names] if asked == "members" else [*names, names[0]]
    content = codec.encode(f"{name}Request", version, {asked: given})
    one = GroupRequests(cast("Groups", SimpleNamespace(receive=receive)), cast("OffsetStore", None), Metrics(), Room())
    found = one.answer(Arrived(Header(KEYS[name], version, 1, "c"), content), ANYBODY)
    where, key = SLICES[name][1], "member_id" if asked == "members" else "group_id"
    assert [entry[key] for entry in codec.decode(f"{name}Response", version, found)[where]] == names
    between = ["others"] * (len(given) // ELEMENTS_PER_TURN)  # while it is read or written
    assert steps == [*between, at_once, "others", at_once, "others", 1, *between]


def test_others_run_while_a_new_expression_is_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `GroupRequests._ask_machine`, let the machine do it in its step, or in `Groups.match`, do not pause."""
    pauses = list[int]()
    monkeypatch.setattr("zkrebalancer.gateway.groups.let_others_run", lambda: pauses.append(1))
    groups = Groups(ModelSession(), GroupProtocolSettings(), Metrics(), lambda: None, lambda: None)
    groups._is_placed = True
    groups.step(TopicsRead({f"t{number}": Topic(UUID(int=number + 1), 1) for number in range(5 * TOPICS_PER_TURN)}))
    offsets = SimpleNamespace(may_be_elsewhere=lambda _group: False)
    one = GroupRequests(groups, cast("OffsetStore", offsets), Metrics(), Room())
    for expression in ("t1.*", "t1.*", "("):
        fields = {"group_id": "g", "member_id": "m", "rebalance_timeout_ms": 1, "subscribed_topic_regex": expression}
        content = codec.encode("ConsumerGroupHeartbeatRequest", 1, {**fields, "topic_partitions": []})
        one.answer(Arrived(Header(KEYS["ConsumerGroupHeartbeat"], 1, 1, "c"), content), ANYBODY)
    assert len(pauses) == 5
    assert not groups._machine.needs_match("t1.*")


def test_a_request_waits_for_its_expression_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Groups.match`, wait without a limit: its client has gone meanwhile, and a late join counts for the next one.

    In `Machine.needs_match`, forget `is_known`: what is matched with no topics is matched again in one step.
    """
    monkeypatch.setattr("zkrebalancer.gateway.groups.HOLD_S", 0.01)
    monkeypatch.setattr("zkrebalancer.gateway.groups.MAX_MATCHING", 2)
    go_on = gevent.event.Event()
    monkeypatch.setattr("zkrebalancer.gateway.groups.let_others_run", go_on.wait)
    groups = Groups(ModelSession(), GroupProtocolSettings(), Metrics(), lambda: None, lambda: None)
    assert groups.match("t1.*")
    groups.step(TopicsRead({f"t{number}": Topic(UUID(int=number + 1), 1) for number in range(TOPICS_PER_TURN)}))
    assert [groups.match(one) for one in ("t1.*", "t2.*", "t3.*", "t1.*")] == [False] * 4
    go_on.set()
    gevent.wait(list(groups._matching.values()))
    assert [groups._machine.needs_match(one) for one in ("t1.*", "t2.*", "t3.*")] == [False, False, True]
    assert groups.match("t3.*")


def test_an_error_of_the_group_ends_a_long_leave() -> None:
    """In `GroupRequests._ask_in_slices`, go on: the answer would lack the error, or name some members only."""
    answers = iter([LeaveGroupAnswer(ErrorCode.NONE), LeaveGroupAnswer(ErrorCode.NOT_COORDINATOR)])
    members = [{"member_id": str(number)} for number in range(3 * SLICES["LeaveGroup"][2])]

    def receive(_request: object, _version: int, _client: object, when_answered: Any) -> None:
        when_answered(next(answers))

    one = GroupRequests(cast("Groups", SimpleNamespace(receive=receive)), cast("OffsetStore", None), Metrics(), Room())
    content = codec.encode("LeaveGroupRequest", 5, {"members": members})
    found = one.answer(Arrived(Header(KEYS["LeaveGroup"], 5, 1, "c"), content), ANYBODY)
    assert codec.decode("LeaveGroupResponse", 5, found)["error_code"] == ErrorCode.NOT_COORDINATOR


def test_others_run_while_a_long_request_or_answer_is_translated() -> None:
    """In `translation._maker` or `fields_of`, do not pause."""
    many = [{"member_id": str(number), "assignment": b""} for number in range(MANY)]
    other = Other()
    request = translation.build(
        SyncGroupRequest, {"group_id": "g", "generation_id": 1, "member_id": "0", "assignments": many}
    )
    between = other.turns
    assert between >= 5
    assert len(translation.fields_of(request)["assignments"]) == MANY
    assert other.stop() >= between + 5


def test_others_run_before_a_long_name_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_begin_deletion`, `_begin_fetch` or `_look_for_offsets`, note no name: a request may have 500 of 32 KiB.

    Each of these takes as long as a thousand others.
    """
    pauses: list[int] = []
    monkeypatch.setattr("zkrebalancer.gateway.turns.let_others_run", lambda: pauses.append(1))

    def receive(request: Any, _version: int, _client: object, when_answered: Any) -> None:
        if isinstance(request, DescribeGroupsRequest):
            dead = (DescribedGroup(ErrorCode.NONE, name, "Dead") for name in request.groups)
            when_answered(DescribeGroupsAnswer(tuple(dead)))
        else:
            when_answered(OffsetCheckAnswer(ErrorCode.NOT_COORDINATOR))

    def send(_group: str, _name: str, _fields: object, when_answered: Any) -> None:
        when_answered(ErrorCode.NOT_COORDINATOR)

    play, store = SimpleNamespace(receive=receive), SimpleNamespace(send=send)
    one = GroupRequests(cast("Groups", play), cast("OffsetStore", store), Metrics(), Room())
    names = ["n" * LONG_NAME, *(f"{number}" + "n" * LONG_NAME for number in range(3))]
    fetched = [{"group_id": name, "topics": None} for name in names]
    for name, version, fields in (
        ("DeleteGroups", 2, {"groups_names": names}),
        ("OffsetFetch", 8, {"groups": fetched}),
        ("DescribeGroups", 5, {"groups": names}),
    ):
        content = codec.encode(f"{name}Request", version, fields)
        one.answer(Arrived(Header(KEYS[name], version, 1, "c"), content), ANYBODY)
        assert len(pauses) == 3, name
        pauses.clear()


def test_others_run_between_answers_that_have_few_elements_each() -> None:
    """In `Room.decode_answer`, pause only within one: those of all members took seconds, and the lease ended."""
    described = [{"group_id": f"group-{number}", "error_code": 0} for number in range(ELEMENTS_PER_TURN // 2)]
    content = codec.encode("DescribeGroupsResponse", 5, {"groups": described})
    one, between = Room(), list[bool]()

    def pause() -> None:
        between.append(one._decoding.locked())  # or the next one would not wait for it

    count = 10 * BYTES_PER_TURN // len(content)
    for _ in range(count):
        assert len(one.decode_answer("DescribeGroups", 5, content, pause)["groups"]) == len(described)
    assert between.count(True) == len(between)
    assert 5 <= len(between) < 10
