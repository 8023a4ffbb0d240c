"""Requests about offsets keep their order; those that had to wait are sent only while their group is served here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import gevent
import pytest
from gevent.event import AsyncResult, Event

from tests.support.deadlines import WITHIN_S
from zkrebalancer.gateway.dialing import LinkError
from zkrebalancer.gateway.lanes import Lanes
from zkrebalancer.gateway.links import Links
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.offsets import FRESH_US, UpstreamOffsets
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.protocol.calls import Check
from zkrebalancer.protocol.complaints import MAX_BURST

WAIT_S = WITHIN_S


class Brokers:
    """Brokers that are away until `are_back`; notes what reaches them."""

    def __init__(self) -> None:
        self.are_back = False
        self.brokers = {1: ("h", 1)}
        self.reached: list[str] = []
        self.asked: list[dict[str, Any]] = []  # the fields of what reached them

    def ask_any(self, name: str, fields: dict[str, Any], highest: int | None = None) -> Any:  # noqa: ARG002
        if not self.are_back:
            raise LinkError("away")
        return self

    def fields(self) -> dict[str, Any]:
        return {"coordinators": [], "error_code": 0, "host": "h", "port": 1}

    def to(self, _address: object, _number: int | None = None) -> Any:
        return self

    def ask(self, name: str, fields: dict[str, Any], _highest: object, _timeout_s: float) -> Brokers:
        self.reached.append(name)
        self.asked.append(fields)
        return self


def fence(_group: str) -> Check:
    return Check("/bucket", 1)


def commit_while_away(afterwards: Check | None) -> tuple[Brokers, object]:
    """Commit while the brokers are away and the group has the fence above; then it has another one, or none."""
    brokers, fences = Brokers(), [fence("g"), afterwards]
    offsets = UpstreamOffsets(cast("Links", brokers), Metrics(), lambda _group: fences[0])
    answered: AsyncResult[object] = AsyncResult()
    offsets.send("g", "OffsetCommit", {}, answered.set)
    gevent.sleep(0.01)
    fences[0], brokers.are_back = afterwards, True
    return brokers, answered.get(timeout=WAIT_S)


def test_a_commit_that_waited_for_the_brokers_is_sent() -> None:
    brokers, answer = commit_while_away(fence("g"))
    assert brokers.reached == ["OffsetCommit"]
    assert isinstance(answer, dict)


@pytest.mark.parametrize("afterwards", [None, Check("/bucket", 3)])
def test_a_commit_that_waited_until_another_gateway_served_the_group_is_refused(afterwards: Check | None) -> None:
    """Even if the group has come back: the other gateway may have stored a later commit."""
    brokers, answer = commit_while_away(afterwards)
    assert brokers.reached == []
    assert answer is ErrorCode.NOT_COORDINATOR


def test_the_brokers_hear_of_no_member() -> None:
    """In `UpstreamOffsets.send`, send the member: the brokers do not know it, and refuse its commits."""
    brokers = Brokers()
    brokers.are_back = True
    offsets = UpstreamOffsets(cast("Links", brokers), Metrics(), fence)
    for name in ("OffsetCommit", "TxnOffsetCommit"):
        answered: AsyncResult[object] = AsyncResult()
        member = {"generation_id": 3, "generation_id_or_member_epoch": 3, "member_id": "m", "group_instance_id": "i"}
        offsets.send("g", name, member, answered.set)
        answered.get(timeout=WAIT_S)
    nobody = {"generation_id": -1, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    assert brokers.asked == [nobody, nobody]


def test_requests_of_a_group_reach_the_brokers_in_their_order() -> None:
    brokers = Brokers()
    offsets = UpstreamOffsets(cast("Links", brokers), Metrics(), fence)
    answered: list[AsyncResult[object]] = [AsyncResult() for _ in range(3)]
    for name, one in zip(("OffsetCommit", "OffsetFetch", "OffsetDelete"), answered, strict=True):
        offsets.send("g", name, {}, one.set)
    brokers.are_back = True
    for one in answered:
        one.get(timeout=WAIT_S)
    assert brokers.reached == ["OffsetCommit", "OffsetFetch", "OffsetDelete"]


def test_what_is_remembered_of_coordinators_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `UpstreamOffsets._look_up` or `_show`, count names only: 100,000 of 32 KiB are 3 GB."""
    monkeypatch.setattr("zkrebalancer.gateway.offsets.MAX_KNOWN_NAMES", 10)
    brokers = Brokers()
    brokers.are_back = True
    offsets = UpstreamOffsets(cast("Links", brokers), Metrics(), fence)
    for name in ("aaaa", "bbbb", "aaaa", "cccc", "n" * 2_000):
        assert offsets._find(name, 0) == ErrorCode.NONE
        assert sum(map(len, offsets._looked_up_us)) <= max(10, len(name))
    offsets._show("n" * 2_000)
    assert [len(line) for line in offsets._shown_us] == [1_000]


