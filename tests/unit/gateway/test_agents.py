"""What the agents of a gateway's clients share: one session, one log, one timer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pytest

from zkrebalancer.gateway.agents import Agents
from zkrebalancer.gateway.member_agent import MemberAgent
from zkrebalancer.group_protocol.effects import Reported, Standing
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Call,
    Check,
    Connected,
    Delete,
    Get,
    Lost,
    Multi,
    Refusal,
    Refused,
    Reply,
    Watched,
)
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit

LEFT_OVER = {paths.ids("g", "c"), paths.owners("g", "c")}
CONNECTED = Connected(1, 6_000)


class BrokenSession:
    """Every call fails; `log` has what was done, in order."""

    def __init__(self, log: list[str], refusal: Refusal = Refusal.CONNECTION_LOST) -> None:
        self.session_id = 1
        self.request_limit: RequestLimit = DEFAULT_LIMIT
        self.refusal = refusal
        self._log = log

    def request(self, call: Call, when_replied: Callable[[Reply], None]) -> None:
        shown = call.operations[-1] if isinstance(call, Multi) else call
        self._log.append(shown.path if isinstance(shown, Delete) else type(shown).__name__)
        when_replied(Refused(self.refusal))


class SilentSession(BrokenSession):
    """No call is answered."""

    def request(self, _call: Call, _when_replied: Callable[[Reply], None]) -> None: ...


def agents_of(session: BrokenSession, log: list[str]) -> Agents:
    event_log = mock.Mock()
    event_log.flush = lambda: log.append("flush")
    return Agents(session, event_log, lambda _: None, lambda: 0)


def test_what_could_not_be_deleted_is_deleted_on_the_next_connection_of_the_session() -> None:
    """In `Agents.session_changed`, delete nothing; in `_delete`, note nothing, or what is gone as well."""
    log: list[str] = []
    session = BrokenSession(log)
    agents = agents_of(session, log)
    agents.clean_up("g", "c")
    for _ in range(2):
        assert set(log) == LEFT_OVER
        log.clear()
        agents.session_changed(CONNECTED)
    session.refusal = Refusal.NO_NODE
    agents.session_changed(CONNECTED)
    log.clear()
    agents.session_changed(CONNECTED)
    assert log == []


def test_what_may_not_be_deleted_is_tried_again_with_growing_pauses(caplog: pytest.LogCaptureFixture) -> None:
    """In `Agents._delete`, give up: a client that has left kept its partitions for as long as the gateway ran."""
    log: list[str] = []
    session = BrokenSession(log, Refusal.NO_AUTH)
    now_ms = 0
    agents = Agents(session, mock.Mock(), lambda _: None, lambda: now_ms)
    agents.clean_up("g", "c")
    tries = []
    for now_ms in range(0, 70_000, 500):
        log.clear()
        agents.wake_due()
        if log:
            assert set(log) == LEFT_OVER
            tries.append(now_ms)
    assert tries == [1_000, 3_000, 7_000, 15_000, 31_000, 61_000]
    said = f"what a client has left cannot be deleted yet: ZooKeeper refuses {paths.ids('g', 'c')}: no permission"
    assert caplog.messages[0] == f"{said}, right DELETE of its parent is missing"
    assert len(caplog.messages) < len(tries)
    session.refusal = Refusal.NO_NODE
    now_ms = 100_000
    agents.wake_due()
    log.clear()
    now_ms = 1_000_000
    agents.wake_due()
    assert log == []


def test_some_of_what_may_not_be_deleted_is_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Agents._delete_litter`, try all: 20,000 calls in one turn, every 30 s. Or let no other path follow."""
    monkeypatch.setattr("zkrebalancer.gateway.agents.DELETED_AT_ONCE", 2)
    log: list[str] = []
    session = BrokenSession(log, Refusal.NO_AUTH)
    clock = mock.Mock(return_value=0)
    agents = Agents(session, mock.Mock(), lambda _: None, clock)
    left = [f"c{number}" for number in range(3)]
    for consumer in left:
        agents.clean_up("g", consumer)
    paths_left, tried = sorted(log), list[str]()
    for clock.return_value in (1_000, 3_000, 7_000):
        log.clear()
        agents.wake_due()
        assert len(log) == 2
        tried += log
    assert sorted(tried) == paths_left
    session.refusal = Refusal.NO_NODE
    clock.return_value = 15_000
    log.clear()
    agents.wake_due()
    assert sorted(log) == paths_left


def test_a_node_with_others_below_is_none_that_a_client_has_left() -> None:
    """In `Agents._delete`, try again: it would be tried for as long as the session lasts."""
    log: list[str] = []
    agents = agents_of(BrokenSession(log, Refusal.NOT_EMPTY), log)
    agents.clean_up("g", "c")
    log.clear()
    agents.session_changed(CONNECTED)
    assert log == []


def test_what_a_session_left_over_ends_with_it() -> None:
    """In `Agents.session_changed`, keep it."""
    log: list[str] = []
    agents = agents_of(BrokenSession(log), log)
    agents.clean_up("g", "c")
    log.clear()
    agents.session_changed(Lost())
    agents.session_changed(CONNECTED)
    assert log == []


