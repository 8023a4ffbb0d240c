"""Gateways of one cluster keep offsets in one store: a group that moved between two would go on at other offsets."""

from __future__ import annotations

import pytest

from tests.unit.gateway.model_session import ModelSession
from zkrebalancer.gateway.layout import ALIVE, LAYOUT, Layout, OtherOffsetsError, decode, encode
from zkrebalancer.gateway.membership import Membership
from zkrebalancer.protocol.calls import Content, Delete, Get, SetContent


@pytest.fixture
def session() -> ModelSession:
    return ModelSession()


def layout(session: ModelSession) -> Layout:
    found = session.perform(Get(LAYOUT))
    assert isinstance(found, Content)
    return decode(found.content)


def test_a_gateway_with_another_store_than_those_that_run_does_not_begin(session: ModelSession) -> None:
    one, other = Membership(session, "gw", 1), Membership(session, "gw", 2, "zookeeper")
    one.refresh()
    with pytest.raises(OtherOffsetsError, match="--offsets zookeeper: gw:1 run with --offsets upstream; end them"):
        other.refresh()
    assert layout(session) == Layout({}, {"gw:1": 0}, "upstream")
    one.refresh()
    assert one.addresses().gateways == {0: ("gw", 1)}
    session.do(Delete(f"{ALIVE}/0"))  # it ends
    other.refresh()
    assert layout(session).offsets == "zookeeper"
    session.renew()
    with pytest.raises(OtherOffsetsError, match="gw:2 run"):  # it was away meanwhile
        one.refresh()


def test_a_gateway_that_is_started_again_may_have_another_store(session: ModelSession) -> None:
    """Its former process had the same address, so it has ended, even if its node is still there."""
    Membership(session, "gw", 1).refresh()
    session.renew()
    Membership(session, "gw", 1, "zookeeper").refresh()
    assert layout(session).offsets == "zookeeper"


def test_of_two_that_begin_at_the_same_moment_only_one_goes_on(session: ModelSession) -> None:
    """In `Membership._has_number`, do not compare the stores: the other one had not announced itself yet."""
    one = Membership(session, "gw", 1)
    one.refresh()
    session.do(SetContent(LAYOUT, encode(Layout({}, {"gw:1": 0, "gw:2": 1}, "zookeeper"))))
    with pytest.raises(OtherOffsetsError, match="other gateways run with --offsets zookeeper"):
        one.refresh()


def test_a_layout_of_an_earlier_release_names_no_store(session: ModelSession) -> None:
    one, other = Membership(session, "gw", 1), Membership(session, "gw", 2, "zookeeper")
    one.refresh()
    session.do(SetContent(LAYOUT, b'{"version": 1, "brokers": {}, "gateways": {"gw:1": 0}}'))
    other.refresh()
    assert layout(session) == Layout({}, {"gw:1": 0, "gw:2": 1}, "zookeeper")
