"""A group whose writes ZooKeeper refuses keeps its clients: they go on, or a classic group's wait in a rebalance."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import gevent
import pytest

from tests.unit.gateway.model_session import ModelSession
from zkrebalancer.gateway.buckets import Buckets
from zkrebalancer.gateway.groups import LONGEST_REFUSED_S, REFUSED_SHOWN_S, Groups
from zkrebalancer.gateway.membership import Membership
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.nodes import node_path
from zkrebalancer.group_protocol.effects import Event, Store, Stored
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.placement import BUCKETS as BUCKET_COUNT
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.group_protocol.stored import StoredGroup
from zkrebalancer.protocol.calls import Call, Delete, Refusal, Refused, Reply
from zkrebalancer.runtime import clock

GROUP = StoredGroup(3, "consumer", "range", "m", is_assigned=True, members=())
REFUSED = [Refused(Refusal.NO_AUTH)]
WHY = f"ZooKeeper refuses {node_path('g')}: no permission"


@pytest.fixture
def session() -> ModelSession:
    found = ModelSession()
    Membership(found, "gw", 1).refresh()
    return found


@pytest.fixture
def groups(session: ModelSession) -> Groups:
    """Return groups of which all are served."""
    found = Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None)
    found.serve(0, [0])
    gevent.sleep(0)
    assert found.served_buckets == BUCKET_COUNT
    return found


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, Event]]:
    """Return what the machine will hear, and after how many seconds."""
    found: list[tuple[float, Event]] = []
    monkeypatch.setattr(gevent, "spawn_later", lambda seconds, _step, event: found.append((seconds, event)))
    return found


def test_a_group_hears_of_it_late_and_is_named(
    session: ModelSession,
    groups: Groups,
    later: list[tuple[float, Event]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In `Groups._store`, pass the refusal on at once: each group writes without a rest, with a line for each try."""
    for number in range(5):
        session.refusals = list(REFUSED)
        groups._store(Store(number, "g", GROUP))
    assert [seconds for seconds, _event in later] == [1.0, 2.0, 4.0, LONGEST_REFUSED_S, LONGEST_REFUSED_S]
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # at another one, clients in Java end their application
    assert [event for _seconds, event in later] == [Stored(number, code) for number in range(5)]
    assert caplog.messages == [f"group g could not be stored: {WHY}"]
    assert groups.refusals() == [f"group g is not stored: {WHY}"]
    now_us = clock.steady_us() + int(REFUSED_SHOWN_S * 1e6) + 1_000_000
    monkeypatch.setattr("zkrebalancer.gateway.groups.clock.steady_us", lambda: now_us)
    assert groups.refusals() == []  # it may have ended, or have nothing to store any more


def test_a_group_that_is_stored_again_is_no_fault(
    session: ModelSession, groups: Groups, later: list[tuple[float, Event]]
) -> None:
    """In `Groups._store`, do not forget the refusal: the gateway is not ready for another minute."""
    session.refusals = list(REFUSED)
    groups._store(Store(1, "g", GROUP))
    groups._store(Store(2, "g", GROUP))
    assert groups.refusals() == []
    assert len(later) == 1


def test_a_broken_connection_is_no_refusal(
    session: ModelSession, groups: Groups, later: list[tuple[float, Event]]
) -> None:
    """In `_refusal_of`, do not look whether the outcome is known: the group has to hear of it with the next session."""
    session.refusals = [Refused(Refusal.CONNECTION_LOST)]
    groups._store(Store(1, "g", GROUP))
    assert (groups.refusals(), later) == ([], [])


def test_a_deletion_that_is_refused_is_told_and_the_node_stays_known(session: ModelSession) -> None:
    """In `Buckets.store`, forget the node: the next group of that name makes the gateway lose its bucket."""
    buckets, told = Buckets(session), list[tuple[ErrorCode, str]]()
    claim = buckets.claim(bucket_of("g"), 0)
    assert claim is not None
    for content, refusals in ((GROUP, []), (None, REFUSED), (GROUP, [])):
        session.refusals = list(refusals)
        buckets.store(claim, "g", content, lambda *result: told.append(result))
    assert told == [(ErrorCode.NONE, ""), (ErrorCode.UNKNOWN_SERVER_ERROR, WHY), (ErrorCode.NONE, "")]


@pytest.fixture
def replies(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Return what delivers the replies, in order, to calls that are performed at once."""
    found: list[Callable[[], None]] = []
    request = ModelSession.request

    def later(self: ModelSession, call: Call, when_replied: Callable[[Reply], None]) -> None:
        request(self, call, lambda reply: found.append(partial(when_replied, reply)))

    assert groups.is_settled
    monkeypatch.setattr(ModelSession, "request", later)
    return found


@pytest.mark.parametrize(
    ("is_stored", "refused", "behind", "expected"),
    [
        (False, GROUP, GROUP, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (True, None, GROUP, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (False, GROUP, None, ErrorCode.NONE),
    ],
)
def test_a_write_behind_a_refused_one_costs_no_other_group_its_gateway(
    session: ModelSession,
    groups: Groups,
    replies: list[Callable[[], None]],
    *,
    is_stored: bool,
    refused: StoredGroup | None,
    behind: StoredGroup | None,
    expected: ErrorCode,
) -> None:
    """In `Buckets.store`, do not look which operation was refused: every group of the bucket is read anew."""
    claim, told = groups._claims[bucket_of("g")], list[ErrorCode]()

    def write(*contents: StoredGroup | None) -> None:
        for content in contents:
            groups._buckets.store(claim, "g", content, lambda error, _refusal: told.append(error))
        for deliver in replies:
            deliver()
        replies.clear()

    if is_stored:
        write(GROUP)
    session.refusals = [Refused(Refusal.NO_AUTH, 1)]
    write(refused, behind)
    assert told[-1] is expected
    write(GROUP)
    assert told[-1] is ErrorCode.NONE


def test_a_group_whose_node_somebody_deletes_is_stored_again(session: ModelSession, groups: Groups) -> None:
    """In `Buckets.store`, take it for a claim of another gateway, as above."""
    groups._store(Store(1, "g", GROUP))
    session.do(Delete(node_path("g")))
    for number in (2, 3):
        groups._store(Store(number, "g", GROUP))
    assert groups.served_buckets == BUCKET_COUNT
    assert node_path("g") in session.model.nodes
