"""Where partitions begin and end: all are asked for at once, nobody waits, and every query gets one answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException

from consumer_agent.kafka import offset_queries
from consumer_agent.kafka.offset_queries import OffsetQueries
from tests.support.deadlines import WITHIN_S
from tests.unit.consumer_agent.admin import NO_ANSWER, Admin
from zkrebalancer.protocol.fields import TopicPartition

A, B, C = (("orders", number) for number in range(3))
AWAY = B  # its leader
DEADLINE_S = WITHIN_S
Found = list[dict[Any, dict[TopicPartition, int | None]]]


def answers(partition: TopicPartition, where: str | int) -> int:
    if partition == AWAY:
        raise NO_ANSWER
    return {"earliest": 3, "latest": 7}.get(str(where), -1)


def queries(new_admin: Callable[..., Admin], **settings: str) -> OffsetQueries:
    with mock.patch("consumer_agent.kafka.offset_queries.AdminClient", mock.Mock(side_effect=new_admin)):
        return OffsetQueries({"bootstrap.servers": "b:1", **settings})


def ask(queries: OffsetQueries, partitions: Sequence[TopicPartition], *wheres: str | int) -> Found:
    found: Found = []
    queries.ask(partitions, wheres, found.append)  # type: ignore[arg-type]  # it is a dict
    return found


def test_a_broker_that_is_away_costs_only_its_own_partitions() -> None:
    admin = Admin(answers)
    found = ask(queries(lambda *_, **__: admin), [A, B, C], "earliest", "latest")
    assert found == [{"earliest": {A: 3, B: None, C: 3}, "latest": {A: 7, B: None, C: 7}}]
    assert admin.asked == [[0, 1, 2]] * 2


def test_nobody_waits_for_an_answer() -> None:
    admin = Admin(answers, holds=True)
    found = ask(queries(lambda *_, **__: admin), [A], "latest")
    assert found == []
    admin.release()
    assert found == [{"latest": {A: 7}}]


def test_topics_without_an_answer_are_described_before_the_next_question() -> None:
    """Librdkafka may not know yet that partitions were added, or who leads them now."""
    admin = Admin(answers)
    asking = queries(lambda *_, **__: admin)
    ask(asking, [A, C], "latest")
    admin.described.clear()  # of a new client
    ask(asking, [B], "latest")
    assert admin.described == []
    ask(asking, [A], "latest")
    ask(asking, [A], "latest")
    assert admin.described == ["orders"]


class AtBootstrap(Admin):
    """Stands for a client that loses what it asks its bootstrap server about leaders: it knows those it described."""

    def list_offsets(self, request: Mapping[Any, Any], **options: object) -> dict[Any, Future[Any]]:
        self._holds = not {asked.topic for asked in request} <= set(self.described)
        return super().list_offsets(request, **options)


def test_a_new_client_describes_topics_until_it_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a start took a second longer, now and then."""
    clients = [AtBootstrap(answers) for _ in range(2)]
    waiting = iter(clients)
    asking = queries(lambda *_, **__: next(waiting))
    assert ask(asking, [AWAY], "latest") == [{"latest": {B: None}}]
    assert ask(asking, [("returns", 0)], "latest") == [{"latest": {("returns", 0): 7}}]
    ask(asking, [A], "latest")
    assert clients[0].described == ["orders", "orders", "returns"]
    ask(asking, [AWAY], "latest")
    monkeypatch.setattr(offset_queries, "SILENT_LIMIT_S", -1.0)
    assert ask(asking, [("returns", 0)], "latest") == [{"latest": {("returns", 0): 7}}]


def test_a_time_after_the_last_record_is_the_end() -> None:
    (found,) = ask(queries(lambda *_, **__: Admin(answers)), [A, B], 1_700_000_000_000)
    assert found[1_700_000_000_000] == {A: 7, B: None}


@pytest.mark.parametrize("where", ["earliest", "latest", 1_700_000_000_000])
def test_an_invalid_offset_is_no_answer(where: str | int) -> None:
    """Librdkafka reports one, as a success, for each partition whose leader does not answer in time."""
    admin = Admin(lambda partition, _where: OFFSET_INVALID if partition == AWAY else 7)
    (found,) = ask(queries(lambda *_, **__: admin), [A, B], where)
    assert found[where] == {A: 7, B: None}


def test_what_is_abandoned_is_answered_once_and_so_is_what_follows() -> None:
    admin = Admin(answers, holds=True)
    asking = queries(lambda *_, **__: admin)
    found = ask(asking, [A], "latest")
    asking.abandon()
    admin.release()
    assert found + ask(asking, [A], "latest") == [{"latest": {A: None}}] * 2


def test_a_client_that_does_not_answer_at_all_is_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(answers, holds=True)
    asking = queries(lambda *_, **__: admin)
    ask(asking, [A], "latest")
    seen = [asking.is_overdue(0.0)]
    monkeypatch.setattr(offset_queries, "OVERDUE_S", -1.0)
    seen.append(asking.is_overdue(0.0))
    admin.release()
    assert [*seen, asking.is_overdue(0.0)] == [False, True, False]


