"""Brokers are tried in turn, and one that hangs delays nobody."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast
from unittest import mock

import gevent
import pytest
from gevent.event import Event

from tests.support.deadlines import WITHIN_S
from zkrebalancer.gateway import dialing
from zkrebalancer.gateway.dialing import Address, Dialer, LinkError, first_of, name_of
from zkrebalancer.gateway.security import Upstream


def fails() -> str:
    raise LinkError("refused")


def test_the_first_broker_that_answers_is_taken_and_others_are_not_tried() -> None:
    tried: list[str] = []

    def answers(name: str) -> Callable[[], str]:
        def answer() -> str:
            tried.append(name)
            return name

        return answer

    assert first_of([fails, answers("b"), answers("c")], tried.append) == "b"
    assert tried == ["b"]


def test_if_all_fail_the_last_reason_is_told() -> None:
    with pytest.raises(LinkError, match="refused"):
        first_of([fails, fails], print)
    with pytest.raises(LinkError, match="no broker is known"):
        first_of([], print)


def test_a_broker_that_hangs_is_overtaken_and_its_late_answer_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "HEAD_START_S", 0.001)
    wakes, ended = Event(), Event()
    discarded: list[str] = []

    def hangs() -> str:
        wakes.wait()
        return "late"

    def discard(result: str) -> None:
        discarded.append(result)
        ended.set()

    assert first_of([hangs, lambda: "quick"], discard) == "quick"
    assert discarded == []
    wakes.set()
    assert ended.wait(WITHIN_S)
    assert discarded == ["late"]


def test_an_error_that_is_no_failure_to_connect_is_not_hidden() -> None:
    def broken() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), gevent.Timeout(20):
        first_of([broken], print)


def test_a_broker_whose_name_nobody_can_look_up_now_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Dialer.dial`, catch OSError and UnicodeError only: what keeps the brokers known would end the gateway."""

    def no_thread(_address: Address) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(dialing, "create_connection", no_thread)
    with pytest.raises(LinkError, match="h:1 cannot be reached: can't start new thread"):
        Dialer(Upstream()).dial(("h", 1))


def test_a_broker_that_cannot_be_reached_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Dialer.dial`, only raise: nobody learns that the gateway does not know the names that brokers announce."""

    def unknown(_address: Address) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(dialing, "create_connection", unknown)
    dialer = Dialer(Upstream())
    for _ in range(3):
        with pytest.raises(LinkError):
            dialer.dial(("internal", 9092))
    assert caplog.messages == ["the broker at internal:9092 cannot be reached: Name or service not known"]


def test_a_connection_whose_tls_fails_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Dialer.dial`, only raise: while a broker's certificate is refused, each try costs a file."""
    opened = mock.Mock()
    monkeypatch.setattr(dialing, "create_connection", lambda _address: opened)
    context = mock.Mock(wrap_socket=mock.Mock(side_effect=OSError("certificate has expired")))
    with pytest.raises(LinkError, match="certificate has expired"):
        Dialer(cast("Upstream", SimpleNamespace(context=context))).dial(("h", 1))
    opened.close.assert_called_once_with()


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    assert (name_of(("::1", 9092)), name_of(("h", 1))) == ("[::1]:9092", "h:1")
