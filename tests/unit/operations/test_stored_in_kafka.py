"""A group's offsets in Kafka, and its lag by both stores; with a fake of Kafka's admin client."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import gevent
import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.support.groups import world_with
from tests.support.world import GROUP
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.observe.inspection import GroupReport, MemberReport, read_group
from zkrebalancer.operations import kafka_offsets
from zkrebalancer.operations.group_lag import PartitionLag, read_lag
from zkrebalancer.operations.kafka_offsets import KafkaOffsetsError, StoredInKafka, known_log_ends
from zkrebalancer.operations.lag_age import first_unread_ms
from zkrebalancer.operations.starts_pause import OffsetsRefusedError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.runtime.kafka import UNREACHED_S
from zkrebalancer.runtime.zk import BlockingZk

KAFKA = {"bootstrap.servers": "b:1"}
REFUSED = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "it is unknown")
NO_ACCESS = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "no access"))


def answer(topic: str, partition: int, offset: int, error: KafkaError | None = None) -> SimpleNamespace:
    return SimpleNamespace(topic=topic, partition=partition, offset=offset, error=error)


class Admin:
    """A fake admin client with one answer, None: it never answers; `passing`: its answers before."""

    def __init__(self, reply: list[SimpleNamespace] | Exception | None) -> None:
        self.reply = reply
        self.passing: list[list[SimpleNamespace] | Exception] = []
        self.members: list[SimpleNamespace] = []
        self.asked: list[Any] = []
        self.written: list[Any] = []

    def list_consumer_group_offsets(self, request: list[Any], *, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout == UNREACHED_S
        self.asked += request
        return self._answer(request)

    def alter_consumer_group_offsets(self, request: list[Any], *, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout == UNREACHED_S
        self.written += request
        return self._answer(request)

    def describe_consumer_groups(self, groups: list[str], *, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout == UNREACHED_S
        return self._answer([SimpleNamespace(group_id=group) for group in groups])

    def _answer(self, request: list[Any]) -> dict[str, Future[Any]]:
        (group,) = (one.group_id for one in request)
        future: Future[Any] = Future()
        reply = self.passing.pop(0) if self.passing else self.reply
        if isinstance(reply, Exception):
            future.set_exception(reply)
        elif reply is not None:
            future.set_result(SimpleNamespace(topic_partitions=reply, members=self.members))
        return {group: future}

    def poll(self, _timeout: float) -> int:
        return 0


def stored(monkeypatch: pytest.MonkeyPatch, reply: list[SimpleNamespace] | Exception | None) -> tuple[Admin, Any]:
    admin = Admin(reply)
    monkeypatch.setattr(kafka_offsets, "AdminClient", lambda _settings: admin)
    return admin, StoredInKafka(KAFKA, "g")


def test_every_committed_offset_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    admin, store = stored(monkeypatch, [answer("t", 0, 0), answer("t", 1, 17), answer("t", 2, -1), answer("u", 0, -2)])

    assert store.read() == {("t", 0): 0, ("t", 1): 17}
    assert [(one.group_id, one.topic_partitions) for one in admin.asked] == [("g", None)]


def test_offsets_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    admin, store = stored(monkeypatch, [answer("t", 0, 5), answer("t", 1, 6)])

    store.write({("t", 1): 6, ("t", 0): 5})

    (request,) = admin.written
    assert request.group_id == "g"
    assert [(tp.topic, tp.partition, tp.offset) for tp in request.topic_partitions] == [("t", 0, 5), ("t", 1, 6)]


def test_nothing_more_is_sent_once_it_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_answer`, call `before_each_try` once only."""
    admin, store = stored(monkeypatch, [answer("t", 0, 5)])
    admin.passing = [KafkaException(KafkaError(KafkaError.NOT_COORDINATOR, "it moves"))]
    calls: list[int] = []

    def before_each_try() -> None:
        calls.append(len(admin.written))
        if admin.written:
            raise OffsetsRefusedError("too late")

    with pytest.raises(OffsetsRefusedError, match="too late"):
        store.write({("t", 0): 5}, before_each_try)
    assert calls == [0, 1]


def test_one_offset_that_is_refused_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _admin, store = stored(monkeypatch, [answer("t", 0, 5), answer("t", 1, 6, REFUSED)])

    with pytest.raises(KafkaOffsetsError, match=r"^Kafka rejected the offset of t/1: it is unknown$"):
        store.write({("t", 0): 5, ("t", 1): 6})


