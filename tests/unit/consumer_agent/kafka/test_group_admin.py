"""Requests to a group's coordinator end at their own limits, and the client that did not answer is closed."""

from __future__ import annotations

import threading
import time
import weakref
from concurrent.futures import Future
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException

from consumer_agent.kafka import group_admin
from consumer_agent.kafka.client import close_aside
from consumer_agent.kafka.group_admin import GroupAdmin
from consumer_agent.runtime.threads import Thread
from tests.support.deadlines import WITHIN_S
from tests.support.futures import ended
from tests.support.waiting import wait_until
from zkrebalancer.protocol import complaints
from zkrebalancer.runtime.kafka import UNREACHED_S

SOON_S, LATE_S = 0.05, 3_000.0


class Client:
    """Kafka's admin client: requests are named after what happens to them."""

    def __init__(self, _settings: object) -> None:
        self.held: list[Future[Any]] = []  # answered by the test
        clients.append(weakref.ref(self))

    def hold(self, _what: object, *, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout == UNREACHED_S
        self.held.append(Future())
        return {"g": self.held[-1]}

    def answer(self, what: list[object], *, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout == UNREACHED_S
        return {"g": ended(what[0])}

    def refuse(self, what: list[str], **_: float) -> dict[str, Future[Any]]:
        raise KafkaException(KafkaError(KafkaError._CONFLICT, what[0]))

    def interrupt(self, _what: object, **_: float) -> dict[str, Future[Any]]:  # as the C code does with Ctrl-C
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()


clients: list[weakref.ref[Client]] = []


def held_by(number: int) -> list[Future[Any]]:
    client = clients[number]()
    assert client is not None
    return client.held


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> GroupAdmin:
    clients.clear()
    monkeypatch.setattr(group_admin, "AdminClient", Client)
    admin = GroupAdmin({})
    admin.open()
    return admin


def error_of(answer: Future[Any]) -> KafkaError:
    error = answer.exception(WITHIN_S)
    assert isinstance(error, KafkaException)
    found: KafkaError = error.args[0]
    return found


def threads() -> int:
    return sum(thread.name == "consumer-agent-group-requests" for thread in threading.enumerate())


def test_at_its_limit_a_request_and_all_others_of_the_client_end_and_the_client_is_closed(admin: GroupAdmin) -> None:
    """Without it, librdkafka aborts the process once the coordinator comes back."""
    long, late = admin.ask("hold", [], LATE_S), admin.ask("hold", [], SOON_S)
    assert [error_of(answer).code() for answer in (late, long)] == [KafkaError._TIMED_OUT] * 2
    wait_until(lambda: clients[0]() is None, "the client is closed")
    again = admin.ask("hold", [], LATE_S)
    held_by(1)[0].set_result("offsets")
    assert again.result(WITHIN_S) == "offsets"
    admin.close()


def test_a_coordinator_that_does_not_answer_is_told_of_with_the_group_and_not_each_time(
    admin: GroupAdmin, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an outage, each request has a client that is replaced; so has each look at Kafka."""
    monkeypatch.setattr(group_admin, "_complaints", complaints.Complaints())
    monkeypatch.setattr(complaints, "FIRST_PAUSE_S", LATE_S)
    admin.group = "payments"
    again = GroupAdmin({}, "payments")
    again.open()
    for one in (admin, again, admin):
        assert error_of(one.ask("hold", [], SOON_S)).code() == KafkaError._TIMED_OUT
    line = "group payments: its coordinator in Kafka did not answer in time; the client for it is replaced"
    assert caplog.messages == [line]
    admin.close()
    again.close()


def test_an_answer_or_an_error_in_time_is_passed_on_and_the_client_stays(admin: GroupAdmin) -> None:
    refused = KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
    answers = [admin.ask("answer", ["offsets"], SOON_S), admin.ask("answer", [refused], SOON_S)]
    assert answers[0].result(WITHIN_S) == "offsets"
    assert answers[1].exception(WITHIN_S) is refused
    wait_until(lambda: threads() == 0, "the thread ends")
    assert len(clients) == 1
    assert clients[0]() is not None
    assert admin.ask("answer", ["more"], SOON_S).result(WITHIN_S) == "more"
    wait_until(lambda: threads() == 0, "the thread ends")
    admin.close()


def test_an_answer_after_the_limit_is_dropped(admin: GroupAdmin) -> None:
    answer = admin.ask("hold", [], SOON_S)
    (sent,) = held_by(0)
    assert error_of(answer).code() == KafkaError._TIMED_OUT
    sent.set_result("offsets")
    assert error_of(answer).code() == KafkaError._TIMED_OUT
    admin.close()


def test_closing_it_ends_the_thread_and_gives_no_answer(admin: GroupAdmin) -> None:
    answer = admin.ask("hold", [], LATE_S)
    admin.close()
    wait_until(lambda: clients[0]() is None and threads() == 0, "both end")
    assert not answer.done()
    assert not admin.ask("hold", [], SOON_S).done()
    assert len(clients) == 1


def test_closing_it_without_a_client_starts_no_thread() -> None:
    close_aside([])  # what other tests could not close
    with mock.patch.object(Thread, "start") as start:
        GroupAdmin({}).close()
    assert not start.called


def test_a_request_that_is_refused_before_it_is_sent_keeps_no_client_open(admin: GroupAdmin) -> None:
    """Put the error with its traceback into the answer: the former client is never closed."""
    answer = admin.ask("refuse", ["refused"], LATE_S)
    assert error_of(answer).str() == "refused"
    admin.close()
    wait_until(lambda: clients[0]() is None, "the client is closed")


def test_a_signal_inside_a_request_reaches_the_application_as_itself(admin: GroupAdmin) -> None:
    with pytest.raises(KeyboardInterrupt):
        admin.ask("interrupt", [], LATE_S)
    admin.close()


def test_without_a_thread_that_limits_its_time_nothing_is_sent(admin: GroupAdmin) -> None:
    with mock.patch.object(Thread, "start", side_effect=RuntimeError("can't start new thread")):
        answer = admin.ask("hold", [], LATE_S)
    assert error_of(answer).code() == KafkaError._TRANSPORT
    assert held_by(0) == []
    assert admin.ask("answer", ["offsets"], LATE_S).result(WITHIN_S) == "offsets"
    admin.close()


def test_a_client_that_takes_long_to_make_is_made_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `oauth_cb`, it waits for a token. A request that comes meanwhile is refused: it would be sent too late."""
    clients.clear()
    is_made = threading.Event()

    def made(settings: object) -> Client:
        is_made.wait(WITHIN_S)
        return Client(settings)

    monkeypatch.setattr(group_admin, "AdminClient", made)
    admin = GroupAdmin({"oauth_cb": print})
    opened = threading.Event()
    admin.open_aside(opened.set)
    assert error_of(admin.ask("hold", [], LATE_S)).code() == KafkaError._TRANSPORT
    is_made.set()
    assert opened.wait(WITHIN_S)
    assert admin.ask("answer", ["offsets"], LATE_S).result(WITHIN_S) == "offsets"
    admin.close()


def test_the_time_counts_from_the_request(admin: GroupAdmin) -> None:
    """The thread still sleeps for an earlier request, which was answered."""
    assert admin.ask("answer", ["offsets"], 2 * SOON_S).result(WITHIN_S) == "offsets"
    began_s = time.monotonic()
    assert error_of(admin.ask("hold", [], 4 * SOON_S)).code() == KafkaError._TIMED_OUT
    assert time.monotonic() - began_s >= 4 * SOON_S
    admin.close()
