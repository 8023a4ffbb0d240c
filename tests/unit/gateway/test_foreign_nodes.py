"""What others delete or write among the gateways' nodes disturbs no gateway, and no group but its own."""

from __future__ import annotations

import pytest

from tests.unit.gateway.model_session import ModelSession
from zkrebalancer.gateway.buckets import Buckets
from zkrebalancer.gateway.layout import ALIVE, BUCKETS
from zkrebalancer.gateway.membership import Membership
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.stored import StoredGroup, to_bytes
from zkrebalancer.protocol.calls import Content, Create, Delete, Get, SetContent

GROUP = StoredGroup(3, "consumer", "range", "m", is_assigned=True, members=())
BUCKET = bucket_of("a/group")


@pytest.fixture
def session() -> ModelSession:
    return ModelSession()


@pytest.mark.parametrize("damage", ["deleted", "overwritten"])
def test_a_gateway_whose_node_somebody_damages_announces_itself_again(session: ModelSession, damage: str) -> None:
    one = Membership(session, "gw", 1)
    one.refresh()
    path = f"{ALIVE}/{one.number}"
    session.do(Delete(path) if damage == "deleted" else SetContent(path, b"?"))
    one.refresh()
    assert one.addresses().gateways == {one.number: ("gw", 1)}
    assert isinstance(session.perform(Get(path)), Content)


@pytest.mark.parametrize("name", ["a%2fgroup", "%61%2Fgroup", "elsewhere", "%", "%FF"])
def test_a_node_that_is_no_group_of_its_bucket_is_left_out(session: ModelSession, name: str) -> None:
    Membership(session, "gw", 1).refresh()
    buckets = Buckets(session)
    bucket = bucket_of("") if name == "%" else BUCKET
    claim = buckets.claim(bucket, 0)
    assert claim is not None
    session.do(Create(f"{BUCKETS}/{bucket}/{name}", to_bytes(GROUP)))
    assert buckets.read_all(claim) == {}
    assert claim.names == set()