def test_joins_of_any_number_of_groups_while_brokers_are_away_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `UpstreamOffsets._show`, log a line for each group, and remember each."""
    monkeypatch.setattr("zkrebalancer.gateway.offsets.clock.steady_us", lambda: 1_000_000)
    offsets = UpstreamOffsets(cast("Links", Brokers()), Metrics(), fence)
    for number in range(MAX_BURST + 10):
        assert offsets.may_be_elsewhere(f"g{number}")
    assert (len(caplog.messages), len(offsets._shown_us)) == (MAX_BURST, MAX_BURST)


class SlowBrokers(Brokers):
    """Brokers that answer which coordinator a group has when they are let."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = 0
        self.may_answer = Event()

    def ask_any(self, name: str, fields: dict[str, Any], highest: int | None = None) -> Any:
        self.questions += 1
        self.may_answer.wait(WAIT_S)
        return super().ask_any(name, fields, highest)


def test_all_who_look_for_a_coordinator_at_once_share_one_question() -> None:
    brokers = SlowBrokers()
    offsets = UpstreamOffsets(cast("Links", brokers), Metrics(), fence)

    def ask() -> list[gevent.Greenlet[..., ErrorCode]]:
        asking = [gevent.spawn(offsets.coordinator_error, "g") for _ in range(100)]
        gevent.idle()
        return asking

    early = ask()
    brokers.may_answer.set()
    assert {one.get() for one in early} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert brokers.questions == 1
    brokers.may_answer.clear()
    brokers.are_back = True
    late = ask()
    late[0].kill()  # the question is its own
    brokers.may_answer.set()
    assert {one.get() for one in late[1:]} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert offsets.coordinator_error("g") == ErrorCode.NONE
    assert brokers.questions == 3


@pytest.mark.parametrize("does_hang", [False, True])
def test_many_requests_wait_for_brokers_together(monkeypatch: pytest.MonkeyPatch, *, does_hang: bool) -> None:
    """Not one after the other: a member's heartbeats wait behind its commit, and its session would end."""
    monkeypatch.setattr("zkrebalancer.gateway.offsets.PATIENCE_S", 0.1)
    tries: list[str] = []

    class Away(Brokers):
        def ask_any(self, name: str, fields: dict[str, Any], highest: int | None = None) -> Any:
            if not does_hang:
                tries.append(name)
            return super().ask_any(name, fields, highest)

        def ask(self, name: str, _fields: object, _highest: object, _timeout_s: float) -> Brokers:
            tries.append(name)
            gevent.sleep(0.15)
            raise LinkError("no answer")

    brokers = Away()
    brokers.are_back = does_hang
    offsets = offsets_at(brokers)
    answered: list[AsyncResult[object]] = [AsyncResult() for _ in range(20)]
    for one in answered:
        offsets.send("g", "OffsetCommit", {}, one.set)
    assert {one.get(timeout=WAIT_S) for one in answered} == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert 0 < len(tries) < len(answered)  # those of the first one


def test_requests_that_wait_only_for_others_are_sent_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers answer, so nobody's request is refused."""
    monkeypatch.setattr("zkrebalancer.gateway.offsets.PATIENCE_S", 0.0)
    brokers = Coordinator()
    offsets = offsets_at(brokers)
    assert offsets.coordinator_error("g") == ErrorCode.NONE
    answered: list[AsyncResult[object]] = [AsyncResult() for _ in range(5)]
    for one in answered:
        offsets.send("g", "OffsetCommit", {}, one.set)
    assert all(isinstance(one.get(timeout=WAIT_S), dict) for one in answered)
    assert len(brokers.reached) == len(answered)


