"""The agent of one client: what it takes over, what it waits for, and when it may register again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest import mock

from tests.unit.gateway.model_session import ModelSession
from zkrebalancer.gateway.agents import Agents
from zkrebalancer.group_protocol.effects import Reported, Standing, Targeted
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Call, Connected, Create, Delete, Get, Refusal, Refused, Reply
from zkrebalancer.protocol.ownership import StaticMember

GROUP = "g"
ONE, OTHER = ("t", 0), ("t", 1)
SESSION_MS = 6_000


class Session(ModelSession):
    """The outcome of the next read of what waits for a member can be unknown."""

    loses_next = False

    def request(self, call: Call, when_replied: Callable[[Reply], None]) -> None:
        if self.loses_next and isinstance(call, Get) and call.path == paths.static(GROUP, "i"):
            self.loses_next = False
            when_replied(Refused(Refusal.CONNECTION_LOST))
        else:
            super().request(call, when_replied)


class Gateway:
    """The agents of one group, with the targets that they gave it."""

    def __init__(self) -> None:
        self.session = Session()
        above = ["/consumers", paths.GROUPS, paths.group(GROUP)]
        self.session.do(*map(Create, [*above, *(f"{paths.group(GROUP)}/{name}" for name in paths.GROUP_CHILDREN)]))
        self.given: list[Targeted] = []
        self.now_ms = 0
        self.agents = Agents(self.session, mock.Mock(), self.given.append, lambda: self.now_ms)

    def report(self, member: Standing) -> None:
        self.agents.reported(Reported(GROUP, (member,)))

    def connect(self) -> None:
        self.agents.session_changed(Connected(self.session.session_id, SESSION_MS))

    def registered(self) -> list[str]:
        return self.session.model.children(paths.ids(GROUP))

    def pass_time(self, milliseconds: int) -> None:
        for _ in range(0, milliseconds, 500):
            self.now_ms += 500
            self.agents.wake_due()


def member(*held: tuple[str, int], instance_id: str | None = "i") -> Standing:
    return Standing("m", instance_id, "c", "/h", None, ("t",), "", SESSION_MS, 10_000, number=0, held=frozenset(held))


def test_an_evicted_client_registers_again_once_the_group_knows_that_it_has_nothing() -> None:
    """In `_may_join`, believe a report that is older than the last target: the client may still read."""
    gateway = Gateway()
    gateway.report(member(instance_id=None))
    (name,) = gateway.registered()
    gateway.session.do(Delete(paths.ids(GROUP, name)), Delete(paths.owners(GROUP, name)))
    gateway.pass_time(SESSION_MS)
    assert gateway.given == [Targeted(GROUP, "m", 1, frozenset())]
    gateway.report(member(instance_id=None))
    gateway.pass_time(SESSION_MS)
    assert gateway.registered() == []
    gateway.report(replace(member(instance_id=None), number=len(gateway.given)))
    gateway.pass_time(SESSION_MS)
    assert len(gateway.registered()) == 1


def test_the_later_self_of_a_static_member_gets_the_target_of_the_former() -> None:
    """In `stand`, give no target to a member with another id: it would read nothing."""
    gateway = Gateway()
    gateway.report(member())
    gateway.report(replace(member(), member_id="later"))
    gateway.report(replace(member(), member_id="later", number=1))
    assert gateway.given == [Targeted(GROUP, "later", 1, frozenset())]


def test_a_client_keeps_what_waits_for_it_once_that_could_be_read() -> None:
    """In `_ask_what_waits`, take an unknown outcome for an answer, or do not ask again; in `_taken_over`, keep more."""
    gateway = Gateway()
    waits = StaticMember("c-former", frozenset({ONE, ("t", 2)}), None)
    gateway.session.do(Create(paths.static(GROUP, "i"), ownership.encode_static(waits)))
    gateway.session.loses_next = True
    gateway.report(member(ONE, OTHER))
    assert not gateway.session.loses_next
    assert (len(gateway.registered()), gateway.given) == (1, [])
    gateway.connect()
    assert gateway.given == [Targeted(GROUP, "m", 1, frozenset({ONE}))]
