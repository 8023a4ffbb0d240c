"""What others delete or write among the gateways' nodes disturbs no gateway, and no group but its own."""

from __future__ import annotations

import pytest

from tests.unit.gateway.model_session import ModelSession
from tests.unit.gateway.test_groups import asked, error_of, served
from zkrebalancer.gateway.buckets import Buckets
from zkrebalancer.gateway.layout import ALIVE, BUCKETS, LAYOUT, OWNERS, Layout, decode, encode
from zkrebalancer.gateway.membership import Membership, UnfinishedRestoreError
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.stored import StoredConsumerGroup, StoredGroup, StoredTopic, to_bytes
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Children,
    Content,
    Create,
    Delete,
    Get,
    ListChildren,
    Refusal,
    Refused,
    SetContent,
)
from zkrebalancer.protocol.errors import NodeContentError, ZooKeeperUnavailableError

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


NO_LAYOUTS = [
    b"",
    b"[" * 100_000,
    b"{}",
    b'{"version": 2}',
    b'{"version": 1, "brokers": {"1": 0, "2": 0}, "gateways": {}}',
]


@pytest.mark.parametrize("content", NO_LAYOUTS)
def test_a_gateway_goes_on_with_the_layout_that_it_read_last(session: ModelSession, content: bytes) -> None:
    """In `Membership._join`, let NodeContentError through: at its next session, every gateway would end."""
    one, other = Membership(session, "gw", 1), Membership(session, "gw", 2)
    one.refresh()
    other.refresh()
    other.add_brokers([7])
    session.do(SetContent(LAYOUT, content))
    session.renew()
    other.refresh()
    assert (other.number, other.addresses().slots) == (1, {7: 0})
    assert other.fault
    with pytest.raises(NodeContentError, match=LAYOUT):
        other.add_brokers([7, 8])  # nothing is written over what may be of a later version
    with pytest.raises(NodeContentError, match=LAYOUT):
        Membership(session, "gw", 3).refresh()


def test_a_deleted_layout_is_written_again_as_it_was(session: ModelSession) -> None:
    """In `Membership._create_roots`, begin with an empty layout: ports and numbers would change below the clients."""
    one, other = Membership(session, "gw", 1), Membership(session, "gw", 2)
    one.refresh()
    other.refresh()
    other.add_brokers([7])
    other.add_brokers([6, 7])
    one.refresh()
    session.do(SetContent(LAYOUT, b"?"))
    one.refresh()
    session.do(Delete(LAYOUT))
    one.refresh()
    found = session.perform(Get(LAYOUT))
    assert isinstance(found, Content)
    assert decode(found.content) == Layout({7: 0, 6: 1}, {"gw:1": 0, "gw:2": 1}, "upstream")
    assert not one.fault


def test_a_gateway_that_waits_for_a_restore_writes_no_layout(session: ModelSession) -> None:
    one = Membership(session, "gw", 1)
    one.refresh()
    before = session.perform(Get(LAYOUT))
    session.renew()
    session.do(Create(paths.COORDINATOR), Create(paths.RESTORE))
    with pytest.raises(UnfinishedRestoreError):
        one.refresh()
    one.add_brokers([7])
    assert session.perform(Get(LAYOUT)) == before
    session.do(Delete(paths.RESTORE))
    one.refresh()
    one.add_brokers([7])
    assert one.addresses().slots == {7: 0}


def test_a_gateway_follows_a_layout_that_gives_it_another_number(session: ModelSession) -> None:
    """In `Membership._join`, keep the node of the former number: its buckets would be served by nobody."""
    one, other = Membership(session, "gw", 1), Membership(session, "gw", 2)
    one.refresh()
    other.refresh()
    session.do(SetContent(LAYOUT, encode(Layout({}, {"gw:2": 0, "x:1": 1}))))
    one.refresh()
    assert one.number == 2
    listed = session.perform(ListChildren(ALIVE))
    assert isinstance(listed, Children)
    assert sorted(listed.names) == ["1", "2"]


def test_a_gateway_leaves_the_number_that_another_one_has_taken(session: ModelSession) -> None:
    """In `Membership._withdraw`, delete whatever is there: the other one's clients are sent away until it looks."""
    one, other = Membership(session, "gw", 1), Membership(session, "gw", 2)
    one.refresh()
    session.do(SetContent(LAYOUT, encode(Layout({}, {"gw:2": 0, "x:1": 1}))))
    other.refresh()
    before = session.perform(Get(f"{ALIVE}/0"))
    one.refresh()
    assert (one.number, other.number) == (2, 0)
    assert session.perform(Get(f"{ALIVE}/0")) == before


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


