"""The agent of one client: what it takes over, what it waits for, and when it may register again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest import mock
from uuid import UUID

import pytest

from consumer_agent.errors import FencedInstanceError
from consumer_agent.membership import effects, events
from tests.support.central_world import CentralWorld
from tests.support.kip848_group import Client
from tests.unit.gateway.model_session import ModelSession
from zkrebalancer.gateway.agents import Agents
from zkrebalancer.gateway.member_agent import STOP_MARGIN_MS, MemberAgent, _instance_id, registration_of
from zkrebalancer.group_protocol.effects import Fenced, Reported, Standing, Targeted
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.scheduler import SPARE_QUEUE_ENTRIES
from zkrebalancer.protocol import ownership, paths, registration
from zkrebalancer.protocol.calls import (
    Call,
    Connected,
    Content,
    Create,
    Delete,
    Get,
    Lost,
    Refusal,
    Refused,
    Reply,
    Suspended,
)
from zkrebalancer.protocol.ownership import StaticMember
from zkrebalancer.protocol.patterns import TopicFilter
from zkrebalancer.protocol.registration import MAX_STATIC_GRACE_MS, MAX_STOP_TIMEOUT_MS, STATIC, WHITE_LIST

GROUP = "g"
ONE, OTHER = ("t", 0), ("t", 1)
SESSION_MS = 6_000


class Session(ModelSession):
    """The outcome of the next read of what waits for a member can be unknown; `calls` is their number."""

    loses_next = False
    calls = 0

    def request(self, call: Call, when_replied: Callable[[Reply], None]) -> None:
        self.calls += 1
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
        self.given: list[Targeted | Fenced] = []
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
    assert gateway.given == [Targeted(GROUP, "m", 1, frozenset()), Fenced(GROUP, "m", for_good=False)]
    gateway.report(member(instance_id=None))
    gateway.pass_time(SESSION_MS)
    assert gateway.registered() == []
    gateway.report(replace(member(instance_id=None), number=2))
    gateway.pass_time(SESSION_MS)
    assert len(gateway.registered()) == 1


def test_an_evicted_client_that_is_fenced_leaves_what_waits_for_it() -> None:
    """In `leave`, delete its record: others would get what it still reads, from the time at another gateway."""
    gateway = Gateway()
    waits = StaticMember("c-former", frozenset({ONE}), None)
    gateway.session.do(Create(paths.static(GROUP, "i"), ownership.encode_static(waits)))
    gateway.report(member(ONE))
    (name,) = gateway.registered()
    gateway.session.do(Delete(paths.ids(GROUP, name)), Delete(paths.owners(GROUP, name)))
    gateway.pass_time(SESSION_MS)
    assert gateway.given[-1] == Fenced(GROUP, "m", for_good=False)
    gateway.agents.reported(Reported(GROUP, ()))
    assert gateway.session.model.children(paths.static(GROUP)) == ["i"]
    assert gateway.agents._leaving == set()


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


def test_a_group_that_is_read_again_during_a_stop_gets_the_target_again() -> None:
    """In `stand`, ignore that the group knows no target: the stop would never end, and its client be evicted."""
    world = CentralWorld()
    first = world.add("a")
    world.pass_time(1_500)
    assert isinstance(first, Client)
    first.holds_on = True
    world.add("b")
    world.pass_time(1_500)
    assert len(world.read_by(first)) == 6
    world.groups.crash()  # the group is read again; the gateway's agents continue
    first.ticket = 0
    world.run()
    first.holds_on, first.owned = False, first.wanted
    world.pass_time(2_000)
    world.assert_shared()


def test_a_gateway_that_hands_a_group_over_leaves_what_waits_for_its_members() -> None:
    """In `hand_over`, leave as a client that is gone does: the next gateway's client would lose everything."""
    gateway = Gateway()
    gateway.session.do(
        Create(paths.static(GROUP, "i"), ownership.encode_static(StaticMember("c", frozenset({ONE}), None)))
    )
    gateway.report(member(ONE))
    assert len(gateway.registered()) == 1
    gateway.agents.keep(())
    assert (gateway.registered(), gateway.agents.count) == ([], 0)
    assert gateway.session.model.children(paths.static(GROUP)) == ["i"]


def test_what_a_failed_departure_leaves_is_deleted() -> None:
    """In `_perform`, clean nothing up: the coordinator would wait for a client that has left, for a gateway's life."""
    gateway = Gateway()
    gateway.report(member(instance_id=None))
    assert len(gateway.registered()) == 1
    gateway.session.refusals = [Refused(Refusal.NO_NODE), Refused(Refusal.QUOTA_EXCEEDED)]
    gateway.agents.reported(Reported(GROUP, ()))
    assert gateway.registered() == []


