"""Claims of buckets on a real ZooKeeper: one owner at a time, and no writes by a former one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent.event import AsyncResult

from tests.support.deadlines import WITHIN_S
from zkrebalancer.gateway.addresses import Addresses
from zkrebalancer.gateway.buckets import Buckets, Claim
from zkrebalancer.gateway.groups import Groups
from zkrebalancer.gateway.layout import BUCKETS, OWNERS
from zkrebalancer.gateway.membership import DisplacedError, Membership
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.session import Session
from zkrebalancer.group_protocol.answers import Answer, ListGroupsAnswer
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.placement import BUCKETS as SERVED
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.requests import ListGroupsRequest
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.group_protocol.stored import StoredGroup, StoredMember
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol.calls import Content, Create, Delete, Get, Multi, Refusal, Refused
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError
from zkrebalancer.runtime.zk import BlockingZk

SESSION_MS = 10_000  # no test waits for the end of a session
BUCKET = bucket_of("a/group")
GROUP = StoredGroup(3, "consumer", "range", "m", is_assigned=True, members=())
_roots = itertools.count(1)
Open = Callable[[], Session]


def nothing() -> None:
    """Note nothing."""


@pytest.fixture
def connect(shared_cluster: LocalCluster) -> Iterator[Open]:
    """Return a function that opens a session; all sessions share a separate tree."""
    root = f"/claims-{next(_roots)}"
    with BlockingZk(shared_cluster.zookeeper) as zk:
        zk.perform(Multi((Create(root),)))
    sessions: list[Session] = []
    renewals: list[gevent.Greenlet[..., None]] = []

    def opened() -> Session:
        session = Session(f"{shared_cluster.zookeeper}{root}", SESSION_MS, lambda _event: None, lambda _path: None)
        session.start()
        sessions.append(session)
        renewals.append(gevent.spawn(session.renew_lease))
        with gevent.Timeout(WITHIN_S):
            while not session.has_lease:
                gevent.sleep(0.01)
        return session

    yield opened
    gevent.killall(renewals)
    for session in sessions:
        session.close()


def joined(session: Session, port: int) -> Membership:
    one = Membership(session, "gw", port)
    one.refresh()
    return one


def claimed(buckets: Buckets, bucket: int, number: int) -> Claim:
    claim = buckets.claim(bucket, number)
    assert claim is not None
    return claim


def stored(buckets: Buckets, claim: Claim, content: StoredGroup | None) -> ErrorCode | None:
    result: AsyncResult[ErrorCode] = AsyncResult()
    buckets.store(claim, "a/group", content, lambda error, _refusal: result.set(error))
    return result.get(timeout=WITHIN_S)


def test_a_bucket_has_one_owner_until_it_is_given_up(connect: Open) -> None:
    first, second = connect(), connect()
    joined(first, 1)
    joined(second, 2)
    claimed(Buckets(first), BUCKET, 0)
    assert Buckets(second).claim(BUCKET, 1) is None
    Buckets(first).give_up([BUCKET])
    claimed(Buckets(second), BUCKET, 1)
    Buckets(first).give_up([BUCKET])  # it is another's now
    assert isinstance(second.perform(Get(f"{OWNERS}/{BUCKET}")), Content)


def test_what_is_stored_is_read_by_the_next_owner_and_the_former_one_cannot_write(connect: Open) -> None:
    first, second = connect(), connect()
    joined(first, 1)
    old = Buckets(first)
    claim = claimed(old, BUCKET, 0)
    assert stored(old, claim, GROUP) is ErrorCode.NONE
    new = Buckets(second)  # started again at the same address, so with the same number
    taken = claimed(new, BUCKET, 0)
    assert new.read_all(taken) == {"a/group": GROUP}
    assert stored(old, claim, None) is ErrorCode.NOT_COORDINATOR
    assert new.read_all(taken) == {"a/group": GROUP}
    assert stored(new, taken, None) is ErrorCode.NONE
    assert new.read_all(taken) == {}


def test_a_claim_ends_with_its_session(connect: Open) -> None:
    first, second = connect(), connect()
    joined(first, 1)
    claimed(Buckets(first), BUCKET, 0)
    first.close()
    with gevent.Timeout(WITHIN_S):
        while Buckets(second).claim(BUCKET, 1) is None:
            gevent.sleep(0.01)
    assert isinstance(second.perform(Get(f"{OWNERS}/{BUCKET + 1}")), Refused)


def test_numbers_slots_and_who_is_alive(connect: Open) -> None:
    sessions = [connect() for _ in range(3)]
    one, two = joined(sessions[0], 1), joined(sessions[1], 2)
    one.add_brokers([1001, 5])
    for each in (one, two):
        each.refresh()
    alive = {0: ("gw", 1), 1: ("gw", 2)}
    assert (one.number, two.number) == (0, 1)
    assert one.addresses() == Addresses("gw", 1, {5: 0, 1001: 1}, alive)
    two.add_brokers([5])
    assert two.addresses() == Addresses("gw", 2, {5: 0, 1001: 1}, alive)
    again = joined(sessions[2], 2)  # at the second one's address
    assert again.number == 1
    with pytest.raises(DisplacedError, match="another gateway announces gw:2 too"):
        two.refresh()


def test_a_node_that_no_gateway_wrote_is_left_out(connect: Open) -> None:
    session = connect()
    joined(session, 1)
    buckets = Buckets(session)
    claim = claimed(buckets, BUCKET, 0)
    assert stored(buckets, claim, GROUP) is ErrorCode.NONE
    bad = next(name for name in map(str, itertools.count()) if bucket_of(name) == BUCKET)
    assert not isinstance(session.perform(Multi((Create(f"{BUCKETS}/{BUCKET}/{bad}", b"?"),))), Refused)
    assert buckets.read_all(claim) == {"a/group": GROUP}
    assert bad in claim.names  # a group of this name replaces it
    assert session.perform(Multi((Create(f"{BUCKETS}/{BUCKET}/{bad}"),))) == Refused(Refusal.NODE_EXISTS, 0)


def test_a_bucket_that_somebody_deletes_is_claimed_again(connect: Open) -> None:
    session = connect()
    joined(session, 1)
    buckets = Buckets(session)
    claim = claimed(buckets, BUCKET, 0)
    stored(buckets, claim, GROUP)
    session.perform(Multi((Delete(f"{BUCKETS}/{BUCKET}/a%2Fgroup"),)))
    session.perform(Multi((Delete(f"{BUCKETS}/{BUCKET}"),)))
    assert stored(buckets, claim, GROUP) is ErrorCode.NOT_COORDINATOR  # then the gateway claims it again
    again = claimed(buckets, BUCKET, 0)
    assert buckets.read_all(again) == {}
    assert stored(buckets, again, GROUP) is ErrorCode.NONE


def test_a_group_that_somebody_deletes_is_written_again(connect: Open) -> None:
    """The bucket stays: its other groups have nothing to do with that."""
    session = connect()
    joined(session, 1)
    buckets = Buckets(session)
    claim = claimed(buckets, BUCKET, 0)
    stored(buckets, claim, GROUP)
    session.perform(Multi((Delete(f"{BUCKETS}/{BUCKET}/a%2Fgroup"),)))
    assert stored(buckets, claim, GROUP) is ErrorCode.COORDINATOR_NOT_AVAILABLE  # its client tries again
    assert stored(buckets, claim, GROUP) is ErrorCode.NONE
    assert buckets.read_all(claim) == {"a/group": GROUP}


@pytest.mark.parametrize("content", [b"", b"x", b"9" * 5_000, b"-1", b"\xb2"])
def test_a_bucket_with_an_unreadable_epoch_is_claimed(connect: Open, content: bytes) -> None:
    session = connect()
    joined(session, 1)
    session.perform(Multi((Create(f"{BUCKETS}/{BUCKET}", content),)))
    buckets = Buckets(session)
    assert stored(buckets, claimed(buckets, BUCKET, 0), GROUP) is ErrorCode.NONE


def test_a_group_that_is_too_large_to_be_stored_is_told_so(connect: Open) -> None:
    session = connect()
    joined(session, 1)
    buckets = Buckets(session)
    assignment = random.Random(1).randbytes(2 << 20)
    large = StoredMember("m", None, "c", "h", 10_000, 10_000, (), assignment)
    group = StoredGroup(3, "consumer", "range", "m", is_assigned=True, members=(large,))
    claim = claimed(buckets, BUCKET, 0)
    assert stored(buckets, claim, group) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert stored(buckets, claim, GROUP) is ErrorCode.NONE


def test_a_claim_that_zookeeper_refuses_is_tried_again(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    session = connect()
    joined(session, 1)
    refusals, claim = [2], Buckets.claim

    def refused_twice(self: Buckets, bucket: int, number: int) -> Claim | None:
        if refusals[0]:
            refusals[0] -= 1
            raise ZooKeeperUnavailableError("no permission")
        return claim(self, bucket, number)

    monkeypatch.setattr(Buckets, "claim", refused_twice)
    groups = Groups(session, GroupProtocolSettings(), Metrics(), nothing, nothing)
    groups.serve(0, [0])
    with gevent.Timeout(WITHIN_S):
        while not groups.is_settled:
            gevent.sleep(0.01)
    assert groups.served_buckets == SERVED


def test_a_group_that_fails_is_served_again_with_what_is_stored(
    connect: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = connect()
    joined(session, 1)
    bucket = bucket_of("a/group")
    buckets = Buckets(session)
    stored(buckets, claimed(buckets, bucket, 0), GROUP)
    groups = Groups(session, GroupProtocolSettings(), Metrics(), nothing, nothing)
    groups.serve(0, [0])
    with gevent.Timeout(WITHIN_S):
        while not groups.is_settled:
            gevent.sleep(0.01)

    def listed() -> list[str]:
        answered: AsyncResult[Answer] = AsyncResult()
        groups.receive(ListGroupsRequest(), 4, ("c", "h"), answered.set)
        answer = answered.get(timeout=WITHIN_S)
        assert isinstance(answer, ListGroupsAnswer)
        return [one.group_id for one in answer.groups]

    def fails(_group: object) -> None:
        raise ZeroDivisionError("a planted bug")

    assert listed() == ["a/group"]
    with monkeypatch.context() as patch:
        patch.setattr("zkrebalancer.group_protocol.classic_requests.listed", fails)
        assert listed() == []
    assert [
        "a planted bug" in record.message
        for record in caplog.records
        if record.levelname == "ERROR" and not record.name.startswith("kafka.")
    ] == [True]
    with gevent.Timeout(WITHIN_S):
        while not listed():
            gevent.sleep(0.01)
    assert listed() == ["a/group"]
