"""ZooKeeper refuses to store the changed subscription of a gateway's client: the client gets no error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.gateway.test_member_agent import GROUP, Gateway, member
from zkrebalancer.group_protocol.effects import Reported
from zkrebalancer.protocol import paths, registration
from zkrebalancer.protocol.calls import Call, Content, Get


def test_a_subscription_that_is_refused_is_written_again_with_growing_pauses(caplog: pytest.LogCaptureFixture) -> None:
    """In `_failed`, note no time: the client would never get the topics that it has added, and nobody would know."""
    gateway = Gateway()
    gateway.report(member(instance_id=None))
    (name,) = gateway.registered()
    gateway.session.forbidden.add(paths.ids(GROUP, name))
    gateway.report(replace(member(instance_id=None), topic_names=("t", "u")))
    (agent,) = gateway.agents._agents[GROUP].values()
    tries = {agent._subscribe_at_ms}
    for _ in range(200):
        gateway.pass_time(500)
        tries.add(agent._subscribe_at_ms)
    assert sorted(filter(None, tries)) == [1_000, 3_000, 7_000, 15_000, 31_000, 61_000, 91_000, 121_000]
    assert len([line for line in caplog.messages if "refused to change the subscription" in line]) == 1
    gateway.session.forbidden.clear()
    gateway.pass_time(30_000)
    assert gateway.registered() == [name]
    reply = gateway.session.require(Get(paths.ids(GROUP, name)))
    assert isinstance(reply, Content)
    assert registration.decode(reply.content).subscription == {"t": 1, "u": 1}
    assert agent._subscribe_at_ms is None


def test_an_agent_that_has_left_waits_for_nothing() -> None:
    """In `_perform`, keep the time of a subscription that was refused: the agent would stay in the queue."""
    gateway = Gateway()
    gateway.report(member(instance_id=None))
    (name,) = gateway.registered()
    gateway.session.forbidden.add(paths.ids(GROUP, name))
    gateway.report(replace(member(instance_id=None), topic_names=("u",)))
    gateway.agents.reported(Reported(GROUP, ()))
    assert (gateway.registered(), gateway.agents._queued) == ([], {})


def test_an_agent_that_is_leaving_subscribes_to_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_go_on`, do not ask whether it leaves: a rebalance would follow for a member that is about to be gone."""
    gateway = Gateway()
    gateway.report(member(instance_id=None))
    (name,) = gateway.registered()
    gateway.session.forbidden.add(paths.ids(GROUP, name))
    gateway.report(replace(member(instance_id=None), topic_names=("u",)))
    (agent,) = gateway.agents._agents[GROUP].values()
    sent: list[Call] = []  # none is answered
    monkeypatch.setattr(gateway.session, "request", lambda call, _when_replied: sent.append(call))
    gateway.agents.reported(Reported(GROUP, ()))
    gateway.pass_time(1_500)
    assert agent._subscribe_at_ms is None
    assert [call for call in sent if "SetContent" in repr(call)] == []