@pytest.mark.parametrize("folder", [ALIVE, BUCKETS, OWNERS])
def test_a_folder_that_somebody_deletes_is_made_again(session: ModelSession, folder: str) -> None:
    """In `Membership._read_alive` or `Buckets.claim`, expect it to be there: nothing would ever be taken over."""
    one = Membership(session, "gw", 1)
    one.refresh()
    session.do(*(Delete(f"{folder}/{name}") for name in session.model.children(folder)), Delete(folder))
    one.refresh()
    assert one.addresses().gateways == {0: ("gw", 1)}
    buckets = Buckets(session)
    assert any(buckets.claim(BUCKET, 0) for _try in range(2))


@pytest.mark.parametrize("port", ["9" * 5_000, "99999", "\u0663"])
def test_an_address_in_the_layout_that_is_none_leaves_its_gateway_out(session: ModelSession, port: str) -> None:
    """In `Membership._take_from_layout`, take any digits for a port: every gateway would end."""
    one = Membership(session, "gw", 1)
    one.refresh()
    session.do(SetContent(LAYOUT, encode(Layout({}, {"gw:1": 0, f"x:{port}": 1, "y:2": 2}))))
    for number in (1, 2):
        session.do(Create(f"{ALIVE}/{number}", b"?"))
        session.forbidden.add(f"{ALIVE}/{number}")
    one.refresh()
    assert one.addresses().gateways == {0: ("gw", 1), 2: ("y", 2)}


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[]", b"{}", b"null", b"\xff", b'{"gateway":1}'])
def test_a_claim_in_another_form_is_somebody_elses(session: ModelSession, content: bytes) -> None:
    """In `Buckets._is_own`, forget an error: the bucket's greenlet would end, and nobody would serve the bucket."""
    Membership(session, "gw", 1).refresh()
    session.do(Create(f"{OWNERS}/{BUCKET}", content, ephemeral=True))
    session.renew()
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


BARRIER = (Create(paths.COORDINATOR), Create(paths.RESTORE))


def test_a_gateway_writes_nothing_into_a_tree_that_is_being_replaced(session: ModelSession) -> None:
    """In `Membership._join`, look only after the announcement."""
    session.do(Create(paths.CONSUMERS), *BARRIER)
    before = dict(session.model.nodes)
    one = Membership(session, "gw", 1)
    with pytest.raises(UnfinishedRestoreError, match="because a restore runs, or was interrupted"):
        one.refresh()
    assert session.model.nodes == before
    session.do(Delete(paths.RESTORE), Delete(paths.COORDINATOR))
    one.refresh()
    assert one.number == 0


def test_a_gateway_gives_way_to_a_restore_that_has_begun_before_it_was_announced(
    session: ModelSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Membership._join`, do not look again: the restore has seen no gateway, and this one would serve groups."""
    one = Membership(session, "gw", 1)
    announce = one._announce

    def begin_before(number: int) -> None:
        session.do(*BARRIER)
        announce(number)

    monkeypatch.setattr(one, "_announce", begin_before)
    with pytest.raises(UnfinishedRestoreError):
        one.refresh()
    assert session.model.children(paths.LIVE_GATEWAYS) == []


@pytest.mark.parametrize("lost", ["the announcement's reply", "the second look"])
def test_a_gateway_that_cannot_look_again_gives_way_at_its_next_look(
    session: ModelSession, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """In `Membership._join`, note no announcement: each later look keeps it, and the restore refuses for ever."""
    one = Membership(session, "gw", 1)
    announce = one._announce

    def break_after(number: int) -> None:
        session.do(*BARRIER)
        announce(number)
        if lost == "the second look":
            session.refusals = [Refused(Refusal.CONNECTION_LOST)]
        else:
            raise ZooKeeperUnavailableError("the connection broke")

    monkeypatch.setattr(one, "_announce", break_after)
    with pytest.raises(ZooKeeperUnavailableError):
        one.refresh()
    assert session.model.children(paths.LIVE_GATEWAYS) == ["0"]
    with pytest.raises(UnfinishedRestoreError):
        one.refresh()
    assert session.model.children(paths.LIVE_GATEWAYS) == []