@pytest.mark.parametrize(("reply", "reason"), [(NO_ACCESS, "no access"), (None, r"no answer within 0\.01 s")])
def test_why_there_are_no_offsets(monkeypatch: pytest.MonkeyPatch, reply: Exception | None, reason: str) -> None:
    monkeypatch.setattr(kafka_offsets, "REQUEST_TIMEOUT_S", 0.01)
    _admin, store = stored(monkeypatch, reply)

    with pytest.raises(KafkaOffsetsError, match=f"^no offsets of group g from Kafka: {reason}$"):
        store.read()
    refused = rf"did not confirm the offsets of g \({reason}\): they may be stored; repeat this"
    if reply is not None:
        refused = f"rejected the offsets of g: {reason}"
    with pytest.raises(KafkaOffsetsError, match=f"^Kafka {refused}$"):
        store.write({("t", 0): 5})


def test_a_client_without_an_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `StoredInKafka._reason`, keep it: it may send the offsets later, when consumers have committed others."""
    monkeypatch.setattr(kafka_offsets, "REQUEST_TIMEOUT_S", 0.01)
    made = mock.Mock(side_effect=lambda _settings: Admin(None))
    monkeypatch.setattr(kafka_offsets, "AdminClient", made)
    store = StoredInKafka(KAFKA, "g")
    for _ in range(2):
        with pytest.raises(KafkaOffsetsError, match="did not confirm"):
            store.write({("t", 0): 5})
    assert made.call_count == 2


def test_what_a_broker_may_have_stored_is_not_called_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    late = KafkaError(KafkaError.REQUEST_TIMED_OUT, "too late")
    for reply, reason in ((KafkaException(late), "too late"), ([answer("t", 0, 5, late)], "t/0: too late")):
        _admin, store = stored(monkeypatch, reply)
        with pytest.raises(KafkaOffsetsError, match=rf"did not confirm the offsets of g \({reason}\)"):
            store.write({("t", 0): 5})


class SlowAdmin(Admin):
    """It answers once other greenlets have run."""

    def _answer(self, request: list[Any]) -> dict[str, Future[Any]]:
        ((group, answered),) = super()._answer(request).items()
        later: Future[Any] = Future()
        gevent.spawn(lambda: later.set_result(answered.result(0)))
        return {group: later}


def test_connections_live_while_a_coordinator_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `StoredInKafka._answer`, wait outside of a thread."""
    monkeypatch.setattr(kafka_offsets, "AdminClient", lambda _settings: SlowAdmin([answer("t", 0, 5)]))
    assert StoredInKafka(KAFKA, "g").read() == {("t", 0): 5}


def test_a_refusal_because_of_members_says_that_some_remain_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All were stopped cleanly, so "stop them first" alone leads nowhere."""
    admin, store = stored(monkeypatch, [])
    admin.members = [SimpleNamespace(client_id=f"c-{number}") for number in range(4)]
    remain = "Kafka may keep one that was killed, or owned nothing when it closed, until its session expires"
    wanted = rf"^group g has members in Kafka \(c-0, c-1, c-2\); stop them first; {remain}$"
    with pytest.raises(KafkaOffsetsError, match=wanted):
        store.refuse_members()


@pytest.mark.parametrize("code", sorted(kafka_offsets.PASSING))
def test_passing_answers_of_a_coordinator_are_waited_out(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """In `StoredInKafka._answer`, ask once: a reset ends between its two stores."""
    monkeypatch.setattr(kafka_offsets, "REPEAT_AFTER_S", 0.0)
    passing = KafkaError(code)
    admin, store = stored(monkeypatch, [answer("t", 0, 5)])
    for call in (store.read, store.refuse_members, lambda: store.write({("t", 0): 5})):
        admin.passing = [KafkaException(passing), [answer("t", 0, 5, passing)], KafkaException(passing)]
        call()
        assert admin.passing == []


def test_a_coordinator_that_is_never_ready_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `StoredInKafka._answer`, repeat for ever; or end with "no answer", although there are answers."""
    monkeypatch.setattr(kafka_offsets, "REQUEST_TIMEOUT_S", 0.05)
    monkeypatch.setattr(kafka_offsets, "REPEAT_AFTER_S", 0.02)
    _admin, store = stored(monkeypatch, KafkaException(KafkaError(KafkaError.NOT_COORDINATOR, "elsewhere")))
    with pytest.raises(KafkaOffsetsError, match=r"^no offsets of group g from Kafka: elsewhere$"):
        store.read()