def test_a_client_that_leaves_during_an_outage_is_gone_afterwards() -> None:
    """In `Agents.session_changed`, forget those that are leaving: their registrations would stay."""
    gateway = Gateway()
    gateway.report(member(instance_id=None))
    gateway.agents.session_changed(Suspended())
    gateway.session.refusals = [Refused(Refusal.CONNECTION_LOST)]
    gateway.agents.reported(Reported(GROUP, ()))
    assert len(gateway.registered()) == 1
    gateway.connect()
    assert gateway.registered() == []


def test_members_of_groups_that_are_gone_leave_when_their_own_bucket_is_read() -> None:
    """In `Agents.loaded`, let all others leave too: the members of forty-nine buckets would lose everything."""
    gateway = Gateway()
    gateway.report(member(instance_id=None))
    bucket = bucket_of(GROUP)
    gateway.agents.loaded((bucket + 1) % 50, ())
    gateway.agents.loaded(bucket, (GROUP,))
    assert len(gateway.registered()) == 1
    gateway.agents.loaded(bucket, ())
    assert gateway.registered() == []


def test_an_agent_that_is_over_gets_a_successor() -> None:
    """In `Agents.reported`, keep it: the client would never get anything again."""
    gateway = Gateway()
    gateway.report(member(instance_id=None))
    (agent,) = gateway.agents._agents[GROUP].values()
    agent.step(events.Abandoned())
    assert (agent.is_over, gateway.registered()) == (True, [])
    gateway.report(member(instance_id=None))
    assert len(gateway.registered()) == 1


def fenced_agent(gateway: Gateway) -> MemberAgent:
    """Return the agent of a client whose instance id another consumer has taken, as its record says."""
    gateway.report(member())
    gateway.session.do(Create(paths.static(GROUP, "i"), ownership.encode_static(StaticMember("x", frozenset(), None))))
    (agent,) = gateway.agents._agents[GROUP].values()
    agent._perform(effects.Failed(FencedInstanceError("x has it"), for_good=True))
    agent.step(events.Abandoned())
    return agent


def test_a_client_whose_instance_id_another_consumer_has_is_registered_again_only_under_another_member_id() -> None:
    """In `Agents.reported`, give a fenced agent a successor, or no other word to its group, or none to a later self."""
    gateway = Gateway()
    agent = fenced_agent(gateway)
    assert (agent.is_over, gateway.registered()) == (True, [])
    for times in (2, 3):
        gateway.report(member())
        assert [one for one in gateway.given if isinstance(one, Fenced)] == [Fenced(GROUP, "m")] * times
        assert gateway.registered() == []
    gateway.report(replace(member(), member_id="later"))
    assert len(gateway.registered()) == 1
    gateway.agents.reported(Reported(GROUP, ()))
    assert gateway.session.model.children(paths.static(GROUP)) == []


def test_a_fenced_client_that_is_gone_leaves_what_waits_for_the_other_consumer() -> None:
    """In `Agents._end`, let an agent leave that is over: the record of the other consumer would be deleted."""
    gateway = Gateway()
    fenced_agent(gateway)
    gateway.agents.reported(Reported(GROUP, ()))
    assert gateway.session.model.children(paths.static(GROUP)) == ["i"]
    assert gateway.agents._leaving == set()


def test_a_watch_belongs_to_the_agent_that_set_it() -> None:
    """In `Agents.watched`, say that it is somebody else's: each command would have the gateway read all topics."""
    gateway = Gateway()
    gateway.report(member(instance_id=None))
    (name,) = gateway.registered()
    before = gateway.session.calls
    assert gateway.agents.watched(paths.channel(GROUP, name))
    assert gateway.session.calls > before
    assert not gateway.agents.watched(paths.channel(GROUP, "another"))


def test_events_have_the_time_of_what_happened_and_all_that_was_lost() -> None:
    """In `Agents.record`, drop the delay; in `MemberAgent._perform`, name no partitions."""
    gateway = Gateway()
    written: list[dict[str, object]] = []
    gateway.agents._event_log.write = lambda _kind, **fields: written.append(fields)  # type: ignore[method-assign]
    for late_ms in (0, 5_000):
        gateway.agents.record(GROUP, effects.RecordFetcher("fetcher_started", "c", 1, None, {ONE: 0}, None, late_ms))
    on_time, late = (fields["mono_us"] for fields in written)
    assert isinstance(on_time, int)
    assert isinstance(late, int)
    assert 4_000_000 < on_time - late < 5_000_000
    written.clear()
    gateway.report(member(instance_id=None))
    (agent,) = gateway.agents._agents[GROUP].values()
    agent._perform(effects.RecordLost("c", 3, frozenset({ONE, OTHER})))
    assert [(fields["reason"], fields["partitions"], fields["generation"]) for fields in written] == [
        ("lost", [0, 1], 3)
    ]