def test_only_members_that_have_changed_are_handed_to_their_agents() -> None:
    """In `Agents.reported`, hand over all: a group of a thousand pays for all of them at each write."""
    agents = agents_of(SilentSession([]), [])
    members = [
        Standing(name, None, "c", "/h", None, ("t",), "", 10_000, 10_000, 0, frozenset()) for name in ("a", "b", "c")
    ]
    agents.reported(Reported("g", tuple(members)))
    members[1] = replace(members[1], number=1)
    with mock.patch.object(MemberAgent, "stand") as stand:
        agents.reported(Reported("g", tuple(members)))
    assert [call.args for call in stand.call_args_list] == [(members[1],)]


def test_a_session_that_ends_leaves_no_agent_behind() -> None:
    """In `Agents.session_changed`, keep one of the tables: each session that ends would fill it further."""
    agents = agents_of(SilentSession([]), [])
    for name in ("stays", "leaves"):
        member = Standing(name, None, "c", "/h", None, ("t",), "", 10_000, 10_000, 0, frozenset())
        agents.reported(Reported(name, (member,)))
    agents.session_changed(CONNECTED)
    agents.reported(Reported("leaves", ()))
    assert agents._by_consumer
    agents.session_changed(Lost())
    assert (agents._agents, agents._leaving, agents._by_consumer, agents.count) == ({}, set(), {}, 0)


def test_events_are_in_the_file_before_their_acknowledgement_is_sent() -> None:
    """In `Agents.request`, do not flush."""
    log: list[str] = []
    agents = agents_of(BrokenSession(log), log)
    agents.request(Multi((Check("/"),)), lambda _: None)
    agents.request(Get("/"), lambda _: None)
    assert log == ["flush", "Check", "Get"]


def test_only_an_agent_that_is_due_first_wakes_the_timers() -> None:
    """In `Agents.note_timer`, wake nobody: it would be late by what others wait for, or a minute."""
    agents = agents_of(BrokenSession([]), [])
    agents.note_timer(mock.Mock(wake_at_ms=50))
    assert agents._sooner.is_set()
    agents._sooner.clear()
    agents.note_timer(mock.Mock(wake_at_ms=60))
    assert not agents._sooner.is_set()
    agents.note_timer(mock.Mock(wake_at_ms=40))
    assert agents._sooner.is_set()


def test_an_agent_is_queued_once_for_a_time_and_not_woken_by_what_is_out_of_date() -> None:
    """In `Agents.note_timer`, queue it again: the queue grows by one with every step. In `wake_due`, wake it always."""
    clock = mock.Mock(return_value=0)
    agents = Agents(BrokenSession([]), mock.Mock(), lambda _: None, clock)
    agent = mock.Mock(wake_at_ms=50, is_over=False)
    for _ in range(3):
        agents.note_timer(agent)
    assert len(agents._queue) == 1
    woken = []
    for now_ms, agent.wake_at_ms in ((0, 40), (40, 60), (50, 60), (60, 70)):
        clock.return_value = now_ms
        agents.wake_due()
        woken.append(agent.step.call_count)
        agents.note_timer(agent)
    assert woken == [0, 1, 1, 2]


def test_the_end_of_a_restore_wakes_all_members_that_wait_for_it() -> None:
    """In `Agents.watched`, look for a consumer of this name only: they would wait for ever."""
    agents = agents_of(SilentSession([]), [])
    members = tuple(
        Standing(name, None, "c", "/h", None, ("t",), "", 10_000, 10_000, 0, frozenset()) for name in ("a", "b")
    )
    agents.reported(Reported("g", members))
    with mock.patch.object(MemberAgent, "step") as step:
        assert agents.watched(paths.RESTORE)
    assert [call.args for call in step.call_args_list] == [(Watched(paths.RESTORE, children=False),)] * 2


def test_a_bucket_costs_no_look_at_the_groups_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Agents.loaded` and `keep`, compute the bucket of each group: with many, a gateway stops for seconds."""
    log: list[str] = []
    agents = agents_of(SilentSession(log), log)
    names = [str(number) for number in range(100)]
    standing = Standing("m", None, "c", "/h", None, ("t",), "", 10_000, 10_000, 0, frozenset())
    for name in names:
        agents.reported(Reported(name, (standing,)))
    asked: list[str] = []

    def noted(name: str) -> int:
        asked.append(name)
        return bucket_of(name)

    monkeypatch.setattr("zkrebalancer.gateway.agents.bucket_of", noted)
    gone, kept = bucket_of("0"), bucket_of("1")
    in_gone = [name for name in names if bucket_of(name) == gone]
    agents.loaded(gone, in_gone[1:])
    assert agents.count == len(names) - 1
    assert asked == in_gone[:1]  # which is gone
    with mock.patch.object(MemberAgent, "hand_over") as hand_over:
        agents.keep({kept})
    assert hand_over.call_count == len(names) - 1 - agents.count > 0
    assert asked == in_gone[:1]
    assert set(agents._agents) == {name for name in names if bucket_of(name) == kept}