def test_a_client_that_has_lost_its_brokers_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, works = Admin(answers), Admin(answers)
    waiting = iter([lost, works])
    asking = queries(lambda *_, **__: next(waiting))
    ask(asking, [AWAY], "latest")
    ask(asking, [A], "latest")  # it is not lost
    monkeypatch.setattr(offset_queries, "SILENT_LIMIT_S", -1.0)
    ask(asking, [AWAY], "latest")
    assert works.asked == []
    assert ask(asking, [A], "latest") == [{"latest": {A: 7}}]
    assert works.asked == [[0]]


def test_a_client_is_lost_however_often_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start asks every two seconds: each query without an answer must not begin the time anew."""
    lost, works = Admin(answers), Admin(answers)
    waiting = iter([lost, works])
    asking = queries(lambda *_, **__: next(waiting))
    limit_s = offset_queries.SILENT_LIMIT_S
    for at_s in (0.0, limit_s - 1.0, limit_s + 1.0):
        monkeypatch.setattr(time, "monotonic", lambda at_s=at_s: 1_000.0 + at_s)
        assert works.asked == []
        ask(asking, [AWAY], "latest")
    assert works.asked == [[1]]


def test_a_new_client_has_as_long_to_answer_as_the_former_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `OffsetQueries._send`, keep the former client's silence: each query would make another client."""
    clients = [Admin(answers) for _ in range(3)]
    waiting = iter(clients)
    asking = queries(lambda *_, **__: next(waiting))
    limit_s = offset_queries.SILENT_LIMIT_S
    for at_s in (0.0, limit_s + 1.0, limit_s + 2.0):
        monkeypatch.setattr(time, "monotonic", lambda at_s=at_s: 1_000.0 + at_s)
        ask(asking, [AWAY], "latest")
    assert [len(client.asked) for client in clients] == [1, 2, 0]


class SlowToClose:
    """Stands for a client that gives no answers, and whose end waits for the look-up of a broker's name."""

    released = threading.Event()
    closed = threading.Event()

    def describe_topics(self, _topics: object, **_: object) -> None: ...

    def list_offsets(self, request: Mapping[Any, Any], **_: object) -> dict[Any, Future[Any]]:
        futures: dict[Any, Future[Any]] = {asked: Future() for asked in request}
        for future in futures.values():
            future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        return futures

    def __del__(self) -> None:
        assert self.released.wait(DEADLINE_S)
        self.closed.set()


def test_nobody_waits_for_the_end_of_a_client_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine thread asks: it would lose its session."""
    clients: list[Any] = [SlowToClose(), Admin(answers)]
    asking = queries(lambda *_, **__: clients.pop(0))
    ask(asking, [AWAY], "latest")
    monkeypatch.setattr(offset_queries, "SILENT_LIMIT_S", -1.0)
    assert ask(asking, [A], "latest") == [{"latest": {A: 7}}]
    assert not SlowToClose.closed.is_set()
    SlowToClose.released.set()
    assert SlowToClose.closed.wait(DEADLINE_S)


def test_a_client_that_cannot_be_made_is_tried_again_with_the_next_question() -> None:
    failures = iter([KafkaException(KafkaError(KafkaError._FAIL))])

    def new_admin(*_: object, **__: object) -> Admin:
        for failure in failures:
            raise failure
        return Admin(answers)

    asking = queries(new_admin)
    assert ask(asking, [A], "latest") + ask(asking, [A], "latest") == [{"latest": {A: None}}, {"latest": {A: 7}}]


def test_a_request_that_fails_once_is_answered_and_the_next_one_works() -> None:
    admin = Admin(answers)
    asking = queries(lambda *_, **__: admin)
    with mock.patch.object(admin, "list_offsets", side_effect=KafkaException(KafkaError(KafkaError._FAIL))):
        assert ask(asking, [A], "latest") == [{"latest": {A: None}}]
    assert ask(asking, [A], "latest") == [{"latest": {A: 7}}]


def test_a_signal_inside_a_request_reaches_the_application_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `signals_unwrapped`, or in `OffsetQueries.ask`, take the handling away: a SystemError, or a hanging client."""

    def interrupted(_requests: object, **_: object) -> None:  # what confluent-kafka's C code makes of Ctrl-C
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()

    admin = Admin(answers)
    asking = queries(lambda *_, **__: admin)
    monkeypatch.setattr(admin, "list_offsets", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(asking, [A], "latest")
    monkeypatch.setattr(offset_queries, "OVERDUE_S", -1.0)
    assert not asking.is_overdue(0.0)


@pytest.mark.parametrize("word", [str.lower, str.upper])  # librdkafka takes either
@pytest.mark.parametrize("level", [IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED])
def test_the_end_is_that_of_what_is_read(level: IsolationLevel, word: Callable[[str], str]) -> None:
    """An open transaction would look like records that do not come."""
    admin = Admin(answers)
    asking = queries(lambda *_, **__: admin, **{"isolation.level": word(level.name)})
    with mock.patch.object(admin, "list_offsets", wraps=admin.list_offsets) as listed:
        ask(asking, [A], "latest")
    assert listed.call_args.kwargs["isolation_level"] is level
