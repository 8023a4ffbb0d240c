"""A region whose session can never begin fails with the reason, instead of waiting."""

from __future__ import annotations

import gc
from typing import Any, cast
from unittest import mock

import pytest
from confluent_kafka import Consumer

from consumer_agent.region import ForcedRegion, session
from consumer_agent.region.classic_source import ClassicSource
from consumer_agent.region.session import LOST, MAX_WAIT_S, RegionSession
from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from zkrebalancer.protocol.calls import Get, Lost, Refusal, Refused
from zkrebalancer.protocol.errors import ConfigurationError


def test_a_password_file_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `RegionSession._run`, let the error end the thread: the loop waits for ever."""
    monkeypatch.setenv("ZKREBALANCER_ZOOKEEPER_USER", "orders")
    monkeypatch.setenv("ZKREBALANCER_ZOOKEEPER_PASSWORD_FILE", "/missing")
    client = Consumer(
        {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "enable.auto.commit": False, "log_level": 0}
    )
    with (
        ForcedRegion(
            client,
            ["t"],
            zookeeper="127.0.0.1:1",
            group="g",
            name="counts",
            member="m",
            on_checkpoint=lambda _checkpoint: None,
            on_reset=lambda _checkpoint: None,
        ) as region,
        pytest.raises(ConfigurationError, match="/missing: cannot be read: No such file"),
    ):
        next(iter(region))


def new_session(monkeypatch: pytest.MonkeyPatch | None = None) -> RegionSession:
    if monkeypatch is not None:
        monkeypatch.setattr(session, "CONNECT_TIMEOUT_MS", 0)
    return RegionSession("127.0.0.1:1", None, 1_000, "/order", call_timeout_s=1.0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("what", "failure"),
    [
        ("consumer_agent.region.session.RegionSession._round", RuntimeError("a bug")),
        ("consumer_agent.region.session.Flag", MemoryError("no memory")),
        ("os.open", OSError(24, "Too many open files")),
    ],
)
def test_the_cause_is_told_if_the_thread_ends(what: str, failure: Exception) -> None:
    """Otherwise the loop over the region would wait for ever, without a word."""
    member = new_session()
    with mock.patch(what, side_effect=failure):
        member.start()
        member._thread.join(WITHIN_S)
    assert str(failure) in str(member.failure)
    assert member.perform([Get("/order")]) == [LOST]


def test_a_server_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    member = new_session(monkeypatch)
    member.start()
    wait_until(lambda: caplog.messages, "a line in the log")
    member.close()
    assert caplog.messages == ["no ZooKeeper answered at 127.0.0.1:1 within 0 s; still trying"]


def test_a_thread_without_a_session_waits_for_one() -> None:
    """In `_round`, let the time of the next beat count between two sessions: it spins, a thousand times a second."""
    member = new_session()
    member._flag, member._was_connected = mock.Mock(), True
    member._round(mock.Mock())
    member._flag.wait.assert_called_once_with(MAX_WAIT_S)


def test_an_order_that_may_not_be_read_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    member = new_session()
    for reply in (Refused(Refusal.NO_NODE), *[Refused(Refusal.NO_AUTH)] * 2):
        member._order_read(0, reply)
    (told,) = caplog.messages
    assert "ZooKeeper refuses /order: " in told
    assert "right READ is missing" in told


@pytest.mark.parametrize(("sent_ms", "is_fresh"), [(9_000, True), (6_001, True), (6_000, False), (2_000, False)])
def test_a_session_is_fresh_from_when_it_asked_not_from_the_answer(
    monkeypatch: pytest.MonkeyPatch, sent_ms: int, is_fresh: bool
) -> None:
    """In `_order_read`, count from now: an answer that was under way for long may come when the session is over."""
    member = new_session()
    member._timeout_ms = 6_000
    monkeypatch.setattr(session, "now_ms", lambda: 10_000)
    member._order_read(sent_ms, Refused(Refusal.NO_NODE))
    assert member.is_fresh is is_fresh


def test_after_its_end_a_session_is_not_fresh_and_has_no_order() -> None:
    """However recent its last answer was: the leader may have noticed the end."""
    member = new_session()
    member.order, member._fresh_until_ms = mock.Mock(), 2**60
    member._handle(Lost())
    found: tuple[object, ...] = member.is_fresh, member.order, member.session_id, member.ends
    assert found == (False, None, None, 1)


def lose(regions: list[ForcedRegion]) -> None:
    regions.clear()
    gc.collect()


def test_a_region_that_is_dropped_ends_its_session_and_its_event_thread() -> None:
    """In `Rounds`, set no finalizer: the member stays registered for the process's life, and voids each checkpoint."""
    client = Consumer(
        {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "enable.auto.commit": False, "log_level": 0}
    )
    handlers: dict[str, Any] = {"on_checkpoint": mock.Mock(), "on_reset": mock.Mock()}
    regions = [ForcedRegion(client, ["t"], zookeeper="127.0.0.1:1", group="g", name="counts", member="m", **handlers)]
    session, source = regions[0]._rounds._session, cast("ClassicSource", regions[0]._rounds._source)
    session.start()
    source._start()
    with pytest.warns(ResourceWarning, match=r"member m of region counts was dropped without close\(\)"):
        lose(regions)
    for thread in (session._thread, source._thread):
        thread.join(WITHIN_S)
        assert not thread.is_alive