@pytest.mark.parametrize(
    ("client_id", "name"), [("my app/1", "my-app-1-"), ("", "client-"), ("x" * 500, "x" * 150 + "-")]
)
def test_any_client_id_gives_a_legal_name(client_id: str, name: str) -> None:
    """In `_go_on`, take the client's id as it is: the client would stay idle."""
    gateway = Gateway()
    gateway.report(replace(member(instance_id=None), client_id=client_id))
    (registered,) = gateway.registered()
    assert registered.startswith(name)
    assert len(registered) == len(name) + 36


def test_the_end_of_the_gateways_session_takes_nothing_from_its_clients() -> None:
    """In `session_changed`, tell the group of it: the client would give up what waits for it."""
    gateway = Gateway()
    gateway.report(member())
    gateway.agents.session_changed(Lost())
    assert gateway.given == []


def test_a_registration_is_renewed_as_often_as_its_clients_session_demands() -> None:
    """In `_connect`, take the gateway's session: seven times as many calls for a client with 45 s."""
    gateway = Gateway()
    gateway.report(replace(member(), session_timeout_ms=45_000))
    before = gateway.session.calls
    gateway.pass_time(9_000)
    assert gateway.session.calls == before
    gateway.pass_time(2_000)
    assert gateway.session.calls == before + 2


