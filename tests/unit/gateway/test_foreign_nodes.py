"""What others delete or write among the gateways' nodes disturbs no gateway, and no group but its own."""

from __future__ import annotations

import pytest

from tests.unit.gateway.model_session import ModelSession
from tests.unit.gateway.test_groups import asked, error_of, served
from zkrebalancer.gateway.buckets import Buckets
from zkrebalancer.gateway.layout import ALIVE, BUCKETS, OWNERS
from zkrebalancer.gateway.membership import Membership
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.stored import StoredConsumerGroup, StoredGroup, StoredTopic, to_bytes
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


@pytest.mark.parametrize("name", ["9" * 5_000, "\u0663", "03", "x"])
def test_a_node_beside_those_of_gateways_keeps_none_from_joining(session: ModelSession, name: str) -> None:
    """In `Membership._join`, take any digits for a number: Python converts at most 4,300 of them."""
    Membership(session, "gw", 1).refresh()
    session.do(Create(f"{ALIVE}/{name}", b"?"))
    other = Membership(session, "gw", 2)
    other.refresh()
    assert other.addresses().gateways == {0: ("gw", 1), 1: ("gw", 2)}


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[]", b"{}", b"null", b"\xff", b'{"gateway":1}'])
def test_a_claim_in_another_form_is_somebody_elses(session: ModelSession, content: bytes) -> None:
    """In `Buckets._is_own`, forget an error: the bucket's greenlet would end, and nobody would serve the bucket."""
    Membership(session, "gw", 1).refresh()
    session.do(Create(f"{OWNERS}/{BUCKET}", content))
    assert Buckets(session).claim(BUCKET, 0) is None
    session.do(Delete(f"{OWNERS}/{BUCKET}"))
    assert Buckets(session).claim(BUCKET, 0) is not None


def test_a_stored_group_that_cannot_be_used_is_named_with_what_to_do(
    session: ModelSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Its members get an error with which clients try again; once its node is deleted, they can join."""
    broken = StoredConsumerGroup(3, 3, (StoredTopic("t", b"no uuid", 2),), ())
    path = f"{BUCKETS}/{bucket_of('g')}/g"
    Membership(session, "gw", 1).refresh()
    session.do(Create(f"{BUCKETS}/{bucket_of('g')}", b"0"))
    session.do(Create(path, to_bytes(broken)))
    groups = served(session)
    (line,) = [record.getMessage() for record in caplog.records if path in record.getMessage()]
    assert "delete it" in line
    assert error_of(asked(groups)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    session.do(Delete(path))
    groups._load_again("g")
    assert error_of(asked(groups)) is ErrorCode.MEMBER_ID_REQUIRED