def test_a_client_that_cannot_be_made_is_an_error_of_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a certificate is gone for a moment; the next request finds it."""
    admin, store = stored(monkeypatch, [answer("t", 0, 5)])

    def unmade(_settings: object) -> Any:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "no such file"))

    for name in ("AdminClient", "Consumer"):
        monkeypatch.setattr(kafka_offsets, name, unmade)
    for call in (StoredInKafka(KAFKA, "g").read, store.read, store.refuse_members, lambda: store.write({("t", 0): 5})):
        with pytest.raises(KafkaOffsetsError, match=r"no such file$"):
            call()
    for ask in (known_log_ends, first_unread_ms):
        with pytest.raises(KafkaOffsetsError, match=r"^no client of Kafka at b:1: no such file$"):
            ask(KAFKA, {("t", 0): 5})
    monkeypatch.setattr(kafka_offsets, "AdminClient", lambda _settings: admin)
    assert store.read() == {("t", 0): 5}


def test_the_reason_of_a_connection_that_failed_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _admin, store = stored(monkeypatch, NO_ACCESS)
    store._errors.record(KafkaError(KafkaError._TRANSPORT, "refused by b:1"))

    with pytest.raises(KafkaOffsetsError, match=r": no access \(refused by b:1\)$"):
        store.read()
    with pytest.raises(KafkaOffsetsError, match=r": no access$"):
        store.read()


class Brokers:
    """A fake consumer that knows the ends of some logs."""

    def __init__(self, ends: dict[TopicPartition, int], fails: KafkaException | None = None) -> None:
        self.ends, self.fails, self.closed = ends, fails, 0
        self.asked: list[tuple[str, int, int]] = []

    def offsets_for_times(self, asked: list[Any], *, timeout: float) -> list[SimpleNamespace]:
        assert timeout == kafka_offsets.REQUEST_TIMEOUT_S
        self.asked += [(tp.topic, tp.partition, tp.offset) for tp in asked]
        if self.fails is not None:
            raise self.fails
        known = [(tp, self.ends.get((tp.topic, tp.partition))) for tp in asked]
        return [
            answer(tp.topic, tp.partition, -1 if end is None else end, REFUSED if end is None else None)
            for tp, end in known
        ]

    def poll(self, _timeout: float) -> None:
        return None

    def close(self) -> None:
        self.closed += 1


def test_ends_of_logs_that_kafka_does_not_know_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers({("t", 0): 0, ("t", 1): 8, ("t", 3): -1})
    monkeypatch.setattr(kafka_offsets, "_consumer", lambda _settings: brokers)

    assert known_log_ends(KAFKA, [("t", number) for number in range(4)]) == {("t", 0): 0, ("t", 1): 8}
    assert brokers.asked == [("t", number, kafka_offsets.END) for number in range(4)]
    assert brokers.closed == 1


def test_a_client_that_failed_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers({}, NO_ACCESS)
    monkeypatch.setattr(kafka_offsets, "_consumer", lambda _settings: brokers)

    with pytest.raises(KafkaOffsetsError, match=r"^no offsets from Kafka at b:1: no access$"):
        known_log_ends(KAFKA, [("t", 0)])
    assert brokers.closed == 1


def test_the_client_that_asks_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(kafka_offsets, "Consumer", made.append)

    kafka_offsets._consumer({"bootstrap.servers": "b:1"})

    own = {"group.id": "zkrebalancer-offsets", "enable.auto.commit": False}
    assert made == [{"bootstrap.servers": "b:1", "isolation.level": "read_uncommitted", **own}]


def test_lag_is_of_all_that_is_owned_or_stored_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TopicPartition] = []

    def ends(kafka: object, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        assert kafka == KAFKA
        asked.extend(partitions)
        return {("t", 0): 20, ("t", 1): 20, ("t", 2): 20}

    monkeypatch.setattr(kafka_offsets, "known_log_ends", ends)
    monkeypatch.setattr(StoredInKafka, "read", lambda _self: {("t", 1): 12, ("t", 2): 9, ("t", 3): 1})
    report = report_with({("t", 0): 10, ("t", 1): 10}, {("t", 0): 0, ("t", 4): 0})

    found = read_lag(report, KAFKA)

    assert asked == [("t", number) for number in range(5)]
    assert list(found) == asked
    assert found == {
        ("t", 0): PartitionLag(10, None, 20),
        ("t", 1): PartitionLag(10, 12, 20),
        ("t", 2): PartitionLag(None, 9, 20),
        ("t", 3): PartitionLag(None, 1, None),
        ("t", 4): PartitionLag(None, None, None),
    }
    assert [lag.lag for lag in found.values()] == [10, 8, 11, None, None]


def report_with(offsets: dict[TopicPartition, int], owned: dict[TopicPartition, int]) -> GroupReport:
    report = read_group(cast("BlockingZk", ModelClient(world_with().zk)), GROUP)
    report.offsets.update(offsets)
    report.members.append(MemberReport("a-1", owners=OwnersRecord(1, None, owned)))
    return report
