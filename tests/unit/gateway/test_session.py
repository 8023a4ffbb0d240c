"""A gateway's lease: it begins when the request that renews it is sent, and ends with the connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast
from unittest import mock

import gevent
import pytest

from zkrebalancer.gateway.session import RENEWALS_PER_LEASE, Session
from zkrebalancer.protocol.calls import (
    Connected,
    Content,
    Done,
    Get,
    Lost,
    ReadEach,
    Refusal,
    Refused,
    Replied,
    Reply,
    Stat,
    Suspended,
    ZooKeeperEvent,
)
from zkrebalancer.protocol.registration import lease_ms

TIMEOUT_MS = 6_000


class Clocked:
    """A session whose ZooKeeper and clock the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 1_000
        monkeypatch.setattr("zkrebalancer.gateway.session.ZkClient", mock.Mock())
        monkeypatch.setattr("zkrebalancer.gateway.session.clock.steady_us", lambda: self.now_ms * 1_000)
        self.session = Session("z:1", TIMEOUT_MS, lambda _: None, lambda _: None)
        self.renewing = gevent.spawn(self.session.renew_lease)

    def connect(self) -> None:
        self.session._handle(Connected(5, TIMEOUT_MS))
        gevent.sleep(0)

    def has_lease(self) -> bool:
        return self.session.has_lease

    def reply(self, reply: Reply) -> None:
        self.session._handle(Replied(max(self.session._waiting), reply))
        gevent.sleep(0)


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clocked]:
    found = Clocked(monkeypatch)
    gevent.sleep(0)
    yield found
    found.renewing.kill()


def test_a_lease_begins_when_its_renewal_is_sent(clocked: Clocked) -> None:
    clocked.connect()
    clocked.now_ms += lease_ms(TIMEOUT_MS) - 1
    assert not clocked.has_lease()
    clocked.reply(Done())
    assert clocked.has_lease()
    clocked.now_ms += 1
    assert not clocked.has_lease()


def test_a_lease_ends_with_the_connection(clocked: Clocked) -> None:
    clocked.connect()
    clocked.reply(Done())
    clocked.session._handle(Suspended())
    assert not clocked.has_lease()
    clocked.connect()  # what was confirmed on the former connection does not count
    assert not clocked.has_lease()


def test_after_a_broken_connection_the_lease_is_renewed_at_once(clocked: Clocked) -> None:
    """In `Session._pause`, sleep: no group is served for up to a quarter of a lease after each broken connection."""
    clocked.connect()
    clocked.reply(Done())
    clocked.session._handle(Suspended())
    clocked.connect()
    gevent.idle()
    clocked.reply(Done())
    assert clocked.has_lease()


def test_a_renewal_of_a_former_session_renews_nothing(clocked: Clocked) -> None:
    """In `renew_lease`, do not compare the sessions: the gateway would act on what its former session was told."""
    clocked.connect()
    clocked.session._handle(Connected(6, TIMEOUT_MS))
    clocked.reply(Done())
    assert not clocked.has_lease()


def test_a_lease_that_zookeeper_refuses_is_reported_once(
    clocked: Clocked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses = list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        gevent.sleep(0)

    clocked.connect()
    with monkeypatch.context() as patch:
        patch.setattr(clocked.session, "_pause", pause)
        for _ in range(3):
            clocked.session._handle(Replied(max(clocked.session._waiting), Refused(Refusal.NO_AUTH)))
            while not clocked.session._waiting:
                gevent.sleep(0)
    assert pauses == [lease_ms(TIMEOUT_MS) / 1_000 / RENEWALS_PER_LEASE] * 3
    assert not clocked.has_lease()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "refuses to check /" in caplog.text


def test_a_lease_ends_before_its_session() -> None:
    """In `lease_ms`, return more: agents and gateways would act on what others already have."""
    assert lease_ms(6_000) == 4_000


def test_a_closed_session_answers_nothing_so_that_nobody_asks_again_for_ever() -> None:
    session = Session("127.0.0.1:1", TIMEOUT_MS, lambda _: None, lambda _: None)  # it never connects
    asked: list[Reply] = []

    def again(reply: Reply) -> None:
        asked.append(reply)
        if len(asked) == 1:
            session.close()
        assert len(asked) < 10, "asked again for ever"
        session.request(Get("/"), again)

    session.request(Get("/"), again)
    assert asked == [Refused(Refusal.CONNECTION_LOST)]


def test_the_end_of_a_closed_session_is_reported_so_that_members_are_recorded_as_lost() -> None:
    changes: list[ZooKeeperEvent] = []
    session = Session("127.0.0.1:1", TIMEOUT_MS, changes.append, lambda _: None)
    session._handle(Connected(1, TIMEOUT_MS))
    session.close()
    session._handle(Suspended())
    session._handle(Lost())
    assert changes == [Connected(1, TIMEOUT_MS), Lost()]
    assert session.session_id == 0


def test_nodes_that_are_read_together_come_in_their_order(clocked: Clocked) -> None:
    """In `Session.read_each`, take replies as they come: those that were not sent when the connection broke, first."""
    reads = ReadEach(Get, "/a", ["x", "y", "z"])
    reading = gevent.spawn(clocked.session.read_each, reads)
    gevent.sleep(0)
    client = cast("mock.Mock", clocked.session._client)
    first_id, asked = client.request_each.call_args.args
    assert asked is reads
    for place in (2, 0, 1):
        clocked.session._handle(Replied(first_id + place, Content(b"%d" % place, Stat(0, 0, 0, 0))))
    assert reading.get(timeout=10) == [Content(b"%d" % place, Stat(0, 0, 0, 0)) for place in range(3)]