def test_a_coordinator_that_has_moved_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zkrebalancer.gateway.offsets.PAUSE_S", 0.0)
    asked: list[object] = []
    found = iter([("old", 1), ("new", 1)])

    class Moving(Brokers):
        def fields(self) -> dict[str, Any]:
            if asked:
                return {"error_code": ErrorCode.NOT_COORDINATOR if asked[-1] == ("old", 1) else ErrorCode.NONE}
            return super().fields()

        def ask_any(self, name: str, fields: dict[str, Any], highest: int | None = None) -> Any:  # noqa: ARG002
            host, port = next(found)
            return SimpleNamespace(fields=lambda: {"coordinators": [], "error_code": 0, "host": host, "port": port})

        def to(self, address: object, _number: int | None = None) -> Any:
            asked.append(address)
            return self

    answered: AsyncResult[object] = AsyncResult()
    offsets = UpstreamOffsets(cast("Links", Moving()), Metrics(), fence)
    offsets.send("g", "OffsetCommit", {}, answered.set)
    assert answered.get(timeout=WAIT_S) == {"error_code": ErrorCode.NONE}
    assert asked == [("old", 1), ("new", 1)]


def test_a_request_that_fails_stops_no_other_one() -> None:
    def fail() -> ErrorCode:
        raise ZeroDivisionError("a planted bug")

    lanes = Lanes()
    answered: list[AsyncResult[object]] = [AsyncResult() for _ in range(2)]
    for handle, one in zip((fail, lambda: ErrorCode.NONE), answered, strict=True):
        lanes.send("g", handle, one.set)
    assert [one.get(timeout=WAIT_S) for one in answered] == [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE]


class Coordinator(Brokers):
    """A broker that has groups with members."""

    def __init__(self, *groups: str) -> None:
        super().__init__()
        self.are_back = True
        self.groups = groups
        self.error = ErrorCode.NONE  # of lists

    def fields(self) -> dict[str, Any]:
        error = self.error if self.reached else ErrorCode.NONE
        return {**super().fields(), "error_code": error, "groups": [{"group_id": group} for group in self.groups]}


class Separate:
    """Brokers that each answer with their own groups, or None: they are away."""

    def __init__(self, *answers: dict[str, Any] | None) -> None:
        self.brokers = {number: ("h", number) for number in range(len(answers))}
        self.answers = answers

    def to(self, address: tuple[str, int]) -> Any:
        def ask(_name: str, fields: dict[str, Any], _highest: object, _timeout_s: float) -> Any:
            assert fields == {"states_filter": ["Empty"], "types_filter": ["classic", "consumer"]}
            if found is None:
                raise LinkError("away")
            return SimpleNamespace(fields=lambda: found)

        found = self.answers[address[1]]
        return SimpleNamespace(ask=ask)


def groups_of(*names: str, error: ErrorCode = ErrorCode.NONE) -> dict[str, Any]:
    return {"error_code": error, "groups": [{"group_id": name} for name in names]}


