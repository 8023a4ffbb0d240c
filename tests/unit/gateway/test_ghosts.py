"""Gateways' nodes that belong to no session, and those that may not be read: each concerns nothing but itself."""

from __future__ import annotations

import pytest

from tests.support.zk_model import Right
from tests.unit.gateway.model_session import ModelSession
from tests.unit.gateway.test_groups import served
from zkrebalancer.gateway import service
from zkrebalancer.gateway.buckets import Buckets
from zkrebalancer.gateway.layout import ALIVE, BUCKETS, LAYOUT, OWNERS, encode_alive
from zkrebalancer.gateway.membership import Membership
from zkrebalancer.gateway.service import Gateway, GatewayConfig
from zkrebalancer.gateway.session import CallRefusedError
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Content, Create, Delete, Get


@pytest.fixture
def session() -> ModelSession:
    return ModelSession()


def pair(session: ModelSession) -> tuple[Membership, Membership]:
    one, other = Membership(session, "gw", 1), Membership(session, "gw", 2)
    one.refresh()
    other.refresh()
    return one, other


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_gateway_of_a_copied_tree_gets_no_groups(
    session: ModelSession, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In `Membership._read_alive`, count a node without a session: its clients find nobody there."""
    one, other = pair(session)
    session.do(*(Delete(f"{ALIVE}/{gone}") for gone in {1, number} - {2}))
    session.do(Create(f"{ALIVE}/{number}", encode_alive("gw.production", 9192)))
    for _ in range(3):
        one.refresh()
    assert one.addresses().gateways == {0: ("gw", 1)}
    lines = [line for line in caplog.messages if "no session" in line]
    assert lines == [f"a gateway is left out: {ALIVE}/{number} belongs to no session"]
    other.refresh()  # it announces itself in the place of such a node
    assert set(other.addresses().gateways) == {0, 1}


def test_a_claim_of_a_copied_tree_keeps_nobody_from_serving(
    session: ModelSession, caplog: pytest.LogCaptureFixture
) -> None:
    """In `Buckets.claim`, leave such a node to its gateway, which is none: its groups would never be served."""
    Membership(session, "gw", 1).refresh()
    session.do(Create(f"{OWNERS}/7", b'{"version": 1, "gateway": 5, "epoch": 3}'))
    served(session)
    assert caplog.messages == [f"{OWNERS}/7 belongs to no session; it is removed"]
    node = session.perform(Get(f"{OWNERS}/7"))
    assert isinstance(node, Content)
    assert node.stat.ephemeral_owner == session.session_id


def test_a_claim_of_a_session_stays(session: ModelSession) -> None:
    """In `Buckets.claim`, remove it whoever made it: two gateways would take the bucket from each other."""
    Membership(session, "gw", 1).refresh()
    session.do(Create(f"{OWNERS}/7", b'{"version": 1, "gateway": 5, "epoch": 3}', ephemeral=True))
    session.renew()
    assert Buckets(session).claim(7, 0) is None


@pytest.mark.parametrize(
    ("name", "expected"), [("1", {0: ("gw", 1), 1: ("gw", 2)}), ("5", {0: ("gw", 1)}), ("x", {0: ("gw", 1)})]
)
def test_a_gateway_whose_node_may_not_be_read_keeps_no_other_from_serving(
    session: ModelSession, name: str, expected: dict[int, tuple[str, int]], caplog: pytest.LogCaptureFixture
) -> None:
    """In `Membership._read_alive`, fail: no gateway would take over groups. If it has a number, it serves its own."""
    one, _other = pair(session)
    session.do(Delete(f"{ALIVE}/1"))
    session.do(Create(f"{ALIVE}/{name}", b"?", ephemeral=True))
    session.forbidden.add(f"{ALIVE}/{name}")
    for _ in range(3):
        one.refresh()
    assert one.addresses().gateways == expected
    assert len([line for line in caplog.messages if ALIVE in line]) == 1


def test_a_gateway_that_may_not_read_its_own_node_says_so(session: ModelSession) -> None:
    """In `Membership._read_alive`, take its address from the layout: it would not see that it is displaced."""
    one, _other = pair(session)
    session.forbidden.add(f"{ALIVE}/0")
    with pytest.raises(CallRefusedError, match=f"{ALIVE}/0"):
        one.refresh()


def test_a_layout_that_may_not_be_read_is_kept_as_it_was(session: ModelSession) -> None:
    """In `Membership._has_number` or `_join`, fail: a right that is gone would end all placement."""
    one, other = pair(session)
    session.forbidden.add(LAYOUT)
    for _ in range(2):
        one.refresh()
        assert "no permission" in one.fault
        assert one.addresses().gateways == {0: ("gw", 1), 1: ("gw", 2)}
        session.renew()
        other.refresh()
    with pytest.raises(CallRefusedError):
        Membership(session, "gw", 3).refresh()  # it may try again


def test_a_gateway_that_may_create_no_folders_uses_those_that_are_there(session: ModelSession) -> None:
    """In `create_missing` or `Buckets.claim`, create without a look: after a session's end, no group was served."""
    one, _other = pair(session)
    assert Buckets(session).claim(7, 0) is not None
    session.model.denied |= {("", path, Right.CREATE) for path in ("/", paths.CONSUMERS, paths.GATEWAYS, BUCKETS)}
    session.renew()
    one.refresh()
    assert Buckets(session).claim(7, 0) is not None
    with pytest.raises(CallRefusedError):
        Buckets(session).claim(8, 0)  # it has no node yet


def test_a_gateway_that_may_not_go_on_says_so_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In `Gateway._keep_up`, log it each second."""
    monkeypatch.setattr(service, "Session", lambda *_: ModelSession())
    gateway = Gateway(GatewayConfig("z:1", ("gw", 1), "gw", [], None, 6_000), GroupProtocolSettings())
    session = gateway._session
    assert isinstance(session, ModelSession)
    session.forbidden.add(ALIVE)
    for _ in range(5):
        gateway._keep_up()
    assert len([line for line in caplog.messages if ALIVE in line]) == 1
