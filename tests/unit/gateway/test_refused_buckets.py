"""A bucket that ZooKeeper refuses to a gateway is a fault of its own: the others are served and listed."""

from __future__ import annotations

import gevent
import pytest
from gevent.event import AsyncResult

from tests.support.deadlines import WITHIN_S
from tests.support.group_coordinator import Coordinator
from tests.unit.gateway.model_session import ModelSession
from zkrebalancer.gateway import service
from zkrebalancer.gateway.groups import CLAIM_RETRY_S, Groups
from zkrebalancer.gateway.layout import BUCKETS, OWNERS
from zkrebalancer.gateway.membership import Membership
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.pauses import FIRST_S
from zkrebalancer.gateway.service import Gateway, GatewayConfig
from zkrebalancer.gateway.session import CallRefusedError
from zkrebalancer.group_protocol.answers import Answer, ListGroupsAnswer
from zkrebalancer.group_protocol.effects import BucketLoading, BucketLost, BucketRefused
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.placement import BUCKETS as BUCKET_COUNT
from zkrebalancer.group_protocol.requests import ListGroupsRequest
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.protocol.calls import Refusal
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError


def groups_of(session: ModelSession) -> Groups:
    return Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None)


def list_error(groups: Groups) -> ErrorCode:
    answered: AsyncResult[Answer] = AsyncResult()
    groups.receive(ListGroupsRequest(), 4, ("c", "h"), answered.set)
    answer = answered.get(timeout=WITHIN_S)
    assert isinstance(answer, ListGroupsAnswer)
    return answer.error_code


@pytest.mark.parametrize("path", [f"{BUCKETS}/7", f"{OWNERS}/7"])
def test_the_other_buckets_are_served_and_listed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """In `Groups._claim_failed`, do not tell the machine; in `is_settled`, wait for the bucket: no group is listed."""
    monkeypatch.setattr("zkrebalancer.gateway.groups.CLAIM_RETRY_S", 0)
    monkeypatch.setattr("zkrebalancer.gateway.pauses.FIRST_S", 0)
    session = ModelSession()
    Membership(session, "gw", 1).refresh()
    session.forbidden.add(path)
    groups = groups_of(session)
    groups.serve(0, [0])
    for _ in range(5):
        gevent.sleep(0)
    assert groups.is_settled
    assert groups.served_buckets == BUCKET_COUNT - 1
    assert list_error(groups) is ErrorCode.NONE
    (fault,) = groups.refusals()
    assert fault.startswith("bucket 7 is not served: ")
    assert path in fault
    assert len(caplog.messages) == 1
    session.forbidden.clear()
    with gevent.Timeout(WITHIN_S):
        while groups.served_buckets < BUCKET_COUNT:
            gevent.sleep(0)
    assert (groups.refusals(), groups.is_settled) == ([], True)


def test_a_bucket_that_is_read_anew_is_waited_for_again() -> None:
    """In `Machine._lose`, go on to omit its groups from lists."""
    coordinator = Coordinator()

    def list_error() -> ErrorCode:
        return coordinator.ask(ListGroupsRequest(), ListGroupsAnswer, 4).error_code

    for event, expected in (
        (BucketLost(7), ErrorCode.NONE),
        (BucketLoading(7), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (BucketRefused(7), ErrorCode.NONE),
        (BucketLoading(7), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (BucketRefused(7), ErrorCode.NONE),
        (BucketLost(7), ErrorCode.NONE),
        (BucketLoading(7), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ):
        coordinator.step(event)
        assert list_error() is expected


def test_a_bucket_that_is_refused_is_asked_for_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    """In `Groups._claim_failed`, always wait for CLAIM_RETRY_S: 50 such buckets are 1,000 calls a second."""
    groups = groups_of(ModelSession())
    refused = CallRefusedError("ZooKeeper refused it", Refusal.NO_AUTH)
    assert [groups._claim_failed(7, refused) for _ in range(4)] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert caplog.messages == ["bucket 7 is not served yet: ZooKeeper refused it"]


@pytest.mark.parametrize(
    "error",
    [
        ZooKeeperUnavailableError("the connection broke"),
        CallRefusedError("somebody deleted the node", Refusal.NO_NODE),
    ],
)
def test_a_bucket_that_was_not_refused_is_asked_for_soon(error: ZooKeeperUnavailableError) -> None:
    """In `Groups._claim_failed`, count it as refused: lists would lack its groups, although they are soon served."""
    groups = groups_of(ModelSession())
    assert [groups._claim_failed(7, error) for _ in range(4)] == [CLAIM_RETRY_S] * 4
    assert groups.refusals() == []


def test_a_refused_bucket_makes_a_gateway_unready_and_does_not_keep_it_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `Gateway._beat`, report all faults: systemd ends the gateway every two minutes. In `_faults`, omit these."""
    monkeypatch.setattr(service, "Session", lambda *_: ModelSession())
    gateway = Gateway(GatewayConfig("z:1", ("gw", 1), "gw", [], None, 6_000), GroupProtocolSettings())
    session = gateway._session
    assert isinstance(session, ModelSession)
    session.forbidden |= {f"{BUCKETS}/7", f"{BUCKETS}/8"}
    gateway._keep_up()
    gateway._is_upstream_known = True
    gevent.sleep(0)
    (fault,) = gateway._faults()
    assert f"{BUCKETS}/7" in fault
    assert fault.endswith(", and 1 more")
    reported: list[tuple[bool, str]] = []

    def report(*, is_ready: bool, status: str) -> None:
        reported.append((is_ready, status))

    monkeypatch.setattr(gateway._vitals, "report", report)
    monkeypatch.setattr(gateway._vitals, "beat_s", 0)
    beat = gevent.spawn(gateway._beat)
    with gevent.Timeout(WITHIN_S):
        while not reported:
            gevent.sleep(0)
    beat.kill()
    assert reported[0] == (True, fault)


@pytest.mark.parametrize("is_claimed", [True, False])
def test_a_bucket_that_is_refused_no_more_is_waited_for(monkeypatch: pytest.MonkeyPatch, is_claimed: bool) -> None:
    """Another gateway may hold it then. In `Groups._claim`, or `_claim_failed`, keep it among the refused ones."""
    monkeypatch.setattr("zkrebalancer.gateway.groups.CLAIM_RETRY_S", 0)
    monkeypatch.setattr("zkrebalancer.gateway.pauses.FIRST_S", 0)
    session = ModelSession()
    Membership(session, "gw", 1).refresh()
    session.forbidden.add(f"{BUCKETS}/7")
    groups = groups_of(session)
    groups.serve(0, [0])
    with gevent.Timeout(WITHIN_S):
        while not groups.refusals():
            gevent.sleep(0)
    assert list_error(groups) is ErrorCode.NONE
    session.forbidden.clear()

    def other(bucket: int, _number: int) -> None:
        if not is_claimed:
            raise ZooKeeperUnavailableError("the connection broke")

    monkeypatch.setattr(groups._buckets, "claim", other)
    with gevent.Timeout(WITHIN_S):
        while groups.refusals():
            gevent.sleep(0)
    assert not groups.is_settled
    assert list_error(groups) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    groups.lose_all()