def test_the_queue_of_timers_is_not_much_longer_than_the_list_of_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `Agents._limit_queue` do nothing, or let `note_end` or `session_changed` keep an agent's time.

    While a renewal is not answered yet, the next time is that of a read that is due within an hour.
    """
    gateway, calls = Gateway(), deque[Callable[[], None]]()
    perform = gateway.session.request

    def request(call: Call, when_replied: Callable[[Reply], None]) -> None:
        calls.append(partial(perform, call, when_replied))

    def report(count: int) -> None:
        members = (replace(member(instance_id=None), member_id=f"m{number}") for number in range(count))
        gateway.agents.reported(Reported(GROUP, tuple(members)))
        answer()

    def answer() -> None:
        while calls:
            calls.popleft()()

    monkeypatch.setattr(gateway.session, "request", request)
    count = SPARE_QUEUE_ENTRIES
    report(count)
    assert len(gateway.registered()) == count
    for _ in range(60):
        gateway.pass_time(500)
        answer()
    assert len(gateway.agents._queue) <= 2 * count + SPARE_QUEUE_ENTRIES
    assert len(gateway.agents._queued) == count
    report(1)
    assert len(gateway.agents._queued) == 1
    assert len(gateway.agents._queue) <= 2 + SPARE_QUEUE_ENTRIES
    gateway.agents.session_changed(Lost())
    assert (gateway.agents._queue, gateway.agents._queued) == ([], {})


@pytest.mark.parametrize("session_timeout_ms", [-(2**31), 0, 1, 2**31 - 1])
def test_a_registration_has_a_session_timeout_whatever_is_stored(session_timeout_ms: int) -> None:
    """In `registration_of`, take any: an agent without a lease would send renewals without a pause."""
    found = registration_of(replace(member(), session_timeout_ms=session_timeout_ms), "i")
    assert registration.decode(registration.encode(found)) == found
    assert found.lease_ms > 500


def test_a_registration_says_what_the_client_said() -> None:
    found = registration_of(replace(member(), topic_names=("t", "no/topic"), rack_id="r"), "i")
    assert (found.pattern, found.subscription) == (STATIC, {"t": 1})
    assert (found.client_id, found.host, found.rack, found.instance_id) == ("c", "h", "r", "i")
    assert (found.session_timeout_ms, found.static_grace_ms) == (SESSION_MS, SESSION_MS)
    assert found.stop_timeout_ms == 10_000 + STOP_MARGIN_MS
    rare = registration_of(replace(member(), session_timeout_ms=60_000), "i")  # it may learn of a stop as late as that
    assert rare.stop_timeout_ms == 10_000 + 60_000
    slow = registration_of(replace(member(), session_timeout_ms=10**9, rebalance_timeout_ms=10**9), "i")
    assert (slow.static_grace_ms, slow.stop_timeout_ms) == (MAX_STATIC_GRACE_MS, MAX_STOP_TIMEOUT_MS)
    odd = registration_of(replace(member(), rebalance_timeout_ms=-(2**31), rack_id="", topic_names=()), "i")
    assert odd.stop_timeout_ms == STOP_MARGIN_MS
    assert registration.decode(registration.encode(odd)) == odd  # else the client would be idle


def test_a_changed_subscription_is_written_once() -> None:
    """In `stand`, do not note what is wanted: a refused change would be sent again with each report of the group."""
    gateway = Gateway()
    gateway.report(member(instance_id=None))
    gateway.report(replace(member(instance_id=None), topic_names=("u",)))
    (name,) = gateway.registered()
    reply = gateway.session.require(Get(paths.ids(GROUP, name)))
    assert isinstance(reply, Content)
    assert registration.decode(reply.content).subscription == {"u": 1}
    gateway.session.refusals = [Refused(Refusal.NO_AUTH)]
    for _ in range(3):
        gateway.report(replace(member(instance_id=None), topic_names=("v",)))
        before, gateway.session.calls = gateway.session.calls, 0
    assert (before, gateway.session.refusals) == (0, [])


def test_an_expression_and_names_select_each_by_itself() -> None:
    """In `registration_of`, leave the expression without its brackets, or the names as they are."""
    found = registration_of(replace(member(), topic_names=("x.y",), topic_regex="(?i)a|b"), None)
    assert found.pattern == WHITE_LIST
    filter_ = TopicFilter(WHITE_LIST, next(iter(found.subscription)))
    names = ("a", "B", "x.y", "ab", "ax.y", "b1", "xzy", "X.Y")
    assert [name for name in names if filter_.matches(name)] == ["a", "B", "x.y"]


@pytest.mark.parametrize(
    ("instance_id", "name"),
    [("pod-1", "pod-1"), ("a_2Fb", "a_2Fb"), ("..", None), ("x" * 150, "x" * 150), ("x" * 151, None)],
)
def test_partitions_wait_under_a_name_that_is_legal_in_zookeeper(instance_id: str, name: str | None) -> None:
    """In `_instance_id`, keep a character that a registration may not have: the client would be idle."""
    gateway = Gateway()
    gateway.report(member(instance_id=instance_id))
    (agent,) = gateway.agents._agents[GROUP].values()
    assert agent.instance_id == name
    assert len(gateway.registered()) == 1


def test_no_member_id_is_taken_for_an_instance_id() -> None:
    """In `_instance_id`, leave out the prefix, or do not change an instance id that has it, or is a usual member id."""
    ids = ["x", "dynamic.x", "dynamic.dynamic.x", "~dynamic.x", "~~dynamic.x", "~x", "dynamic.~x", "dynamic.é", "é"]
    usual = ["IzWnhWzXQzeeJ3ugr0CAdw", UUID(int=7).hex, f"c-{UUID(int=7).hex}", f"a.b-{UUID(int=7)}", str(UUID(int=7))]
    ids += [*usual, *(f"~{one}" for one in usual), *(f"dynamic.{one}" for one in usual), f"é-{UUID(int=7)}"]
    static = [_instance_id(member(instance_id=one)) for one in ids]
    dynamic = [_instance_id(replace(member(instance_id=None), member_id=one)) for one in ids]
    assert len({*static, *dynamic}) == 2 * len(ids)
    assert None not in static + dynamic
    assert (static[0], dynamic[0]) == ("x", "dynamic.x")
    assert dynamic[9 : 9 + len(usual)] == usual  # they were kept before, so that partitions wait through an upgrade


def test_partitions_of_members_with_different_names_wait_under_different_names() -> None:
    """In `_instance_id`, replace characters without a digest, or keep the name short: two members would share it."""
    names = ["a~", "a_", "a%7E", "a_7E", "a/", "a_2F", "é", "_C3_A9", "~" * 151, "~" * 152, "%" * 50 + "/"]
    found = [_instance_id(member(instance_id=name)) for name in names]
    again = [_instance_id(member(instance_id=name)) for name in found if name is not None and len(name) <= 150]
    assert len(set(found)) == len(names)
    assert None not in found
    assert again == ["a_", "a_7E", "a_2F", "_C3_A9"]  # the others are longer than any name that is kept
    for name in found:
        assert name is not None
        paths.validate_name("instance id", name)