def test_groups_with_offsets_at_any_broker_are_listed() -> None:
    """In `without_members`, list nothing if one broker of several is away, or share groups, too."""
    loading = groups_of("c", error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    offsets = UpstreamOffsets(
        cast("Links", Separate(groups_of("a", "other"), None, loading, groups_of("b"))), Metrics(), fence
    )
    assert sorted(offsets.without_members(lambda group: group != "other")) == ["a", "b"]
    away = UpstreamOffsets(cast("Links", Separate(None, loading)), Metrics(), fence)
    with pytest.raises(LinkError, match="which groups have offsets"):
        away.without_members(lambda _group: True)


def offsets_at(brokers: Brokers) -> UpstreamOffsets:
    return UpstreamOffsets(cast("Links", brokers), Metrics(), fence)


def test_a_group_with_members_at_the_brokers_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_us = [1]
    monkeypatch.setattr("zkrebalancer.gateway.offsets.clock.steady_us", lambda: now_us[0])
    brokers = Coordinator("theirs")
    offsets = offsets_at(brokers)
    assert not offsets.was_elsewhere("theirs")  # nobody was asked yet
    assert [offsets.may_be_elsewhere(group) for group in ("theirs", "ours", "theirs")] == [True, False, True]
    assert brokers.reached == ["ListGroups"]
    assert [offsets.was_elsewhere(group) for group in ("theirs", "ours")] == [True, False]
    assert [record.message for record in caplog.records] == [
        "group theirs has members at the brokers: no client can join it here until they have left"
    ]
    brokers.groups, now_us[0] = ("ours",), now_us[0] + FRESH_US
    assert [offsets.may_be_elsewhere(group) for group in ("theirs", "ours")] == [False, True]
    assert [offsets.was_elsewhere(group) for group in ("theirs", "ours")] == [False, True]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the brokers all the time."""
    monkeypatch.setattr("zkrebalancer.gateway.offsets.WATCH_S", 0.01)
    monkeypatch.setattr("zkrebalancer.gateway.offsets.FRESH_US", 0)


@contextmanager
def watching(offsets: UpstreamOffsets) -> Iterator[None]:
    watch = gevent.spawn(offsets.watch)
    try:
        with gevent.Timeout(WAIT_S):
            yield
    finally:
        watch.kill()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("has_restarted", [False, True])
def test_members_that_join_at_the_brokers_later_are_noticed(*, has_restarted: bool) -> None:
    """In `UpstreamOffsets.watch`, ask only the coordinators that are known: after a restart, there are none."""
    brokers = Coordinator()
    offsets = offsets_at(brokers)
    assert has_restarted or not offsets.may_be_elsewhere("g")
    with watching(offsets):
        brokers.groups = ("g",)
        while not offsets.was_elsewhere("g"):
            gevent.sleep(0.01)


@pytest.mark.usefixtures("quick")
def test_a_coordinator_that_loads_its_groups_does_not_say_who_has_members() -> None:
    """In `UpstreamOffsets`, ignore the error of ListGroups: the members that are not loaded yet read on."""
    brokers = Coordinator("loaded")
    brokers.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    offsets = offsets_at(brokers)
    assert offsets.may_be_elsewhere("g")
    assert not offsets.was_elsewhere("g")  # those that are in go on
    assert offsets.was_elsewhere("loaded")
    brokers.error = ErrorCode.NONE
    assert not offsets.may_be_elsewhere("g")


class Two(Coordinator):
    """Two brokers; the one that is the coordinator has the group's members, the other one may hang."""

    def __init__(self, coordinator: int) -> None:
        super().__init__("g")
        self.brokers = {1: ("h", 1), 2: ("h", 2)}
        self.coordinator = coordinator
        self.does_hang = False
        self.lookups = 0

    def ask_any(self, name: str, fields: dict[str, Any], highest: int | None = None) -> Any:  # noqa: ARG002
        self.lookups += 1
        host, port = self.brokers[self.coordinator]
        return SimpleNamespace(fields=lambda: {"coordinators": [], "error_code": 0, "host": host, "port": port})

    def to(self, address: object, _number: int | None = None) -> Any:
        groups = self.groups if address == self.brokers[self.coordinator] else ()

        def ask(*_asked: object) -> object:
            if self.does_hang and not groups:
                gevent.sleep(WAIT_S)
            listed = {"error_code": 0, "groups": [{"group_id": group} for group in groups]}
            return SimpleNamespace(fields=lambda: listed)

        return SimpleNamespace(ask=ask)


def test_who_joins_after_the_coordinator_has_moved_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `UpstreamOffsets`, use the coordinator that is known: it has no members any more."""
    now_us = [1]
    monkeypatch.setattr("zkrebalancer.gateway.offsets.clock.steady_us", lambda: now_us[0])
    brokers = Two(coordinator=1)
    brokers.groups = ()
    offsets = offsets_at(brokers)
    assert not any(offsets.may_be_elsewhere("g") for _ in range(100))
    assert brokers.lookups == 1
    brokers.coordinator, brokers.groups, now_us[0] = 2, ("g",), now_us[0] + FRESH_US
    assert all(offsets.may_be_elsewhere("g") for _ in range(100))
    assert brokers.lookups == 2


@pytest.mark.usefixtures("quick")
def test_members_at_a_coordinator_that_has_moved_are_noticed_although_another_broker_hangs() -> None:
    """In `UpstreamOffsets.watch`, ask only the coordinator that is known."""
    brokers = Two(coordinator=1)
    brokers.groups = ()
    offsets = offsets_at(brokers)
    assert not offsets.may_be_elsewhere("g")
    brokers.coordinator, brokers.groups, brokers.does_hang = 2, ("g",), True
    with watching(offsets):
        while not offsets.was_elsewhere("g"):
            gevent.sleep(0.01)


def test_a_group_may_be_elsewhere_while_its_coordinator_is_away() -> None:
    """Its members there read on, and another broker may become their coordinator. Those that are in go on."""
    brokers = Coordinator("g")
    brokers.are_back = False
    offsets = offsets_at(brokers)
    assert offsets.may_be_elsewhere("g")
    assert not offsets.was_elsewhere("g")


@pytest.mark.usefixtures("quick")
def test_what_a_broker_said_that_is_gone_does_not_count() -> None:
    """Nobody would ever say that its members have left: no client could join the group again."""
    brokers = Two(coordinator=1)
    offsets = offsets_at(brokers)
    assert offsets.may_be_elsewhere("g")
    brokers.brokers, brokers.coordinator, brokers.groups = {2: ("h", 2)}, 2, ()
    with watching(offsets):
        while offsets.was_elsewhere("g"):
            gevent.sleep(0.01)
    assert not offsets.may_be_elsewhere("g")
